"""Transfers of the embedded FTS: jobs that are accepted, scheduled, copied and kept."""

from __future__ import annotations

import logging
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from include.fts.states import FailureReason, FailureScope, FileState
from lab.fts.callers import Caller
from lab.fts.config import FtsServiceConfig
from lab.fts.copies.copier import Copier, CopyEnd, CopyOrder, recoverable
from lab.fts.copies.simulated import SCHEME, Namespace, SimulatedCopier
from lab.fts.errors import FtsRequestRefused, bad_request
from lab.fts.records import FileRecord, JobRecord, Link, StateFile, move, recount
from lab.fts.submission import parsed_job


class Scheduler:
    """Queues of waiting files. Entries are dropped when they come up and their file no longer waits.

    `active_per_link`: how many files of a link are copied at the same time.
    """

    def __init__(self, active_per_link: int) -> None:
        self.active_per_link = active_per_link
        self.active: Counter[Link] = Counter()
        self._waiting: dict[Link, list[tuple[int, int, FileRecord]]] = {}
        self._later: list[tuple[float, int, FileRecord]] = []
        self._deadlines: list[tuple[float, int, FileRecord]] = []

    def add(self, file: FileRecord, now: float) -> None:
        """Queue a file that waits: also one that waits again, or has another priority than before."""
        ends = file.job.options.queue_ends
        if ends is not None:
            heappush(self._deadlines, (ends, file.file_id, file))
        if file.due > now:
            heappush(self._later, (file.due, file.file_id, file))
        else:
            heappush(self._waiting.setdefault(file.link, []), (-file.job.priority, file.file_id, file))

    def startable(self, now: float) -> Iterator[FileRecord]:
        """Files to start now; each counts as active from here on, until `release`."""
        while self._later and self._later[0][0] <= now:
            file = heappop(self._later)[2]
            heappush(self._waiting.setdefault(file.link, []), (-file.job.priority, file.file_id, file))
        for link, queue in list(self._waiting.items()):
            while queue and self.active[link] < self.active_per_link:
                priority, _, file = heappop(queue)
                # an entry of an earlier priority, or from before a retry or cancel
                if file.state is FileState.SUBMITTED and file.due <= now and -priority == file.job.priority:
                    self.active[link] += 1
                    yield file
            if not queue:
                del self._waiting[link]

    def release(self, file: FileRecord) -> None:
        """A file's copy has ended."""
        self.active[file.link] -= 1
        if not self.active[file.link]:
            del self.active[file.link]

    def overdue(self, now: float) -> Iterator[FileRecord]:
        """Files that have waited for longer than their job allows."""
        while self._deadlines and self._deadlines[0][0] <= now:
            file = heappop(self._deadlines)[2]
            if file.state in (FileState.SUBMITTED, FileState.ON_HOLD):
                yield file

    def links(self) -> dict[Link, tuple[int, int]]:
        """Count the active and the waiting files of each link."""
        waiting = Counter(
            {
                link: sum(file.state is FileState.SUBMITTED for _, _, file in queue)
                for link, queue in self._waiting.items()
            }
        )
        waiting.update(file.link for _, _, file in self._later if file.state is FileState.SUBMITTED)
        return {link: (self.active[link], waiting[link]) for link in {*self.active, *waiting}}


log = logging.getLogger(__name__)

