"""The order of runs where a pool or the executor has no slot left: this night's before those of backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.task.priority_strategy import PriorityWeightStrategy

from hooks.shares import is_backfill

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

TONIGHT = 10_000
"""More than any slot's `priority`, so that a backfill of the most urgent slot waits for a night of the least."""


class NightFirst(PriorityWeightStrategy):
    """The priority of the task, which is its slot's; and above all of a backfill's tasks those of other runs.

    A backfill takes what the others leave: their tasks wait in the triggerer most of a night, and hold no slot there.
    """

    def get_weight(self, ti: TaskInstance) -> int:
        """Airflow's scheduler asks this when it creates or examines a task."""
        own = int(ti.task.priority_weight) if ti.task is not None else 1
        return own if is_backfill(ti.run_id) else TONIGHT + own
