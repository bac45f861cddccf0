"""A pass: components take batch after batch, in turns, until nothing is due or the time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from include.errors import NightshiftError
from include.stageout.components.archivist import archive
from include.stageout.components.cleaner import clean
from include.stageout.components.monitor import MonitorReport, monitor
from include.stageout.components.register import register
from include.stageout.components.reporter import read_back, report
from include.stageout.components.retry_manager import retry_waiting
from include.stageout.components.submitter import submit
from include.stageout.opening import Stageout

BATCH = 1000


class StageoutBatch(Protocol):
    """A component: one batch of it. Its report is a dataclass; nothing was due if all of its whole numbers are 0."""

    def __call__(self, stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> Any: ...


def _monitor(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> MonitorReport:
    """The monitor takes jobs, not files."""
    return monitor(stageout, now=now, limit=max(1, limit // stageout.settings.files_per_job))


COMPONENTS: Mapping[str, StageoutBatch] = {
    "submit": submit,
    "monitor": _monitor,
    "report": report,
    "read_back": read_back,
    "retry": retry_waiting,
    "register": register,
    "clean": clean,
    "archive": archive,
}
"""By the names that tasks give them."""


class PassEnd(Enum):
    """Why a pass ended."""

    IDLE = "nothing is due"
    TIME = "the time is over"


@dataclass(slots=True)
class ComponentAccount:
    """What one component did in a pass: its batches, and the sums of their counts. `fault`: why it ended early."""

    batches: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    fault: NightshiftError | None = None

    def to_json(self) -> dict[str, Any]:
        """Without the counts that are 0."""
        fault = {} if self.fault is None else {"fault": self.fault.code}
        return {"batches": self.batches, **{name: count for name, count in self.counts.items() if count}, **fault}


@dataclass(frozen=True, slots=True)
class PassAccount:
    """What a pass did, by component."""

    ended: PassEnd
    components: Mapping[str, ComponentAccount]

    def require_sound(self) -> None:
        """Raise the error of the first component that ended early."""
        for account in self.components.values():
            if account.fault is not None:
                raise account.fault

    def to_json(self) -> dict[str, Any]:
        """The account, for the task's result."""
        return {"ended": self.ended.value, **{name: component.to_json() for name, component in self.components.items()}}


def run_pass(
    stageout: Stageout,
    components: Mapping[str, StageoutBatch],
    *,
    now: Callable[[], datetime],
    left: Callable[[], bool],
    limit: int = BATCH,
    say: Callable[[str, Mapping[str, int]], None] = lambda _, __: None,
) -> PassAccount:
    """Run batches of the components in turns. A component that raises an error ends early, and no other with it.

    Args:
        stageout: What the components work with.
        components: By name, in the order of their turns.
        now: The clock, UTC.
        left: Whether there is time for a further batch. A batch that has begun is finished.
        limit: Rows of a batch at most.
        say: Takes the counts of each batch that found something.
    """
    accounts = {name: ComponentAccount() for name in components}
    at_work = dict(components)
    while at_work:
        busy = False
        for name, component in list(at_work.items()):
            if not left():
                return PassAccount(PassEnd.TIME, accounts)
            account = accounts[name]
            try:
                counts, found = counts_of(component(stageout, now=now, limit=limit))
            except NightshiftError as error:
                account.fault = error
                del at_work[name]
                continue
            account.batches += 1
            account.counts.update(counts)
            busy |= found
            if found:
                say(name, counts)
        if not busy:
            break
    return PassAccount(PassEnd.IDLE, accounts)


def counts_of(report: Any) -> tuple[dict[str, int], bool]:
    """The counts of a batch's report, those of mappings by their keys, and whether anything was due."""
    found: dict[str, int] = {}
    due = False
    for name in (column.name for column in fields(report)):
        value = getattr(report, name)
        if isinstance(value, int):
            found[name] = int(value)
            due |= value != 0
        elif isinstance(value, Mapping):
            found |= {f"{name}: {key}": count for key, count in value.items() if isinstance(count, int)}
    return {name: count for name, count in found.items() if count}, due
