"""The contents of the pages of transfers: phases of states, tables, plots. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from include.pages.charts import bars, figure
from include.pages.transfers_rows import EndedFiles, LinkRate
from include.stageout.archive import MoveRecord
from include.stageout.findings import FindingKind
from include.stageout.retry import RETRY_RULES, TransferFailureClass
from include.stageout.states import TRANSFER_ENDED, TransferState
from include.stageout.status import TransferCount

SHOWN = 30
"""Rows of a table of counts; the others are one link away."""
LINKS_DRAWN, MINUTE = 7, timedelta(minutes=1)
"""Links with a colour of their own."""
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
    StatePhase("retracted", "wait", (_T.RETRACTED,)),
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


def groups(counts: Iterable[TransferCount]) -> dict[str, list[CountedGroup]]:
    """Counts by user, by link and by site at either end of a link, those with the most incomplete files first.

    Args:
        counts: There may be tens of thousands.
    """
    users: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    links: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    sites: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for count in counts:
        phase = _PHASE_OF[count.state].name
        users[(count.owner,)][phase] += count.files
        links[count.source, count.destination][phase] += count.files
    for link, files in links.items():
        for site in set(link):
            sites[(site,)].update(files)
    return {
        "user": _groups(users, "user"),
        "link": _groups(links, "source", "destination"),
        "site": _groups(sites, "site"),
    }


def _groups(files: Mapping[tuple[str, ...], Counter[str]], *query: str) -> list[CountedGroup]:
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


_F = TransferFailureClass
_HELP: Mapping[TransferFailureClass, str] = {
    _F.SOURCE_MISSING: "Write the file again, then resubmit.",
    _F.SOURCE_CHECKSUM: "The source is not what was declared. Write it again, then resubmit.",
    _F.DESTINATION_EXISTS: "Another file has this name. Move it away, then resubmit; or send to another name.",
    _F.CREDENTIAL: "Renew your proxy or token. The files go on by themselves.",
    _F.PERMISSION: "Ask the site for the right to write there, then resubmit.",
    _F.QUOTA: "Delete files of yours at the destination, then resubmit.",
    _F.NO_SPACE: "The destination is full; its site has to make room.",
    _F.INVALID: "The request cannot work as it is: correct the name, and request it again.",
    _F.REGISTRATION: "The catalogue has another file of this name. Remove one of both there, then resubmit.",
    _F.DESTINATION_CHECKSUM: "The storage wrote something else. If it happens again, tell its site.",
    _F.QUEUE_TIMEOUT: "The link is slow: its files wait at FTS for too long.",
    _F.CANCELED: "FTS canceled it; the reason says why, as for a banned storage.",
}


def help_of(state: TransferState, failure: str | None) -> str:
    """Say what helps transfers that failed, wait or are held."""
    if state not in (_T.FAILED, _T.RETRY_WAIT, _T.NEEDS_CREDENTIAL):
        return "They go on when the ban or the limit ends. An operator can look at the FTS server."
    kinds = {kind.value: kind for kind in TransferFailureClass}
    if failure in kinds and (text := _HELP.get(kinds[failure])):
        return text
    return "Resubmit when the cause is gone." if state is _T.FAILED else "It is tried again by itself."


_K = FindingKind
_DAGS_RUN, _CREDENTIAL = "Check that the DAGs of stage-out are not paused.", "If it stays, check the user's credential."
_CHANGED = "Find out who changed the copy, then send the source again to another name."
_FINDING_HELP: Mapping[FindingKind, str] = {
    _K.OLD_STATE: f"See its history: the reason says what it waits for. {_DAGS_RUN}",
    _K.HELD: "It goes on when the ban or the limit ends.",
    _K.CLAIM_OVER: _DAGS_RUN,
    _K.JOB_OVER: "This is a bug: report it with the history of the transfer.",
    _K.JOB_UNKNOWN: f"The monitor asks again at once. {_CREDENTIAL}",
    _K.JOB_ENDED: f"The monitor asks again at once. {_CREDENTIAL}",
    _K.JOB_RUNS: "Cancel the job at FTS: it may still write.",
    _K.SERVER_UNASKED: "Check the FTS server and its connection.",
    _K.COPY_MISSING: _CHANGED,
    _K.COPY_DIFFERS: _CHANGED,
    _K.UNKNOWN_FILE: "Ask the user; delete it by hand, or with: nightshift stageout census --delete.",
    _K.SITE_UNASKED: "Check the site: nightshift site probe.",
}
"""Short form of the table in docs/stage-out.md."""


def help_of_finding(kind: str) -> str:
    """Say what helps against a fault that the census found."""
    kinds = {finding.value: finding for finding in FindingKind}
    return _FINDING_HELP.get(kinds[kind], "") if kind in kinds else ""


@dataclass(frozen=True, slots=True)
class WorkflowProgress:
    """Files of a workflow. `left`: those that move on by themselves; `lately`: complete ones within a time."""

    files: int
    complete: int
    failed: int
    left: int
    lately: int
    within: timedelta

    @property
    def left_s(self) -> float | None:
        """Return in how many seconds it ends at the rate of late; None: no file became complete, or none is left."""
        return self.left * self.within.total_seconds() / self.lately if self.lately and self.left else None


def progress_of(files: Mapping[TransferState, int], lately: int, within: timedelta) -> WorkflowProgress:
    """The progress of a workflow, by its files of each state, archived or not."""
    ended = {state: files.get(state, 0) for state in (*TRANSFER_ENDED, _T.NEEDS_CREDENTIAL)}
    total = sum(files.values())
    left = total - sum(ended.values())
    return WorkflowProgress(total, ended[_T.CLEANED] + ended[_T.KEPT], ended[_T.FAILED], left, lately, within)


def ended_figure(ended: Sequence[EndedFiles], *, daily: bool) -> dict[str, Any]:
    """Transfers by the hour of their end, or by its day."""
    times = [files.at.date() if daily else files.at for files in ended]
    traces = [
        bars("complete", times, [files.complete for files in ended], colour="#10b981"),
        bars("failed", times, [files.failed for files in ended], colour="#ef4444"),
    ]
    return figure(f"Files {'a day' if daily else 'an hour'}", traces, whole=True)


def rate_figure(rates: Sequence[LinkRate], since: datetime, now: datetime) -> dict[str, Any]:
    """Bytes a second of each link by the minute, or files a minute where no size is known.

    Args:
        rates: Of the links, the most files first; the last ones are drawn together.
        since: Beginning of what is counted.
        now: End of it: the last minute is as long as it has lasted.
    """
    sized = any(rate.bytes for rate in rates)
    ordered = sorted(rates, key=lambda rate: -rate.bytes) if sized else list(rates)
    first = since.replace(second=0, microsecond=0)
    times = [first + number * MINUTE for number in range(int((now - first) / MINUTE) + 1)]
    lengths = [max(1.0, (min(now, time + MINUTE) - max(since, time)).total_seconds()) for time in times]

    def values(some: Sequence[LinkRate]) -> list[float | None]:
        sums = [[rate.minutes.get(time, (0, 0)) for rate in some] for time in times]
        if sized:
            return [sum(size for _, size in cell) / length for cell, length in zip(sums, lengths, strict=True)]
        return [sum(files for files, _ in cell) for cell in sums]

    traces = [bars(f"{rate.source} to {rate.destination}", times, values([rate])) for rate in ordered[:LINKS_DRAWN]]
    if others := ordered[LINKS_DRAWN:]:
        traces.append(bars(f"{len(others)} others", times, values(others), colour="#64748b"))
    return figure("Throughput", traces, unit="B/s") if sized else figure("Files a minute", traces, whole=True)


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
