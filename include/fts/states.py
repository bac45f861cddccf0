"""States of FTS jobs and files, and the reason of a failed file, as FTS3 writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class JobState(Enum):
    """A job's state. A job that ends with finished and canceled files is CANCELED: judge by its files."""

    STAGING = "STAGING"
    SUBMITTED = "SUBMITTED"
    READY = "READY"
    ACTIVE = "ACTIVE"
    DELETE = "DELETE"
    ARCHIVING = "ARCHIVING"
    QOS_TRANSITION = "QOS_TRANSITION"
    QOS_REQUEST_SUBMITTED = "QOS_REQUEST_SUBMITTED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    FINISHEDDIRTY = "FINISHEDDIRTY"
    """Some files are finished, some failed."""
    CANCELED = "CANCELED"
    OTHER = "OTHER"
    """A state of a newer server, taken as one that has not ended."""

    @classmethod
    def _missing_(cls, value: object) -> JobState | None:
        return cls.OTHER if isinstance(value, str) else None

    @property
    def terminal(self) -> bool:
        return self in (JobState.FINISHED, JobState.FAILED, JobState.FINISHEDDIRTY, JobState.CANCELED)


class FileState(Enum):
    """The state of one file of a job."""

    STAGING = "STAGING"
    STARTED = "STARTED"
    SUBMITTED = "SUBMITTED"
    READY = "READY"
    ACTIVE = "ACTIVE"
    ARCHIVING = "ARCHIVING"
    QOS_TRANSITION = "QOS_TRANSITION"
    QOS_REQUEST_SUBMITTED = "QOS_REQUEST_SUBMITTED"
    FORCE_START = "FORCE_START"
    TOKEN_PREP = "TOKEN_PREP"  # noqa: S105 - a state, no token
    ON_HOLD = "ON_HOLD"
    """Its storage is banned with `wait`."""
    ON_HOLD_STAGING = "ON_HOLD_STAGING"
    NOT_USED = "NOT_USED"
    """Another replica or hop is used."""
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    OTHER = "OTHER"
    """A state of a newer server, taken as one that has not ended."""

    @classmethod
    def _missing_(cls, value: object) -> FileState | None:
        return cls.OTHER if isinstance(value, str) else None

    @property
    def terminal(self) -> bool:
        return self in (FileState.FINISHED, FileState.FAILED, FileState.CANCELED)


class FailureScope(Enum):
    """Where FTS places the failure of a file."""

    SOURCE = "SOURCE"
    DESTINATION = "DESTINATION"
    TRANSFER = "TRANSFER"
    GENERAL_FAILURE = "GENERAL_FAILURE"


_REASON = re.compile(rf"({'|'.join(scope.value for scope in FailureScope)}) \[(\d{{1,6}})\] ?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FailureReason:
    """Why a file failed: ``SCOPE [errno] text``. ``scope`` and ``errno`` are None for a text of another form."""

    scope: FailureScope | None
    errno: int | None
    text: str

    @classmethod
    def parse(cls, reason: str) -> FailureReason:
        found = _REASON.fullmatch(reason.strip())
        return cls(FailureScope(found[1]), int(found[2]), found[3]) if found else cls(None, None, reason.strip())

    def format(self) -> str:
        """The text that `parse` reads."""
        return f"{self.scope.value} [{self.errno}] {self.text}" if self.scope is not None else self.text
