"""Commits: those that wait for one repository go together into one revision; out of the way of lease calls, fenced by
their leases, repeatable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from include.cvmfs import errors as cvmfs
from include.cvmfs.commit.commit import SwitchStep
from include.cvmfs.format.hashes import ObjectHash
from include.gateway.service.commits.ownership import Owned
from include.gateway.service.config import ConfigError, ServiceConfig
from include.gateway.service.leases.lease_rows import LeaseRow, StateError
from include.gateway.service.leases.lease_table import LeaseGone, LeaseTable, MayUse, Spent
from include.gateway.service.requests import INVALID_LEASE, CommitRequest, Refused
from include.gateway.service.telemetry import TRACE, Metrics
from include.storage.errors import StoreError

log = logging.getLogger(__name__)

GROUP_SIZE = 64
_THREADS = 1024  # made as they are needed; a repository takes one at a time, and waits for no other


class Point(Enum):
    """The points of a commit in their order, for tests; those of the switch are ``SwitchStep``'s, of the same names."""

    REQUEST_READ = "request read"
    QUEUED = "queued"
    TAKEN = "taken into a group"
    HEAD_READ = SwitchStep.HEAD_READ.value
    MERGED = SwitchStep.MERGED.value
    CATALOGS_STORED = SwitchStep.CATALOGS_STORED.value
    HISTORY_STORED = SwitchStep.HISTORY_STORED.value
    REFLOG_WRITTEN = SwitchStep.REFLOG_WRITTEN.value
    BEFORE_SWITCH = SwitchStep.BEFORE_SWITCH.value
    FENCED = SwitchStep.FENCED.value
    SWITCHED = SwitchStep.SWITCHED.value
    RECORDED = "outcome recorded"
    REPLYING = "replying"


OnPoint = Callable[[Point], None]


def pass_by(_: Point) -> None:
    """Do nothing at any point."""


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """Change that the holder of a lease wants committed; ``lease_path`` is ``""`` for the whole repository.

    ``generation``: of collections, as the holder saw it when he judged the change; ``""`` if he knows of none. Then it
    is judged here, by ``since``: how far collections were before the first payload came (``Look.mark``).
    """

    repository: str
    lease_path: str
    old_root: ObjectHash
    new_root: ObjectHash
    tag_name: str
    tag_description: str
    generation: str = ""
    since: str = ""


Fence = Callable[[Sequence[int]], Mapping[int, Exception]]


class Committer(Protocol):
    """Makes the revision of a group. Asks ``fence`` with the numbers of its members right before the manifest is
    replaced; if that names some of them, nothing is replaced, and the group is made again without them."""

    def commit(
        self, orders: Sequence[CommitOrder], *, fence: Fence, on_step: Callable[[SwitchStep], None]
    ) -> list[int | Exception]:
        """For each order of one repository its revision, or what stopped it: CvmfsError, StoreError, LeaseGone."""
        ...

    def reconfigure(self, config: ServiceConfig) -> None:
        """Serve another configuration from now on. Raises ConfigError, and the old one stays."""

    def close(self) -> None:
        """Let go of the repositories."""


# What a failed commit is called on the wire; the words of the stock gateway where it has one. The first fit counts.
REASONS: tuple[tuple[type[Exception], str], ...] = (
    (LeaseGone, INVALID_LEASE),
    (cvmfs.MergeError, "merge_error"),
    (cvmfs.BaseChanged, "base_mismatch"),
    (cvmfs.UnknownBase, "unknown_root"),
    (cvmfs.ManifestConflict, "manifest_conflict"),
    (cvmfs.ReflogError, "missing_reflog"),
    (cvmfs.HeadDamaged, "damaged_head"),
    (cvmfs.GenerationMoved, "generation_moved"),
    (cvmfs.TagError, "miscellaneous: tag"),
    (cvmfs.ObjectError, "unknown_root"),
    (cvmfs.CvmfsError, "miscellaneous"),
    (StoreError, "storage_error"),
    (Owned, "repository_owned"),
    (ConfigError, "miscellaneous"),
    (StateError, "could not begin transaction"),
)
_KNOWN = tuple(kind for kind, _ in REASONS)