RETRY_DELAY_S = 120.0
"""FTS's own, for jobs that give none."""
STORAGE, USER = "se", "dn"
EVERY_VO = "*"
_CANCELED = "Job canceled by the user"
_QUEUED_TOO_LONG = "Job has been canceled because it stayed in the queue for too long"
_BANNED = {STORAGE: "Storage banned", USER: "User banned"}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Transfers:
    """All jobs of all users. It is used by one thread; copiers do their work in others."""

    def __init__(self, config: FtsServiceConfig, state: StateFile, copiers: Mapping[str, Copier], now: float) -> None:
        """``copiers``: by the scheme of the source and destination; the simulated one is made here."""
        self.namespace = Namespace()
        self.namespace.names.update(state.names())
        self.simulated = SimulatedCopier(self.namespace, config.model)
        self._copiers: dict[str, Copier] = {**copiers, SCHEME: self.simulated}
        self._distinct = list({id(copier): copier for copier in self._copiers.values()}.values())
        self._config = config
        self._state = state
        self.scheduler = Scheduler(config.active_per_link)
        self._jobs: dict[str, JobRecord] = {}
        self._files: dict[int, FileRecord] = {}
        self._ended: deque[JobRecord] = deque()
        self.bans: dict[tuple[str, str, str], dict[str, Any]] = {
            (kind, name, vo): document for kind, name, vo, document in state.bans()
        }
        """By kind, name, and the VO whose jobs they are for."""
        self.delegations = state.delegations()
        for job in state.live_jobs():
            self._jobs[job.job_id] = job
            for file in job.files:
                if not file.state.terminal:
                    self._files[file.file_id] = file
                    self.scheduler.add(file, now)
                copier = copiers.get(file.link[1].partition("://")[0])
                if copier is not None and file.state is not FileState.FINISHED:
                    copier.clean(file.destination, file.draft)
            if job.ended is not None:
                self._ended.append(job)
        self._ended = deque(sorted(self._ended, key=lambda job: job.ended or 0.0))

    # -- what callers ask for

    def submit(self, caller: Caller, body: bytes, now: float) -> str:
        """A new job; its id. Raises FtsRequestRefused."""
        self._may_submit(caller, now)
        job = parsed_job(body, caller, first_file=self._state.next_file, now=now)
        if job.job_id in self._jobs or self._state.archived_job(job.job_id):
            raise FtsRequestRefused(409, "The sid provided by the user is duplicated")
        held = self._held_links(job)
        self._state.next_file += len(job.files)
        recount(job)
        self._jobs[job.job_id] = job
        self._state.add(job)
        for file in job.files:
            self._files[file.file_id] = file
            if file.link in held:
                move(file, FileState.ON_HOLD, now)
                self._state.file_changed(file)
            self.scheduler.add(file, now)
        return job.job_id

    def job(self, caller: Caller, job_id: str) -> JobRecord:
        """A job of the caller. Raises FtsRequestRefused, 404 or 403."""
        job = self._jobs.get(job_id)
        if job is None:
            raise FtsRequestRefused(404, f'No job with the id "{job_id[:64]}" has been found')
        return _own(caller, job)

    def jobs(self, caller: Caller) -> Iterator[JobRecord]:
        """The caller's jobs, the newest first."""
        return (job for job in reversed(self._jobs.values()) if job.user == caller.user)

    def archived(self, caller: Caller, job_id: str) -> JobRecord:
        """A job of the caller that left the memory. Raises FtsRequestRefused, 404 or 403."""
        job = self._state.archived_job(job_id) if _UUID.fullmatch(job_id) else None
        if job is None:
            raise FtsRequestRefused(404, f'No job with the id "{job_id[:64]}" has been found in the archive')
        return _own(caller, job)

    def cancel(self, job: JobRecord, now: float) -> bool:
        """Cancel what has not ended of a job; False if all had."""
        if job.state.terminal:
            return False
        job.reason = _CANCELED
        for file in job.files:
            self._cancel(file, _CANCELED, now)
        return True

    def cancel_files(self, job: JobRecord, file_ids: Sequence[str], now: float) -> list[str]:
        """Cancel some files of a job; FTS's answer for each. Raises FtsRequestRefused."""
        if job.options.job_type != "N":
            raise bad_request("Multihop or reuse jobs must be cancelled at once (/jobs/id)")
        files = {str(file.file_id): file for file in job.files}
        answers = []
        for file_id in file_ids:
            file = files.get(file_id)
            if file is not None:
                self._cancel(file, None, now, outlived=True)
            answers.append("File does not belong to the job" if file is None else file.state.value)
        return answers

    def prioritize(self, job: JobRecord, priority: int | None, now: float) -> bool:
        """Give a job another priority; None leaves the one that it has. False if it has ended."""
        if job.state.terminal or priority is None:
            return not job.state.terminal
        job.priority = priority
        self._state.job_changed(job)
        for file in job.files:
            if file.state is FileState.SUBMITTED:
                self.scheduler.add(file, now)
        return True

    def ban(self, kind: str, name: str, vo: str, document: dict[str, Any], now: float) -> list[str]:
        """Ban a storage or user for the jobs of a VO; the ids of those that it touches."""
        self.bans[kind, name, vo] = document
        self._state.ban(kind, name, vo, document)
        touched: dict[str, None] = {}
        waits = document["status"] in ("WAIT", "WAIT_AS")
        for file in list(self._files.values()):
            banned = name in file.link if kind == STORAGE else name == file.job.user
            if banned and vo in (EVERY_VO, file.job.vo):
                touched[file.job.job_id] = None
                if not waits:
                    if kind == USER:
                        file.job.reason = _BANNED[USER]
                    self._cancel(file, _BANNED[kind], now, outlived=True)
                elif file.state is FileState.SUBMITTED:
                    move(file, FileState.ON_HOLD, now)
                    self._state.file_changed(file)
        return list(touched)

    def unban(self, kind: str, name: str, vo: str, now: float) -> None:
        """End a ban, also one for every VO; files that wait for it go on, unless they wait for another one too."""
        for of in {vo, EVERY_VO}:
            if self.bans.pop((kind, name, of), None) is not None:
                self._state.ban(kind, name, of, None)
        for file in self._files.values():
            on_hold = file.state is FileState.ON_HOLD and name in file.link
            if on_hold and not any(self._bans(file.link, file.job.vo)):
                move(file, FileState.SUBMITTED, now)
                self._state.file_changed(file)
                self.scheduler.add(file, now)

    def forget(self, job_id: str, now: float) -> bool:
        """Lose a job, as a fault: the service does not know it any more. False if it did not know it."""
        job = self._jobs.get(job_id)
        if job is None:
            return False
        self.cancel(job, now)
        self.flush()
        del self._jobs[job_id]
        self._state.forgotten(job)
        return True

    def delegate(self, user: str, document: dict[str, Any] | None) -> None:
        """Keep what a user has delegated; None removes it."""
        if document is None:
            self.delegations.pop(user, None)
        else:
            self.delegations[user] = document
        self._state.delegation(user, document)

    # -- what happens by itself

    def tick(self, now: float) -> None:
        """End what has ended, start what can start."""
        for copier in self._distinct:
            for end in copier.ended(now):
                self._copied(end, now)
        for file in self.scheduler.overdue(now):
            file.job.reason = _QUEUED_TOO_LONG
            self._cancel(file, _QUEUED_TOO_LONG, now)
        for file in self.scheduler.startable(now):
            self._start(file, now)
        while self._ended and now - (self._ended[0].ended or now) >= self._config.archive_after_s:
            job = self._ended.popleft()
            if self._jobs.pop(job.job_id, None) is not None:
                self._state.archived(job)

    def flush(self) -> None:
        """Write what changed since the last call; before that, nothing of it is replied. Raises sqlite3.Error."""
        self._state.flush(self.namespace.changed)

    def close(self) -> None:
        for copier in self._distinct:
            copier.close()
        self.flush()
        self._state.close()

    # -- one file

    def _start(self, file: FileRecord, now: float) -> None:
        move(file, FileState.ACTIVE, now)
        options, scheme = file.job.options, file.link[0].partition("://")[0]
        copier = self._copiers.get(scheme)
        if copier is None or self._copiers.get(file.link[1].partition("://")[0]) is not copier:
            text = f"No copier for {file.link[0]} to {file.link[1]}: Protocol not supported"
            self._copied(CopyEnd(file.file_id, FailureReason(FailureScope.GENERAL_FAILURE, 93, text)), now)
            return
        overwrite = options.overwrite or (options.overwrite_on_retry and file.retry > 0)
        copier.start(
            CopyOrder(
                file.file_id, file.source, file.destination, file.checksum, options.verify, overwrite,
                options.strict_copy, options.timeout_s, file.tokens, file.draft,
            ),
            now,
        )  # fmt: skip

    def _copied(self, end: CopyEnd, now: float) -> None:
        if end.file_id not in self._files:
            return  # it was canceled, and its copy went on
        file = self._files[end.file_id]
        self.scheduler.release(file)
        self._state.file_changed(file)
        if end.failure is None:
            file.size, file.reason = end.size, None
            file.checksum = file.checksum if file.checksum and ":" in file.checksum else end.checksum
            self._finish(file, FileState.FINISHED, now)
            return
        file.reason, file.recoverable = end.failure.format(), recoverable(end.failure)
        if file.recoverable and file.retry < file.job.options.retry:
            file.attempts = [*(file.attempts or ()), (now, file.reason)]
            file.retry += 1
            file.due = now + (file.job.options.retry_delay_s or RETRY_DELAY_S)
            move(file, FileState.SUBMITTED, now)
            if any(self._bans(file.link, file.job.vo)):
                move(file, FileState.ON_HOLD, now)
            self.scheduler.add(file, now)
        else:
            self._finish(file, FileState.FAILED, now)

    def _cancel(self, file: FileRecord, reason: str | None, now: float, *, outlived: bool = False) -> None:
        """Cancel a file; one that has ended stays as it is.

        `reason`: FTS's; it gives none for single files. `now`: the time, which counts as that of the end. `outlived`:
        its copy goes on, as with FTS, which stops only copies of jobs that are canceled as a whole.
        """
        if file.state.terminal:
            return
        if file.state is FileState.ACTIVE:
            if not outlived:
                self._copiers[file.link[0].partition("://")[0]].cancel(file.file_id)
            self.scheduler.release(file)
        file.reason = reason
        self._state.file_changed(file)
        self._finish(file, FileState.CANCELED, now)

    def _finish(self, file: FileRecord, to: FileState, now: float) -> None:
        del self._files[file.file_id]
        file.tokens = None
        if move(file, to, now):
            self._ended.append(file.job)
            self._state.job_changed(file.job)

    def _may_submit(self, caller: Caller, now: float) -> None:
        if not caller.delegates:
            return
        ends = (self.delegations.get(caller.user) or {}).get("ends")
        if ends is None:
            raise FtsRequestRefused(419, f'No delegation found for "{caller.user}"')
        if ends <= now:
            ago = f"{int(now - ends)} seconds ago ({caller.delegation_id})"
            raise FtsRequestRefused(419, f"The delegated credentials expired {ago}")
        if ends - now < 3600:
            left = f"less than one hour left ({caller.delegation_id})"
            raise FtsRequestRefused(419, f"The delegated credentials has {left}")

    def _held_links(self, job: JobRecord) -> set[Link]:
        """The links of a job that wait for the end of a ban. Raises FtsRequestRefused for one that takes no jobs."""
        held = set()
        for link in {file.link for file in job.files}:
            for storage, ban in self._bans(link, job.vo):
                if ban["status"] != "WAIT_AS":
                    raise FtsRequestRefused(403, f"{storage} is banned")
                held.add(link)
        return held

    def _bans(self, link: Link, vo: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The banned storages of a link, each with its ban, for the jobs of a VO."""
        for storage in link:
            for of in (vo, EVERY_VO):
                ban = self.bans.get((STORAGE, storage, of))
                if ban is not None:
                    yield storage, ban


def _own(caller: Caller, job: JobRecord) -> JobRecord:
    if job.user != caller.user:
        raise FtsRequestRefused(403, f'Not enough permissions to check the job "{job.job_id}"')
    return job
