"""The list of pages and their addresses. Light: the plugin imports it in every component of Airflow."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Return the address of the page of a path's publishers."""
    return f"provenance?{urlencode({'repository': repository, 'path': path})}"


def transfer(number: int) -> str:
    """A transfer with its history."""
    return f"transfer?id={number}"


def start(action: str, **values: str) -> str:
    """The filled-in form of an action."""
    return f"start?{urlencode({'action': action, **values})}"


PREFIX = "/nightshift"
"""Mountpoint of the app, below the base path of Airflow."""

STAGEOUT_API = f"{PREFIX}/stageout/v1"
"""Mountpoint of the REST API of stage-out."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page; a module reads what it shows, `templates/<name>.html` draws it.

    Args:
        name: The last part of its URL.
        title: In the navigation and at its head.
        module: The module in `include/pages`.
        nav: Whether the navigation has it; other pages are reached by links.
        run_tab: Whether every run of a DAG has it as a tab, asked with `run=<dag id>/<run id>`.
        charts: Whether it draws charts, for which Plotly's script is loaded.
        read: The function of the module that reads.
    """

    name: str
    title: str
    module: str
    nav: bool = True
    run_tab: bool = False
    charts: bool = False
    read: str = "read"


PAGES = (
    Page("nights", "Nights", "nights_page", run_tab=True, charts=True),
    Page("repositories", "Repositories", "repositories_page", charts=True),
    Page("publications", "Publications", "publications_page", charts=True),
    Page("transfers", "Transfers", "transfers_page", charts=True, read="read_overview"),
    Page("transfer", "Transfer", "transfers_page", nav=False),
    Page("analytics", "Analytics", "analytics_page", charts=True),
    Page("sites", "Sites", "sites_page", charts=True),
    Page("caches", "Caches", "caches_page", charts=True),
    Page("benchmarks", "Benchmarks", "benchmarks", charts=True),
    Page("audit", "Audit", "provenance", read="read_audit"),
    Page("provenance", "Provenance", "provenance", nav=False),
    Page("start", "Start a run", "start", nav=False),
)


def external_views() -> list[dict[str, str]]:
    """The pages as Airflow's plugins name them. Their URLs are relative: Airflow's base path comes before them."""
    views = [
        {
            "name": page.title,
            "href": f"{PREFIX[1:]}/{page.name}",
            "destination": "nav",
            "category": "browse",
            "url_route": f"nightshift-{page.name}",
        }
        for page in PAGES
        if page.nav
    ]
    tabs = [
        {
            "name": page.title,
            "href": f"{PREFIX[1:]}/{page.name}?run={{DAG_ID}}/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": f"nightshift-run-{page.name}",
        }
        for page in PAGES
        if page.run_tab
    ]
    return views + tabs
