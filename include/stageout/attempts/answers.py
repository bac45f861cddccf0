"""FTS's report on one file of a job, and the next state of its transfer; copies that may still write. Pure."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Table, select

from include.fts.jobs import FileStatus, JobStatus
from include.fts.states import FailureReason, FailureScope, FileState, JobState
from include.ledger.engine import Bind, reading, writing
from include.stageout.attempts.queues import TRANSFER_KEY
from include.stageout.files import is_bare
from include.stageout.moves import TransferMove, writes_text
from include.stageout.places.facts import checksum_of
from include.stageout.requests import TransferAtFts, pieces, update_rows
from include.stageout.retry import (
    MAX_REASON_CHARACTERS,
    RetryAlgorithm,
    RetryDecision,
    TransferFailureClass,
    failure_class,
)
from include.stageout.states import TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_transfers

HELD = "held: "
"""Begins the reason of what is held."""
MOST_NOTED = 5000
"""Transfers of a queue that one batch of the submitter writes to; the next one goes on."""
_ENDED = "held no more: FTS answers"


def note_held_queue(bind: Bind, queue: int, why: str) -> None:
    """Write on the new transfers of a queue why they are not submitted."""
    columns = stageout_transfers.c
    _write(bind, stageout_transfers, [columns.state == _T.NEW.value, columns.queue == queue], f"{HELD}{why}")


def note_held_jobs(bind: Bind, jobs: Collection[int], why: str) -> None:
    """Write on jobs, and on their transfers, why FTS says nothing of them."""
    for piece in pieces(sorted(jobs)):
        _write(bind, stageout_jobs, [stageout_jobs.c.id.in_(piece)], f"{HELD}{why}")
        _write(bind, stageout_transfers, _at_fts(piece), f"{HELD}{why}")


def end_held_jobs(bind: Bind, jobs: Collection[int]) -> None:
    """Take that back: FTS has said something of the jobs."""
    columns = stageout_jobs.c
    for piece in pieces(sorted(jobs)):
        with reading(bind) as connection:
            query = select(columns.id).where(columns.id.in_(piece), columns.reason.startswith(HELD))
            held = list(connection.scalars(query))
        if held:
            _write(bind, stageout_jobs, [columns.id.in_(held)], _ENDED)
            _write(bind, stageout_transfers, _at_fts(held), _ENDED)


def _at_fts(jobs: Sequence[int]) -> list[ColumnElement[bool]]:
    columns = stageout_transfers.c
    return [columns.job.in_(jobs), columns.state.in_([state.value for state in AT_FTS])]


def _write(bind: Bind, table: Table, where: Sequence[ColumnElement[bool]], text: str) -> None:
    """Write a reason to the rows that do not have it."""
    reason = text[:MAX_REASON_CHARACTERS]

    def work(connection: Connection) -> None:
        query = select(table.c.id).where(*where, table.c.reason != reason).limit(MOST_NOTED)
        update_rows(connection, table, list(connection.scalars(query)), {"reason": reason}, *where)

    writing(bind, work)


AT_FTS = (TransferState.SUBMITTED, TransferState.ACTIVE, TransferState.KILLING)
"""States in which a transfer is in a job that FTS has."""
STOPPING = timedelta(minutes=10)
"""For how long after the end of a job one of its copies may go on without a time of its end."""
JOB_RESULTS: Mapping[JobState, TransferJobState] = {
    JobState.FINISHED: TransferJobState.FINISHED,
    JobState.FINISHEDDIRTY: TransferJobState.FINISHED_DIRTY,
    JobState.FAILED: TransferJobState.FAILED,
    JobState.CANCELED: TransferJobState.CANCELED,
}
FTS_TIME = timedelta(seconds=1)
"""FTS leaves out the fractions of seconds."""
COPY_TIME, COPY_TIME_PER_MB = timedelta(seconds=600), timedelta(seconds=2)
"""FTS's own limit of the time that a copy takes."""
UNKNOWN_BYTES = 100 * 10**9
"""Of a file whose size is not known, for that limit."""
KILL_TIME = timedelta(minutes=1)
"""FTS notes the end of a copy that it kills before the process is gone."""
_WHOLE_JOB = "Job canceled by the user"
"""FTS's reason of the files of a job that was canceled as a whole: their copies are killed."""
_OUT_OF_SIGHT = re.compile(r"No FTS server has updated|Probably stalled|was forcefully killed", re.IGNORECASE)
"""FTS's reasons of files whose copies it has lost sight of."""
_T = TransferState
_UNDECIDED = frozenset(
    {TransferFailureClass.TIMEOUT, TransferFailureClass.CANCELED, TransferFailureClass.QUEUE_TIMEOUT}
)


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The part of a job's status that its files depend on.

    `overwrites`: the job may replace what is at its destinations. `ended`: FTS does nothing more for it. `stopping`: it
    ended so recently that a copy of it may still write.
    """

    overwrites: bool
    ended: bool
    stopping: bool

    @classmethod
    def of(cls, status: JobStatus, *, overwrites: bool, now: datetime) -> JobAnswer:
        ended, at = status.job_state.terminal, status.job_finished
        return cls(overwrites, ended, ended and at is not None and now - at < STOPPING)


@dataclass(frozen=True, slots=True)
class FileJudgement:
    """The consequences for a file.

    `move`: of its transfer, if it moves. `settled`: the transfer is not in the job any more: whatever FTS reports of
    the file later does not matter. `cancel`: FTS is asked to cancel the file. `until`: the transfer stays as it is: a
    copy may still write until then.
    """

    move: TransferMove | None = None
    settled: bool = False
    cancel: bool = False
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AttemptJudge:
    """Judges files by the clock, the retry algorithm, a number drawn from 0 to 1, and the margin of a copy's time."""

    retry: RetryAlgorithm
    now: datetime
    chance: float
    margin: timedelta

    def judge(self, row: TransferAtFts, file: FileStatus | None, job: JobAnswer) -> FileJudgement:
        """Return what becomes of a transfer.

        `row`: the transfer; its state is one of AT_FTS. `file`: its file in the job; None: the reply does not have it.
        """
        if file is None:
            text = "the FTS job ended without this file"
            failure, until = FailureReason(None, None, text), self.lost_until(row)
            return self.failed(row, failure, until=until) if job.ended else FileJudgement()
        match file.file_state:
            case FileState.FINISHED:
                return self._finished(row, file, job)
            case FileState.FAILED:
                failure = file.failure or FailureReason(None, None, "FTS gives no reason")
                compared = row.state is not _T.KILLING and not is_bare(row.destination_name)
                if failure_class(failure) is TransferFailureClass.DESTINATION_EXISTS and compared:
                    text = "the destination exists: it is compared with the request"
                    kind = TransferFailureClass.DESTINATION_EXISTS
                    return self.copied(row, text, at=file.finish_time, failure=kind)
                return self._ended(row, file, failure, job)
            case FileState.CANCELED:
                return self._canceled(row, file, job)
            case _ if job.ended:
                text = f"the FTS job ended, and this file is {file.file_state.value}"
                return FileJudgement() if job.stopping else self._ended(row, file, FailureReason(None, None, text), job)
            case _ if row.state is _T.KILLING:
                return FileJudgement(cancel=True)
        to = _T.ACTIVE if file.file_state is FileState.ACTIVE else _T.SUBMITTED
        reason = "FTS copies it" if to is _T.ACTIVE else "FTS tries it again"
        return FileJudgement(None if row.state is to else TransferMove(row.id, row.state, to, reason))

    def failed(
        self,
        row: TransferAtFts,
        failure: FailureReason,
        *,
        proof: bool = False,
        until: datetime | None = None,
        began: datetime | None = None,
    ) -> FileJudgement:
        """A transfer that leaves its job without a copy.

        `failure`: why. `proof`: what is at the destination is its own. `until`: a copy of the attempt may still write
        until then. `began`: when the attempt began to copy.
        """
        current, known = row.state, True if proof else None
        until = row.may_write_until or until
        if until is not None and until <= self.now:
            until = None
        if current is _T.KILLING and until is not None:
            return FileJudgement(until=until)
        last = None if proof else began
        if current is _T.KILLING:
            text = f"FTS: {failure.format()}"
            move = TransferMove(row.id, current, _T.KILLED, text, may_overwrite=known, began_at=last)
            return FileJudgement(move, settled=True)
        decision = self._decided(row, failure)
        reason, wait = decision.reason, _whole(decision.wait)
        if until is not None:
            reason, wait = f"{reason}; {writes_text(until)}", max(wait, until - self.now)
        move = TransferMove(
            row.id, current, decision.to, reason, wait,
            failure=failure_class(failure), may_overwrite=known, may_write_until=until, began_at=last,
            scope=failure.scope,
        )  # fmt: skip
        return FileJudgement(move, settled=True)

    def _decided(self, row: TransferAtFts, failure: FailureReason) -> RetryDecision:
        decision = self.retry(failure, row.retries, self.chance)
        if decision.to is not _T.NEEDS_CREDENTIAL or row.failure is not TransferFailureClass.CREDENTIAL:
            return decision
        # the user's credential could be used since the last failure: another one has ended, as of a storage, and
        # without retries that are spent the transfer would go round for ever
        refused = FailureReason(failure.scope, errno.EACCES, "permission denied")
        decision = self.retry(refused, row.retries, self.chance)
        return replace(decision, reason=f"{decision.reason}, with a credential that can be used: {failure.text}")

    def copied(
        self,
        row: TransferAtFts,
        reason: str,
        *,
        at: datetime | None = None,
        proof: bool = False,
        failure: TransferFailureClass | None = None,
        until: datetime | None = None,
    ) -> FileJudgement:
        """A transfer whose destination exists; the reporter verifies it. Arguments as of `failed`."""
        when = min(at or self.now, self.now)
        known = True if proof else None
        move = TransferMove(
            row.id, row.state, _T.COPIED, reason, copied_at=when, may_overwrite=known, failure=failure,
            may_write_until=until,
        )  # fmt: skip
        return FileJudgement(move, settled=True)

    def lost_until(self, row: TransferAtFts) -> datetime:
        """Return how long a copy may write of a job that FTS does not know any more: from when that was seen first."""
        return row.may_write_until or self.now + copy_time(row.size) + self.margin

    def _finished(self, row: TransferAtFts, file: FileStatus, job: JobAnswer) -> FileJudgement:
        proof = not job.overwrites
        if not is_bare(row.destination_name):
            return self.copied(row, "copied by FTS", at=file.finish_time, proof=proof)
        # only FTS can be asked for a destination without a site
        algorithm, _, digits = (file.checksum or "").lower().partition(":")
        comparable = row.checksum is not None and row.checksum.startswith(f"{algorithm}:")
        checksum = checksum_of(algorithm, digits) if comparable else None
        for what, reported, requested in (("size", file.filesize, row.size), ("checksum", checksum, row.checksum)):
            if reported is not None and requested is not None and reported != requested:
                text = f"{what} mismatch ({requested} != {reported})"
                return self.failed(row, FailureReason(FailureScope.DESTINATION, errno.EIO, text), proof=proof)
        copied = self.copied(row, "copied by FTS", at=file.finish_time, proof=proof)
        size = file.filesize if row.size is None else None
        return replace(copied, move=copied.move and replace(copied.move, size=size))

    def _ended(self, row: TransferAtFts, file: FileStatus, failure: FailureReason, job: JobAnswer) -> FileJudgement:
        """A file that FTS has ended without a copy."""
        # a failure of one side comes before the copy: what is at the destination later was written by others
        copied = not job.overwrites and failure.scope not in (FailureScope.SOURCE, FailureScope.DESTINATION)
        return self.failed(
            row,
            failure,
            proof=proves_own_destination(file, failure, job),
            until=may_write_until(file, row.size, margin=self.margin, now=self.now),
            began=file.start_time if copied else None,
        )

    def _canceled(self, row: TransferAtFts, file: FileStatus, job: JobAnswer) -> FileJudgement:
        copying = file.start_time is not None and file.finish_time is None
        if copying and (job.stopping or not job.ended):
            # its copy may still write
            return FileJudgement()
        parsed = file.failure or FailureReason(None, None, "canceled at FTS")
        failure = parsed if parsed.errno is not None else FailureReason(parsed.scope, errno.ECANCELED, parsed.text)
        return self._ended(row, file, failure, job)


