"""Shares of tasks: the queue of each, and the room that backfills leave to others. Imports no Airflow.

Tasks of backfills have a pool of their own, and step back: docs/decisions/0019-pool-slots-for-backfills.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from include.settings.scheduling import BACKFILL, NIGHTLY, Queue, queue_of

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

BACKFILLED = "backfill__"
"""Beginning of the ids of a backfill's runs."""
NICENESS = 15
"""Niceness of tasks of backfills; preparing for a night does so by 10, stage-out by 19."""


def is_backfill(run_id: str | None) -> bool:
    """Tell whether Airflow made the run for a backfill."""
    return (run_id or "").startswith(BACKFILLED)


def task_instance_mutation_hook(task_instance: TaskInstance, dag_run: DagRun | None = None) -> None:  # noqa: ARG001
    """Airflow asks this whenever it makes a task of a run, or takes its settings from the DAG again."""
    if task_instance.pool in NIGHTLY and is_backfill(getattr(task_instance, "run_id", None)):
        task_instance.pool = BACKFILL
    if task_instance.queue == Queue.DEFAULT.value:  # any other was chosen
        task_instance.queue = queue_of(task_instance.dag_id, task_instance.pool).value


def give_way(run_id: str | None) -> None:
    """Lower the priority of this thread, and of those it will start, if it works for a backfill."""
    if is_backfill(run_id):
        os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS))
