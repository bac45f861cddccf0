"""The contents of the page *Publications*: figures of each day, failures by class, plots. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from include.cvmfs import errors as cvmfs_errors
from include.errors import Concern, kinds_in
from include.gateway import errors as gateway_errors
from include.ledger import errors as ledger_errors
from include.nightlies import errors
from include.nightlies.rules.publication import State
from include.pages.charts import bars, figure, line
from include.pages.repositories_view import PublishedSum
from include.publishers import errors as publisher_errors
from include.settings import errors as settings_errors
from include.storage import errors as storage_errors

UNKNOWN = "unknown"
_LOOKS = {
    State.PLANNED: ("wait", "#94a3b8"),
    State.PREPARING: ("busy", "#60a5fa"),
    State.PREPARED: ("wait", "#f59e0b"),
    State.PUBLISHING: ("busy", "#8b5cf6"),
    State.PUBLISHED: ("good", "#10b981"),
    State.UNCHANGED: ("good", "#0e7490"),
    State.SKIPPED: ("wait", "#a16207"),
    State.FAILED: ("bad", "#ef4444"),
}
"""The style of a state in tables, and its colour in plots."""


@dataclass(slots=True)
class DayFigures:
    """Figures of a day, in UTC. `seconds`: of published artifacts, by phase; `held`: seconds under leases."""

    states: Counter[State] = field(default_factory=Counter)
    published: PublishedSum = field(default_factory=PublishedSum)
    seconds: Counter[str] = field(default_factory=Counter)
    held: list[float] = field(default_factory=list)
    began_at: datetime | None = None
    ended_at: datetime | None = None

    def add(self, row: Any) -> None:
        """Add a publication, a row of the ledger."""
        state = State(row.state)
        self.states[state] += 1
        self.began_at = min(self.began_at or row.created_at, row.created_at)
        self.ended_at = max(self.ended_at or row.updated_at, row.updated_at)
        if state is not State.PUBLISHED:
            return
        self.published.add(row)
        for phase, seconds in row.seconds.items():
            self.seconds[phase] += seconds
        if row.lease_held_s is not None:
            self.held.append(row.lease_held_s)

    @property
    def bytes_per_s(self) -> float | None:
        """Return the speed of one preparation; None where none took time."""
        return self.published.bytes / self.seconds["prepare"] if self.seconds["prepare"] else None

    @property
    def per_hour(self) -> float | None:
        """Published artifacts an hour, from the first plan to the last move of the day."""
        if self.began_at is None or self.ended_at is None or self.ended_at <= self.began_at:
            return None
        return self.published.artifacts * 3600 / (self.ended_at - self.began_at).total_seconds()

    def mean(self, phase: str) -> float | None:
        """Seconds of a phase for each published artifact."""
        return self.seconds[phase] / self.published.artifacts if phase in self.seconds else None

    def held_at(self, share: float) -> float | None:
        """Return the longest time of a lease, in that share of publications; None where none was."""
        ordered = sorted(self.held)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Failures of one code. `last`: the newest of them."""

    code: str
    count: int
    last: datetime

    @property
    def cure(self) -> str:
        """Say what cures failures of this class."""
        return cure_of(self.code)


_CURES: Mapping[Concern, str] = {
    Concern.ARTIFACT: "Correct the artifact or its entry in the index, then install it again.",
    Concern.STORE: "Check the object store and its connection, then install it again.",
    Concern.GATEWAY: "Check the gateway and its log, then install it again.",
    Concern.REPOSITORY: "Check the repository: nightshift repo check. Then install it again.",
    Concern.NODE: "Check the publisher node, then install it again.",
    Concern.FTS: "Check the FTS server and its connection.",
    Concern.CONFIGURATION: "Correct the configuration or connection: nightshift settings check names what is wrong.",
}
"""Cure of errors that have no hint of their own, by the part that they concern."""
_KINDS = kinds_in(
    errors, cvmfs_errors, gateway_errors, publisher_errors, settings_errors, storage_errors, ledger_errors
)


def cure_of(code: str | None) -> str:
    """Say what cures an error, by its code."""
    kind = _KINDS.get(code or "")
    if kind is None:
        return "Read the log of its task. Correct what it names, then install it again."
    hint = kind.hint.strip()
    if not hint:
        return _CURES[kind.concern]
    return f"{hint[0].upper()}{hint[1:]}" + ("" if hint.endswith(".") else ".")


def kind_of(state: State) -> str:
    """The style of a state."""
    return _LOOKS[state][0]


def days_of(rows: Sequence[Any], *, whole: bool) -> list[tuple[date, DayFigures]]:
    """Figures by day, the oldest first. `whole`: whether these are all publications; else the oldest day may lack some,
    and is left out."""
    by_day: dict[date, DayFigures] = {}
    for row in rows:
        by_day.setdefault(row.updated_at.date(), DayFigures()).add(row)
    days = sorted(by_day)
    if not whole and len(days) > 1:
        days = days[1:]
    return [(day, by_day[day]) for day in days]


def phases_of(days: Iterable[tuple[date, DayFigures]]) -> list[str]:
    """The phases that took time, the longest first."""
    total: Counter[str] = Counter()
    for _, figures in days:
        total.update(figures.seconds)
    return [phase for phase, _ in total.most_common()]


def failures_of(rows: Iterable[Any]) -> list[FailureClass]:
    """Failures by the code of their error, the most frequent first."""
    groups: dict[str, list[Any]] = {}
    for row in rows:
        if row.state == State.FAILED.value:
            groups.setdefault(row.code or UNKNOWN, []).append(row)
    classes = [
        FailureClass(code, len(failed), max(publication.updated_at for publication in failed))
        for code, failed in groups.items()
    ]
    return sorted(classes, key=lambda failure: (-failure.count, failure.code))


def state_figure(days: Sequence[tuple[date, DayFigures]]) -> dict[str, Any]:
    """Publications by day and state."""
    dates = [day for day, _ in days]
    shown = [state for state in State if any(figures.states[state] for _, figures in days)]
    traces = [
        bars(state.value, dates, [figures.states[state] for _, figures in days], colour=_LOOKS[state][1])
        for state in shown
    ]
    return figure("Publications", traces, whole=True)


def phase_figure(days: Sequence[tuple[date, DayFigures]], phases: Sequence[str]) -> dict[str, Any]:
    """Mean time of each phase by day."""
    dates = [day for day, _ in days]
    traces = [bars(phase, dates, [figures.mean(phase) for _, figures in days]) for phase in phases]
    return figure("Time of one publication", traces, unit="s")


def lease_figure(days: Sequence[tuple[date, DayFigures]]) -> dict[str, Any]:
    """Return the plot of the times for which leases were held, by day."""
    dates = [day for day, _ in days]
    shares = (("half of them at most", 0.5), ("95 % of them at most", 0.95), ("longest", 1.0))
    traces = [line(name, dates, [figures.held_at(share) for _, figures in days]) for name, share in shares]
    return figure("Lease held", traces, unit="s")
