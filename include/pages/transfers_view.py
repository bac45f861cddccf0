"""The contents of the pages of transfers: phases of states, tables, plots. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from include.pages.charts import bars, figure
from include.pages.transfers_rows import EndedFiles
from include.stageout.archive import MoveRecord
from include.stageout.retry import RETRY_RULES, TransferFailureClass
from include.stageout.states import TransferState
from include.stageout.status import TransferCount

SHOWN = 30
"""Rows of a table of counts; the others are one link away."""
_T = TransferState


@dataclass(frozen=True, slots=True)
class StatePhase:
    """States that people take together; `kind`: their style."""

    name: str
    kind: str
    states: tuple[TransferState, ...]

    @property
    def query(self) -> str:
        """The states as the page's parameter has them."""
        return ",".join(state.value for state in self.states)


PHASES = (
    StatePhase("waiting", "wait", (_T.NEW, _T.CLAIMED)),
    # FTS decides how many files of a link are active
    StatePhase("queued at FTS", "wait", (_T.SUBMITTED,)),
    StatePhase("active at FTS", "busy", (_T.ACTIVE,)),
    StatePhase("copied", "busy", (_T.COPIED, _T.DONE, _T.REGISTERED, _T.CLEANING)),
    StatePhase("retried later", "wait", (_T.RETRY_WAIT,)),
    StatePhase("needs credential", "bad", (_T.NEEDS_CREDENTIAL,)),
    StatePhase("failed", "bad", (_T.FAILED,)),
    StatePhase("killed", "wait", (_T.KILLING, _T.KILLED)),
    StatePhase("complete", "good", (_T.CLEANED, _T.KEPT)),
)
_PHASE_OF: Mapping[TransferState, StatePhase] = {state: phase for phase in PHASES for state in phase.states}


@dataclass(slots=True)
class CountedGroup:
    """Transfers with one thing in common. `query`: what the list of them is asked with."""

    name: str
    query: Mapping[str, str]
    files: Counter[str] = field(default_factory=Counter)

    @property
    def open(self) -> int:
        """Return the number of incomplete ones."""
        return self.files.total() - self.files["complete"]


def kind_of(state: TransferState) -> str:
    """The style of a state."""
    return _PHASE_OF[state].kind


_KEYS: Mapping[str, Callable[[TransferCount], set[tuple[str, ...]]]] = {
    "user": lambda count: {(count.owner,)},
    "link": lambda count: {(count.source, count.destination)},
    "site": lambda count: {(count.source,), (count.destination,)},
}


def groups(counts: Iterable[TransferCount], common: str) -> list[CountedGroup]:
    """Counts by what they have in common, those with the most files that are not complete first.

    Args:
        counts: There may be tens of thousands.
        common: `user`, `link` or `site`, at either end of a link.
    """
    query, keys = ("source", "destination") if common == "link" else (common,), _KEYS[common]
    files: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for count in counts:
        phase = _PHASE_OF[count.state].name
        for key in keys(count):
            files[key][phase] += count.files
    groups = [CountedGroup(" to ".join(key), dict(zip(query, key, strict=True)), sums) for key, sums in files.items()]
    return sorted(groups, key=lambda group: (-group.open, group.name))


def retries_of(failure: str | None) -> str:
    """Return the treatment of a class of failures."""
    by_name = {kind.value: kind for kind in TransferFailureClass}
    if failure not in by_name:
        return ""
    if by_name[failure] is TransferFailureClass.CREDENTIAL:
        return "waits for a credential"
    retries = RETRY_RULES[by_name[failure]].retries
    return f"retried {retries} times" if retries else "not retried"


def ended_figure(ended: Sequence[EndedFiles], *, daily: bool) -> dict[str, Any]:
    """Transfers by the hour of their end, or by its day."""
    times = [files.at.date() if daily else files.at for files in ended]
    traces = [
        bars("complete", times, [files.complete for files in ended], colour="#10b981"),
        bars("failed", times, [files.failed for files in ended], colour="#ef4444"),
    ]
    return figure(f"Files {'a day' if daily else 'an hour'}", traces, whole=True)


@dataclass(frozen=True, slots=True)
class ShownMove:
    """A move of a transfer, and for how long it was in the state before."""

    move: MoveRecord
    kind: str
    after_s: float | None


def shown_moves(created_at: datetime, moves: Sequence[MoveRecord]) -> list[ShownMove]:
    """The history of a transfer, the oldest move first."""
    times = [created_at, *(move.moved_at for move in moves)]
    waits = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    return [ShownMove(move, kind_of(_T(move.state)), wait) for move, wait in zip(moves, waits, strict=True)]
