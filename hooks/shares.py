"""Which pool a run's tasks take their slots from: those of backfills have a share of their own. Imports no Airflow.

The reasons: docs/decisions/0019-backfills-have-a-share-of-their-own.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from include.settings.pools import BACKFILL, NIGHTLY

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

BACKFILLED = "backfill__"
"""How Airflow begins the ids of the runs that a backfill makes."""


def is_backfill(run_id: str | None) -> bool:
    """Whether Airflow made the run for a backfill."""
    return (run_id or "").startswith(BACKFILLED)


def task_instance_mutation_hook(task_instance: TaskInstance, dag_run: DagRun | None = None) -> None:  # noqa: ARG001
    """Airflow asks this whenever it makes a task of a run, or takes its settings from the DAG again."""
    if task_instance.pool in NIGHTLY and is_backfill(getattr(task_instance, "run_id", None)):
        task_instance.pool = BACKFILL
