"""The text that others see as the holder of a lease, of a task of Airflow: DAG, run, task, map index and try."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TASK = re.compile(r"([^/\s]+)/([^/\s]+)/([^/\s\[]+)(?:\[(\d{1,9})\])? try (\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TaskName:
    """A try of a task. ``map_index``: -1 for a task that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int

    @classmethod
    def parse(cls, text: str) -> TaskName | None:
        """What ``format`` wrote; None for the name of anybody else."""
        match = _TASK.fullmatch(text)
        if match is None:
            return None
        dag_id, run_id, task_id, index, number = match.groups()
        return cls(dag_id, run_id, task_id, int(index) if index is not None else -1, int(number))

    def format(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}/{self.run_id}/{self.task_id}{mapped} try {self.try_number}"
