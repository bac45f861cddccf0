"""Jobs and files as the service has them in memory, and their states as tables.

The table of moves is FTS's: a file waits (SUBMITTED), is copied (ACTIVE) and ends; what failed and may be tried again
waits once more. A ban holds waiting files (ON_HOLD).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from include.fts.states import FileState, JobState
from lab.fts.errors import FtsServiceError

_F, _J = FileState, JobState
_ENDS = frozenset({_F.FINISHED, _F.FAILED, _F.CANCELED})

FILE_MOVES: Mapping[FileState, frozenset[FileState]] = {
    _F.SUBMITTED: frozenset({_F.ACTIVE, _F.ON_HOLD, _F.CANCELED, _F.FAILED}),
    _F.ON_HOLD: frozenset({_F.SUBMITTED, _F.CANCELED}),
    _F.ACTIVE: frozenset({_F.SUBMITTED, *_ENDS}),
    **dict.fromkeys(_ENDS, frozenset()),
}
"""From each state, those that a file may go to."""

JOB_ENDS: Mapping[frozenset[FileState], JobState] = {
    frozenset({_F.FINISHED}): _J.FINISHED,
    frozenset({_F.FAILED}): _J.FAILED,
    frozenset({_F.CANCELED}): _J.CANCELED,
    frozenset({_F.FINISHED, _F.FAILED}): _J.FINISHEDDIRTY,
    frozenset({_F.FINISHED, _F.CANCELED}): _J.CANCELED,
    frozenset({_F.FAILED, _F.CANCELED}): _J.FAILED,
    _ENDS: _J.FINISHEDDIRTY,
}
"""The state of a job all of whose files have ended, by the states that they have."""

Link = tuple[str, str]
"""Source and destination storage, each `scheme://host`."""


def storage_of(url: str) -> str:
    """`scheme://host`, without a port: two ports of one host are one storage to FTS."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What holds for all files of a job, with the server's defaults filled in. ``verify``: b, s, t or n."""

    verify: str = "n"
    overwrite: bool = False
    overwrite_on_retry: bool = False
    dst_file_report: bool = False
    strict_copy: bool = False
    retry: int = 0
    retry_delay_s: int = 0
    timeout_s: int = 0
    queue_ends: float | None = None
    job_type: str = "N"


@dataclass(slots=True, eq=False)
class FileRecord:
    """One file of a job. ``due``: it is not started before; times are seconds since the epoch."""

    file_id: int
    index: int
    job: JobRecord = field(repr=False)
    source: str
    destination: str
    link: Link
    user_size: int = 0
    checksum: str | None = None
    activity: str = "default"
    metadata: Any = None
    tokens: tuple[str, str] | None = field(default=None, repr=False)
    state: FileState = FileState.SUBMITTED
    reason: str | None = None
    recoverable: bool | None = None
    retry: int = 0
    size: int = 0
    started: float | None = None
    ended: float | None = None
    due: float = 0.0
    attempts: list[tuple[float, str]] | None = None
    """Of earlier tries: when each failed, and why."""

    @property
    def draft(self) -> str:
        """Digits that no other file of any service has: they name what its copy writes until the copy is whole."""
        return hashlib.sha256(f"{self.job.job_id} {self.index}".encode()).hexdigest()[:12]


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job. ``tally``: how many of its files are in which state."""

    job_id: str
    user: str
    vo: str
    options: JobOptions
    priority: int
    metadata: Any
    submitted: float
    state: JobState = JobState.SUBMITTED
    reason: str | None = None
    ended: float | None = None
    files: list[FileRecord] = field(default_factory=list, repr=False)
    tally: Counter[FileState] = field(default_factory=Counter, repr=False)


def move(file: FileRecord, to: FileState, now: float) -> bool:
    """Bring a file into a state; True if its job ends with it. Raises FtsServiceError for an illegal move."""
    if to not in FILE_MOVES[file.state]:
        raise FtsServiceError(f"file {file.file_id} cannot go from {file.state.value} to {to.value}")
    job = file.job
    job.tally[file.state] -= 1
    job.tally[to] += 1
    file.state = to
    if to is FileState.ACTIVE:
        file.started = now
        job.state = JobState.ACTIVE
    elif to in _ENDS:
        file.ended = now
        return _end(job, now)
    return False


def recount(job: JobRecord) -> None:
    """Set the tally from the files, as after a start."""
    job.tally = Counter(file.state for file in job.files)


def job_end(states: Iterable[FileState]) -> JobState | None:
    """The state of a job whose files are in these states; None if one of them has not ended."""
    return JOB_ENDS.get(frozenset(states))


def _end(job: JobRecord, now: float) -> bool:
    end = job_end(state for state, count in job.tally.items() if count)
    if end is None:
        return False
    job.state, job.ended = end, now
    if end in (JobState.FAILED, JobState.FINISHEDDIRTY):
        job.reason = "One or more files failed. Please have a look at the details for more information"
    return True
