"""Follows a run of Airflow until it has ended: how many tasks of each kind are in which state."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from include.lab.airflow_api import AirflowApi
from include.lab.errors import LabError

POLL_S = 1.0
SILENCE_S = 300.0  # a busy machine answers late
RUN_ENDED = {"success", "failed"}
TASK_ENDED = {"success", "failed", "upstream_failed", "skipped", "removed"}
TASK_BUSY = {"running", "deferred"}


@dataclass(frozen=True, slots=True)
class TaskKind:
    """All instances of one task of a run."""

    task_id: str
    states: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.states.items() if state in TASK_ENDED)

    @property
    def failed(self) -> int:
        return sum(self.states.get(state, 0) for state in ("failed", "upstream_failed"))

    def __str__(self) -> str:
        return f"{self.task_id} {self.ended}/{self.total}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment; `busy` is how many tasks ran or waited in the triggerer at the same time."""

    state: str
    kinds: tuple[TaskKind, ...]
    busy: int

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDED


def snapshot(state: str, instances: list[dict[str, Any]]) -> Snapshot:
    """The instances of a run by task, in the order in which the tasks began."""
    kinds: dict[str, Counter[str]] = {}
    for one in sorted(instances, key=lambda one: one.get("start_date") or "9"):
        kinds.setdefault(one["task_id"], Counter())[one["state"] or "waiting"] += 1
    busy = sum(1 for one in instances if one["state"] in TASK_BUSY)
    return Snapshot(state, tuple(TaskKind(task_id, dict(states)) for task_id, states in kinds.items()), busy)


def follow(
    api: AirflowApi,
    dag_id: str,
    run_id: str,
    *,
    show: Callable[[Snapshot], None],
    timeout_s: float,
    poll_s: float = POLL_S,
    silence_s: float = SILENCE_S,
) -> Snapshot:
    """Check a run every `poll_s` seconds until it ends. Airflow may be silent for `silence_s` meanwhile.

    Raises:
        LabError: it did not end in time, or Airflow is silent or refuses; the run goes on.
    """
    deadline = time.monotonic() + timeout_s
    answered = time.monotonic()
    while True:
        try:
            seen = snapshot(api.run_state(dag_id, run_id), api.task_instances(dag_id, run_id))
        except LabError as error:
            if not error.retryable or time.monotonic() - answered > silence_s:
                raise
        else:
            answered = time.monotonic()
            show(seen)
            if seen.ended:
                return seen
        if time.monotonic() > deadline:
            raise LabError(f"run {run_id} of {dag_id} has not ended after {timeout_s:.0f} s: check it in Airflow")
        # Airflow offers no event stream for a run's tasks.
        time.sleep(poll_s)
