"""What FTS reports of one file of a job, and what becomes of its transfer; pure."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from include.fts.client.replies import FileStatus, JobStatus
from include.fts.states import FailureReason, FailureScope, FileState, JobState
from include.stageout.attempts.submission import TRANSFER_KEY
from include.stageout.moves import TransferMove
from include.stageout.retry import RetryAlgorithm, RetryDecision, TransferFailureClass, failure_class
from include.stageout.states import TransferJobState, TransferState

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
_T = TransferState
_UNDECIDED = frozenset(
    {TransferFailureClass.TIMEOUT, TransferFailureClass.CANCELED, TransferFailureClass.QUEUE_TIMEOUT}
)


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """What matters of a job's status for its files.

    Attributes:
        overwrites: The job may replace what is at its destinations.
        ended: FTS does nothing more for it.
        stopping: It ended so recently that a copy of it may still write.
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
    """What is done about a file.

    Attributes:
        move: Of its transfer, if it moves.
        settled: The transfer is not in the job any more: whatever FTS reports of the file later does not matter.
        cancel: FTS is asked to cancel the file.
    """

    move: TransferMove | None = None
    settled: bool = False
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class AttemptJudge:
    """Judges files by the clock, the retry algorithm and a number drawn from 0 to 1."""

    retry: RetryAlgorithm
    now: datetime
    chance: float

    def judge(self, row: Row[Any], file: FileStatus | None, job: JobAnswer) -> FileJudgement:
        """What becomes of a transfer.

        Args:
            row: The transfer; its state is one of AT_FTS.
            file: Its file in the job; None: the reply does not have it.
            job: The rest of the reply.
        """
        if file is None:
            text = "the FTS job ended without this file"
            return self.failed(row, FailureReason(None, None, text)) if job.ended else FileJudgement()
        match file.file_state:
            case FileState.FINISHED:
                return self._finished(row, file, job)
            case FileState.FAILED:
                failure = file.failure or FailureReason(None, None, "FTS gives no reason")
                return self._failed_file(row, file, job, failure)
            case FileState.CANCELED:
                return self._canceled(row, file, job)
            case _ if job.ended:
                text = f"the FTS job ended, and this file is {file.file_state.value}"
                return FileJudgement() if job.stopping else self.failed(row, FailureReason(None, None, text))
            case _ if row.state == _T.KILLING.value:
                return FileJudgement(cancel=True)
        to = _T.ACTIVE if file.file_state is FileState.ACTIVE else _T.SUBMITTED
        reason = "FTS copies it" if to is _T.ACTIVE else "FTS tries it again"
        return FileJudgement(None if row.state == to.value else TransferMove(row.id, _T(row.state), to, reason))

    def failed(self, row: Row[Any], failure: FailureReason, *, proof: bool = False) -> FileJudgement:
        """A transfer that leaves its job without a copy. ``proof``: what is at the destination is its own."""
        current, known = _T(row.state), True if proof else None
        if current is _T.KILLING:
            move = TransferMove(row.id, current, _T.KILLED, f"FTS: {failure.format()}", may_overwrite=known)
            return FileJudgement(move, settled=True)
        decision = self._decided(row, failure)
        move = TransferMove(
            row.id, current, decision.to, decision.reason, _whole(decision.wait),
            failure=failure_class(failure), may_overwrite=known,
        )  # fmt: skip
        return FileJudgement(move, settled=True)

    def _decided(self, row: Row[Any], failure: FailureReason) -> RetryDecision:
        decision = self.retry(failure, row.retries, self.chance)
        if decision.to is not _T.NEEDS_CREDENTIAL or row.failure != TransferFailureClass.CREDENTIAL.value:
            return decision
        # the user's credential could be used since the last failure: another one has ended, as of a storage, and
        # without retries that are spent the transfer would go round for ever
        refused = FailureReason(failure.scope, errno.EACCES, "permission denied")
        decision = self.retry(refused, row.retries, self.chance)
        return replace(decision, reason=f"{decision.reason}, with a credential that can be used: {failure.text}")

    def copied(self, row: Row[Any], reason: str, *, at: datetime | None = None, proof: bool = False) -> FileJudgement:
        """A transfer whose destination exists; the reporter verifies it."""
        when = min(at or self.now, self.now)
        known = True if proof else None
        move = TransferMove(row.id, _T(row.state), _T.COPIED, reason, copied_at=when, may_overwrite=known)
        return FileJudgement(move, settled=True)

    def _finished(self, row: Row[Any], file: FileStatus, job: JobAnswer) -> FileJudgement:
        return self.copied(row, "copied by FTS", at=file.finish_time, proof=not job.overwrites)

    def _failed_file(self, row: Row[Any], file: FileStatus, job: JobAnswer, failure: FailureReason) -> FileJudgement:
        exists = failure_class(failure) is TransferFailureClass.DESTINATION_EXISTS
        if exists and row.state != _T.KILLING.value and is_same_file(row, file.file_metadata):
            return self.copied(row, "the destination exists, as requested", at=file.finish_time)
        return self.failed(row, failure, proof=proves_own_destination(file, failure, job))

    def _canceled(self, row: Row[Any], file: FileStatus, job: JobAnswer) -> FileJudgement:
        copying = file.start_time is not None and file.finish_time is None
        if copying and (job.stopping or not job.ended):
            # its copy may still write
            return FileJudgement()
        parsed = file.failure or FailureReason(None, None, "canceled at FTS")
        failure = parsed if parsed.errno is not None else FailureReason(parsed.scope, errno.ECANCELED, parsed.text)
        return self.failed(row, failure, proof=proves_own_destination(file, failure, job))


def proves_own_destination(file: FileStatus, failure: FailureReason, job: JobAnswer) -> bool:
    """Whether what is at the destination after this failure is the attempt's own, so that a later one may replace it.

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


def is_same_file(row: Row[Any], metadata: object) -> bool:
    """Whether FTS's report of an existing destination agrees with the request.

    What the request does not say is left to the reporter, which compares with the source; without a report, it is
    another file.
    """
    report = metadata.get("dst_file") if isinstance(metadata, dict) else None
    if not isinstance(report, dict):
        return False
    size, kind, digits = (report.get(name) for name in ("file_size", "checksum_type", "checksum_value"))
    if not isinstance(size, int) or isinstance(size, bool) or row.size not in (None, size):
        return False
    declared = str(row.checksum or "").partition(":")
    if not declared[2] or not isinstance(kind, str) or kind.lower() != declared[0]:
        return True
    return isinstance(digits, str) and digits.lower().lstrip("0") == declared[2].lstrip("0")


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
