"""What a night spent its time on: when tasks ran, by Airflow, and when artifacts were worked on, by the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from include.nightlies.rules.publication import Publication

WORK = {"artifact.prepare": "prepare", "artifact.publish": "publish"}
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Ran:
    """A task of a run, in seconds since the epoch."""

    task: str
    began: float
    ended: float

    @property
    def interval(self) -> Interval:
        return self.began, self.ended


def ran(instances: Iterable[Mapping[str, Any]]) -> tuple[Ran, ...]:
    """The tasks of Airflow's answer that began and ended, in the order in which they began."""
    found = [
        Ran(one["task_id"], seconds(one["start_date"]), seconds(one["end_date"]))
        for one in instances
        if one["start_date"] and one["end_date"]
    ]
    return tuple(sorted(found, key=lambda one: one.began))


def preparing(done: Iterable[Publication], begun: Mapping[int, datetime]) -> list[Interval]:
    """When artifacts were prepared, by the ledger; `begun`: publication's id -> when its preparation began."""
    found = [(begun[one.id].timestamp(), one.seconds.get("prepare", 0.0)) for one in done if one.id in begun]
    return [(began, began + spent) for began, spent in found]


def publishing(done: Iterable[Publication]) -> list[Interval]:
    """When artifacts were published, by the ledger."""
    found = []
    for one in done:
        if one.ended_at is not None:
            spent = sum(seconds for phase, seconds in one.seconds.items() if phase != "prepare")
            found.append((one.ended_at.timestamp() - spent, one.ended_at.timestamp()))
    return found


def covered(intervals: Iterable[Interval]) -> float:
    """How many seconds at least one of them covers."""
    return sum(ended - began for began, ended in merged(intervals))


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time in intervals that do not touch each other, in order."""
    found: list[Interval] = []
    for began, ended in sorted(intervals):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def gaps(intervals: Iterable[Interval], whole: Interval) -> list[Interval]:
    """The parts of the whole that none of them covers."""
    edges = [(whole[0], whole[0]), *merged(_within(intervals, whole)), (whole[1], whole[1])]
    return [(left[1], right[0]) for left, right in pairwise(edges) if right[0] > left[1]]


def attributed(worked: Iterable[Interval], tasks: Sequence[Ran], whole: Interval) -> dict[str, float]:
    """The seconds of the whole in which nothing was worked on, by the task that was running; each second once.

    What no task was running in is `between tasks`: the scheduler's, and the start of processes.
    """
    left, found = gaps(worked, whole), dict[str, float]()
    # those of the work first: what they spend on starting is what the work itself waits for
    for name in sorted({one.task for one in tasks}, key=lambda name: (name not in WORK, name)):
        own = [one.interval for one in tasks if one.task == name]
        rest = [piece for gap in left for piece in gaps(own, gap)]
        if spent := covered(left) - covered(rest):
            found[name] = spent
        left = rest
    return {**found, "between tasks": covered(left)}


def at_once(intervals: Sequence[Interval], moments: Iterable[float]) -> list[int]:
    """How many of them were under way at each moment."""
    return [sum(began <= moment < ended for began, ended in intervals) for moment in moments]


def _within(intervals: Iterable[Interval], whole: Interval) -> list[Interval]:
    return [(max(a, whole[0]), min(b, whole[1])) for a, b in intervals if b > whole[0] and a < whole[1]]


def seconds(text: str) -> float:
    """A time of Airflow's answers in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()