def copy_time(size: int | None) -> timedelta:
    """The longest time that FTS lets a copy of so many bytes take; None: the size is not known."""
    megabytes = -(-(UNKNOWN_BYTES if size is None else size) // 10**6)
    return COPY_TIME + COPY_TIME_PER_MB * megabytes


def seen_to_copy(row: TransferAtFts, *, overwrites: bool) -> datetime | None:
    """Return since when FTS was seen to copy a transfer to a destination that did not exist; None: it was not seen.

    What a copy that was cut off left there since then is the transfer's own.
    """
    active = row.state is _T.ACTIVE and not overwrites
    return row.moved_at.replace(microsecond=0) if active else None


def may_write_until(file: FileStatus, size: int | None, *, margin: timedelta, now: datetime) -> datetime | None:
    """Return until when the copy of a file that FTS has ended may still write; None: nothing of it writes.

    A copy that reports its own end has ended. A cancel of single files, or of all files of a banned storage or user,
    sets the time of the end at once, and the copy goes on: FTS kills only copies of jobs that were canceled as a whole,
    and notes their end when it does. It also ends files whose copies it has lost sight of.

    `file`: FAILED, CANCELED, or not ended in a job that has. `size`: bytes; None if unknown. `margin`: added to FTS's
    limit of a copy's time.
    """
    if file.start_time is None and file.transfer_host is None:
        # no host of FTS has taken it
        return None
    text, failure = file.reason or "", file.failure
    # the reasons of copies have a scope
    reported = failure is not None and failure.scope is not None and not _OUT_OF_SIGHT.search(text)
    if file.file_state is FileState.FAILED and reported:
        return None
    # without its pid, which it has a moment after its start, a copy is not killed
    killed = file.file_state is FileState.CANCELED and text.startswith(_WHOLE_JOB) and file.pid
    if killed and file.finish_time is not None:
        return file.finish_time + KILL_TIME
    return (file.start_time or file.finish_time or now) + copy_time(size) + margin


def proves_own_destination(file: FileStatus, failure: FailureReason, job: JobAnswer) -> bool:
    """Tell whether what is at the destination after this failure is the attempt's own, so that a later one may replace
    it.

    A job that does not overwrite looks whether the destination exists before it copies, so there is proof where the
    copy itself had begun: FTS started the file, and

    * bytes flowed (it has a throughput), or
    * the reason is one of the copy (scope TRANSFER), or
    * the reason is a checksum that differs at the destination, which is compared after the copy.

    Failures at the source, and others at the destination, may come before the copy or from that look itself. The end by
    a time limit or a cancel comes at any moment: there, only bytes that flowed are proof. That the destination exists
    is never proof of anything.
    """
    kind = failure_class(failure)
    if job.overwrites or file.start_time is None or kind is TransferFailureClass.DESTINATION_EXISTS:
        return False
    if failure.errno == errno.EEXIST or failure.scope is FailureScope.SOURCE:
        return False
    flowed = file.throughput is not None and file.throughput > 0
    copying = failure.scope is FailureScope.TRANSFER and kind not in _UNDECIDED
    return flowed or copying or kind is TransferFailureClass.DESTINATION_CHECKSUM


def files_by_transfer(files: Sequence[FileStatus]) -> dict[int, FileStatus]:
    """The files of a job by the transfer that their metadata name; others are left out."""
    found: dict[int, FileStatus] = {}
    for file in files:
        number = file.file_metadata.get(TRANSFER_KEY) if isinstance(file.file_metadata, dict) else None
        if isinstance(number, int):
            found[number] = file
    return found


def _whole(wait: timedelta) -> timedelta:
    """In whole seconds."""
    return timedelta(seconds=round(wait.total_seconds()))