def refusal_of(error: Exception) -> Refused:
    """The answer that a publisher gets for a commit's failure."""
    for kind, reason in REASONS:
        if isinstance(error, kind):
            return Refused(reason, str(error))
    return Refused("miscellaneous", "internal error: see the gateway's log by the trace of this reply")


@dataclass(eq=False, slots=True)
class _Waiting:
    """A commit that waits for its turn or has it."""

    digest: bytes
    row: LeaseRow
    request: CommitRequest
    may_use: MayUse
    outcome: asyncio.Future[int]
    trace: str
    since: float

    def order(self, since: str) -> CommitOrder:
        request = self.request
        return CommitOrder(
            self.row.repository, self.row.path, *request.roots(), request.tag_name, request.tag_description,
            request.generation, since,
        )  # fmt: skip


@dataclass(slots=True)
class _Line:
    """Commits that wait for one repository, in the order of their arrival."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    asked: dict[tuple[bytes, CommitRequest], asyncio.Future[int]] = field(default_factory=dict)
    worker: asyncio.Task[None] | None = None


class CommitQueue:
    """Waiting for a turn costs no thread. While a group is on its way to the store, the next one gathers."""

    def __init__(
        self,
        table: LeaseTable,
        committer: Committer,
        serves: Callable[[str], bool],
        *,
        metrics: Metrics | None = None,
        on_point: OnPoint = pass_by,
        group_size: int = GROUP_SIZE,
    ) -> None:
        self._table = table
        self._committer = committer
        self._serves = serves
        self._metrics = metrics or Metrics()
        self._on_point = on_point
        self._group_size = group_size
        self._lines: dict[str, _Line] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway-commit")

    async def commit(self, digest: bytes, request: CommitRequest, may_use: MayUse) -> int:
        """Commit what a publisher asks for, and return the revision. ``may_use``: see `MayUse`. Raises Refused.

        It goes on when the caller hangs up: a repetition of the call then finds its outcome.
        """
        row = self._look(digest, request, may_use)
        if isinstance(row, int):
            return row  # the revision: the commit is finished
        line = self._lines.setdefault(row.repository, _Line())
        outcome = line.asked.get((digest, request))
        if outcome is None:
            outcome = asyncio.get_running_loop().create_future()
            line.asked[digest, request] = outcome
            line.waiting.append(_Waiting(digest, row, request, may_use, outcome, TRACE.get(), time.perf_counter()))
            self._metrics.queue.labels(row.repository).set(len(line.waiting))
            self._on_point(Point.QUEUED)
            if line.worker is None:
                line.worker = asyncio.create_task(self._work(row.repository, line))
        return await asyncio.shield(outcome)

    def waiting(self) -> int:
        """Return how many commits wait for their turn."""
        return sum(len(line.waiting) for line in self._lines.values())

    async def close(self) -> None:
        """Wait for the commits that are under way or wait."""
        await asyncio.gather(*[line.worker for line in self._lines.values() if line.worker], return_exceptions=True)
        self._threads.shutdown()

    async def _work(self, repository: str, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        while line.waiting:
            group = self._take(line)
            self._metrics.queue.labels(repository).set(len(line.waiting))
            try:
                outcomes = await loop.run_in_executor(self._threads, self._run, group) if group else []
            except Exception as error:  # noqa: BLE001 - only this task can answer those who wait
                outcomes = [error] * len(group)
            for waiting, outcome in zip(group, outcomes, strict=True):
                self._answer(line, waiting, outcome)
        line.worker = None

    def _take(self, line: _Line) -> list[_Waiting]:
        """The next group: as many as may go together, no lease twice."""
        group: list[_Waiting] = []
        later: list[_Waiting] = []
        digests: set[bytes] = set()
        while line.waiting and len(group) < self._group_size:
            waiting = line.waiting.popleft()
            if waiting.digest in digests:
                later.append(waiting)
                continue
            try:
                # While it waited, the same commit may have been finished or the lease may have run out.
                row = self._look(waiting.digest, waiting.request, waiting.may_use)
            except (Refused, StateError) as refused:
                self._answer(line, waiting, refused)
                continue
            if isinstance(row, int):
                self._answer(line, waiting, row)
                continue
            waiting.row = row
            digests.add(waiting.digest)
            group.append(waiting)
        line.waiting.extendleft(reversed(later))
        return group

    def _answer(self, line: _Line, waiting: _Waiting, outcome: int | Exception) -> None:
        line.asked.pop((waiting.digest, waiting.request), None)
        if isinstance(outcome, int):
            waiting.outcome.set_result(outcome)
            result = "committed"
        else:
            refusal = outcome if isinstance(outcome, Refused | StateError) else refusal_of(outcome)
            waiting.outcome.set_exception(refusal)
            waiting.outcome.exception()  # the caller may have hung up
            result = refusal.reason if isinstance(refusal, Refused) else "state trouble"
        self._metrics.commits.labels(waiting.row.repository, result).inc()
        self._metrics.commit_seconds.labels(waiting.row.repository).observe(time.perf_counter() - waiting.since)

    def _look(self, digest: bytes, request: CommitRequest, may_use: MayUse) -> LeaseRow | int:
        row = self._table.valid(digest)
        finished = None if row else self._table.finished(digest)
        owned = row or finished
        if owned is None or not self._serves(owned.repository) or not may_use(owned):
            raise Refused(INVALID_LEASE)
        roots = request.roots()
        request.check_tag()
        if row is not None:
            return row
        if finished is None or not finished.made_from(*roots):
            raise Refused(INVALID_LEASE, "the lease was spent on another commit")
        return finished.revision

    def _run(self, group: Sequence[_Waiting]) -> list[int | Exception]:
        """In a thread: make the revision, and record the outcome of each before any publisher is answered."""
        TRACE.set(group[0].trace)
        repository = group[0].row.repository
        began = time.perf_counter()
        self._on_point(Point.TAKEN)
        try:
            orders = [waiting.order(self._table.payload_generation(waiting.row.epoch)) for waiting in group]
            outcomes = self._committer.commit(
                orders,
                fence=lambda numbers: self._fence(group, numbers),
                on_step=lambda step: self._on_point(Point(step.value)),
            )
        except Exception as error:  # noqa: BLE001 - it is the outcome of each of the group
            outcomes = [error] * len(group)
        self._record(group, outcomes)
        self._on_point(Point.RECORDED)
        seconds = time.perf_counter() - began
        self._metrics.group_size.labels(repository).observe(len(group))
        self._metrics.group_seconds.labels(repository).observe(seconds)
        done = {outcome for outcome in outcomes if isinstance(outcome, int)}
        log.info(
            "group committed" if done else "group refused",
            extra={
                "fields": {
                    "repository": repository, **({"revision": max(done)} if done else {}), "commits": len(group),
                    "refused": sum(isinstance(outcome, Exception) for outcome in outcomes),
                    "seconds": round(seconds, 6), "traces": [waiting.trace for waiting in group],
                }
            },
        )  # fmt: skip
        return outcomes

    def _fence(self, group: Sequence[_Waiting], numbers: Sequence[int]) -> dict[int, Exception]:
        gone = self._table.begin_switch([(group[number].digest, group[number].row.epoch) for number in numbers])
        return {numbers[place]: problem for place, problem in gone.result().items()}

    def _record(self, group: Sequence[_Waiting], outcomes: Sequence[int | Exception]) -> None:
        """The outcome is valid whether or not it can be recorded; if it cannot, the lease ends by expiry."""
        spent, failed = [], []
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, int):
                spent.append(Spent(waiting.digest, waiting.row, waiting.request.roots(), outcome))
                continue
            failed.append(waiting.row.epoch)
            expected = isinstance(outcome, _KNOWN)
            fields = {"path": waiting.row.full_path, "trace": waiting.trace, "detail": str(outcome)}
            log.warning(
                "commit failed",
                extra={"fields": {"reason": refusal_of(outcome).reason, **fields}},
                exc_info=None if expected else outcome,
            )
        try:
            self._table.settle(spent, failed).result()
        except StateError as error:
            log.error("commit outcomes not recorded", extra={"fields": {"detail": str(error)}})
