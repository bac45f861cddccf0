"""Where links of the pages lead: to Airflow's own pages and among ours. All are relative, below any base path."""

from __future__ import annotations

from datetime import date
from urllib.parse import quote, urlencode

from include.gateway.protocol import TaskName

AIRFLOW = ".."
"""From a page of ours to the root of Airflow."""


def run_of(run: str) -> str:
    """The page of a run, named as in the ledger: `<dag id>/<run id>`."""
    dag_id, _, run_id = run.partition("/")
    return f"{AIRFLOW}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def task_of(holder: str | None, run: str) -> str:
    """The log of the try that a holder names; without one, the page of the run."""
    task = TaskName.parse(holder) if holder else None
    if task is None:
        return run_of(run)
    mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
    page = f"{run_of(f'{task.dag_id}/{task.run_id}')}/tasks/{quote(task.task_id, safe='')}{mapped}"
    return f"{page}?try_number={task.try_number}"


def night(slot: str, day: date) -> str:
    """The page of a night."""
    return f"nights?{urlencode({'slot': slot, 'date': day.isoformat()})}"


def repository(fqrn: str) -> str:
    """The page of a repository."""
    return f"repositories?{urlencode({'repository': fqrn})}"


def provenance(repository: str, path: str) -> str:
    """Who published a path."""
    return f"provenance?{urlencode({'repository': repository, 'path': path})}"


def transfer(number: int) -> str:
    """A transfer with its history."""
    return f"transfer?id={number}"


def start(action: str, **values: str) -> str:
    """The filled-in form of an action."""
    return f"start?{urlencode({'action': action, **values})}"
