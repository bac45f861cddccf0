"""Commits: one at a time per repository, out of the way of lease calls, fenced by the lease, repeatable."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from include.cvmfs import errors as cvmfs
from include.cvmfs.hashes import ObjectHash
from include.gateway.service.lease_rows import LeaseRow
from include.gateway.service.lease_table import LeaseGone, LeaseTable
from include.gateway.service.replies import INVALID_LEASE, Refused
from include.gateway.service.requests import CommitRequest
from include.gateway.service.writer import StateError
from include.storage.errors import StoreError

log = logging.getLogger(__name__)

_THREADS = 16


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """What the holder of a lease wants committed; ``lease_path`` is ``""`` for the whole repository.

    ``generation``: of collections, as the holder saw it when he judged the change; ``""`` if he knows of none.
    """

    repository: str
    lease_path: str
    old_root: ObjectHash
    new_root: ObjectHash
    tag_name: str
    tag_description: str
    generation: str = ""


class Committer(Protocol):
    """Makes the revision. Calls ``before_switch`` right before the manifest is replaced, and stops if that raises."""

    def commit(self, order: CommitOrder, *, before_switch: Callable[[], None]) -> int:
        """The new revision. Raises CvmfsError, StoreError, or what ``before_switch`` raised."""
        ...


# What a failed commit is called on the wire; the words of the stock gateway where it has one. The first fit counts.
REASONS: tuple[tuple[type[Exception], str], ...] = (
    (LeaseGone, INVALID_LEASE),
    (cvmfs.LeaseExpired, INVALID_LEASE),
    (cvmfs.MergeError, "merge_error"),
    (cvmfs.BaseChanged, "base_mismatch"),
    (cvmfs.ManifestConflict, "manifest_conflict"),
    (cvmfs.ReflogError, "missing_reflog"),
    (cvmfs.GenerationMoved, "generation_moved"),
    (cvmfs.TagError, "miscellaneous: tag"),
    (cvmfs.ObjectError, "unknown_root"),
    (cvmfs.CvmfsError, "miscellaneous"),
    (StoreError, "storage_error"),
    (StateError, "could not begin transaction"),
)


def refusal_of(error: Exception) -> Refused:
    """How a commit's failure is told to the publisher."""
    for kind, reason in REASONS:
        if isinstance(error, kind):
            return Refused(reason, str(error))
    return Refused("miscellaneous", "internal error: see the gateway's log by the trace of this reply")


class CommitQueue:
    """Waiting for a turn costs no thread; each repository's commits run in the order of their arrival."""

    def __init__(self, table: LeaseTable, committer: Committer, repositories: Iterable[str]) -> None:
        self._table = table
        self._committer = committer
        self._turn = {name: asyncio.Lock() for name in repositories}
        self._threads = ThreadPoolExecutor(max(1, min(_THREADS, len(self._turn))), thread_name_prefix="gateway-commit")
        self._running: set[asyncio.Task[int]] = set()

    async def commit(self, digest: bytes, request: CommitRequest, may_use: Callable[[str, str], bool]) -> int:
        """The revision of the commit. ``may_use(key_id, repository)`` of the lease's owner. Raises Refused.

        It goes on when the caller hangs up: a repetition of the call then finds its outcome.
        """
        task = asyncio.create_task(self._commit(digest, request, may_use))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for the commits that run."""
        await asyncio.gather(*self._running, return_exceptions=True)
        self._threads.shutdown()

    async def _commit(self, digest: bytes, request: CommitRequest, may_use: Callable[[str, str], bool]) -> int:
        found = self._look(digest, request, may_use)
        if isinstance(found, int):
            return found
        async with self._turn[found.repository]:
            # While this one waited, the same commit may have been finished or the lease may have run out.
            found = self._look(digest, request, may_use)
            if isinstance(found, int):
                return found
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, context.run, self._run, digest, found, request)

    def _look(self, digest: bytes, request: CommitRequest, may_use: Callable[[str, str], bool]) -> LeaseRow | int:
        row = self._table.valid(digest)
        finished = None if row else self._table.finished(digest)
        owned = row or finished
        if owned is None or owned.repository not in self._turn or not may_use(owned.key_id, owned.repository):
            raise Refused(INVALID_LEASE)
        roots = request.roots()
        request.check_tag()
        if row is not None:
            return row
        if finished is None or not finished.made_from(*roots):
            raise Refused(INVALID_LEASE, "the lease was spent on another commit")
        return finished.revision

    def _run(self, digest: bytes, row: LeaseRow, request: CommitRequest) -> int:
        roots = request.roots()
        order = CommitOrder(
            row.repository, row.path, *roots, request.tag_name, request.tag_description, request.generation
        )
        try:
            revision = self._committer.commit(
                order, before_switch=lambda: self._table.begin_switch(digest, row.epoch).result()
            )
        except Exception as error:
            refusal = refusal_of(error)
            known = isinstance(error, tuple(kind for kind, _ in REASONS))
            log.warning(
                "commit failed",
                extra={"fields": {"path": row.full_path, "reason": refusal.reason, "detail": str(error)}},
                exc_info=None if known else error,
            )
            self._settle(lambda: self._table.abandon(row.epoch).result())
            raise refusal from None
        self._settle(lambda: self._table.finish(digest, row, roots, revision).result())
        return revision

    @staticmethod
    def _settle(write: Callable[[], None]) -> None:
        """The outcome stands whether or not it can be written down; the lease then ends by expiry."""
        try:
            write()
        except StateError as error:
            log.error("commit outcome not recorded", extra={"fields": {"detail": str(error)}})
