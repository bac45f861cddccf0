"""What an FTS server replies, as values. Replies are hostile input: unknown members are ignored, wrong types refused.

Text that is no UTF-8, and time without a zone (which is UTC), are put right here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from include.fts.client.jobs import JobName
from include.fts.errors import ANONYMOUS, FTS_JOB_INVALID, FtsError, redact
from include.fts.states import FailureReason, FileState, JobState

_MOST_TEXT = 4096


def _clean(value: object) -> object:
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:_MOST_TEXT]


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Text = Annotated[str, BeforeValidator(_clean)]
Reason = Annotated[Text, AfterValidator(redact)]
"""What storages and copies say: it may name URLs with tokens, and ends in the ledger and on pages."""
Time = Annotated[datetime, AfterValidator(_utc)]


def _or(instead: str) -> BeforeValidator:
    """A text in the place of null."""
    return BeforeValidator(lambda value: instead if value is None else value)


class _Reply(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Identity(_Reply):
    """Who the server takes us for (``GET /whoami``)."""

    user_dn: Text
    method: Text
    """``certificate``, ``oauth2`` or ``unauthenticated``."""
    delegation_id: Annotated[Text, _or("")] = ""
    """Empty for an anonymous caller."""
    vos: tuple[Text, ...] = ()
    vos_id: tuple[uuid.UUID, ...] = ()

    @property
    def anonymous(self) -> bool:
        return self.method == "unauthenticated"

    def job_name(self, sid: str) -> JobName:
        """The id that a job will have: a version 5 UUID of ``sid`` in the name space of our VO.

        Args:
            sid: Ours, such as the id of a batch and the number of its attempt; at most 255 characters.

        Returns:
            The name to submit the job with.

        Raises:
            FtsError: `ANONYMOUS`: the server takes us for anonymous; `FTS_JOB_INVALID`: it makes no such ids.
        """
        if self.anonymous:
            raise ANONYMOUS(f"the FTS server takes us for {self.user_dn} without a credential; {ANONYMOUS.hint}")
        if not self.vos_id or not 0 < len(sid) <= 255:
            raise FTS_JOB_INVALID(f"sid {sid[:255]!r} makes no job id for {self.user_dn}; {FTS_JOB_INVALID.hint}")
        return JobName(sid, str(uuid.uuid5(self.vos_id[0], sid)))


class FileStatus(_Reply):
    """The state of one file of a job. Times are UTC, sizes bytes, ``throughput`` is in MiB/s."""

    file_id: int
    file_state: FileState
    source_surl: Text = ""
    dest_surl: Text = ""
    file_index: int | None = None
    reason: Reason | None = None
    recoverable: bool | None = None
    """Whether the server itself would have tried again."""
    retry: int | None = None
    filesize: int | None = None
    checksum: Text | None = None
    start_time: Time | None = None
    finish_time: Time | None = None
    throughput: Annotated[float, Field(allow_inf_nan=False)] | None = None
    transfer_host: Text | None = None
    pid: int | None = None
    """Of the process that copies it, on that host."""
    log_file: Text | None = None
    file_metadata: Any = None

    @property
    def failure(self) -> FailureReason | None:
        return FailureReason.parse(self.reason) if self.reason else None


FILE_FIELDS = tuple(FileStatus.model_fields)


class JobStatus(_Reply):
    """The state of a job, with its files where they were asked for. Times are UTC."""

    job_id: uuid.UUID
    job_state: JobState
    reason: Reason | None = None
    submit_time: Time | None = None
    job_finished: Time | None = None
    priority: int | None = None
    job_metadata: Any = None
    files: tuple[FileStatus, ...] = ()


class Ban(_Reply):
    """A storage or user whose transfers the server holds back. ``status``: ``CANCEL``, ``WAIT`` or ``WAIT_AS``."""

    name: Text = Field(validation_alias="se")
    status: Annotated[Text, _or("CANCEL")] = "CANCEL"
    vo: Text | None = None
    """For whose jobs it holds; None and ``*``: for all."""
    message: Text | None = None
    addition_time: Time | None = None

    def holds(self, identity: Identity) -> bool:
        """Whether it is a ban for the jobs of an identity.

        Args:
            identity: Who submits them.

        Returns:
            True for a ban of all VOs, and of one of the identity's.
        """
        return self.vo in (None, "*", *identity.vos)


class BannedUser(Ban):
    name: Text = Field(validation_alias="dn")


class OptimizerDecision(_Reply):
    """What the server's optimizer decided of a link between two storages, ``scheme://host``, without a port."""

    source: Text = Field(validation_alias="source_se")
    destination: Text = Field(validation_alias="dest_se")
    active: Annotated[int, Field(ge=0)]
    """Files that it copies at the same time, at most."""
    at: Time | None = Field(None, validation_alias="datetime")
    """When it was decided."""


class Delegation(_Reply):
    """The proxy that the server has of us."""

    termination_time: Time


class Submitted(_Reply):
    job_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class JobAnswers:
    """The server's answer for each job that it was asked about; every id is in one of the two."""

    jobs: Mapping[str, JobStatus] = field(default_factory=dict)
    errors: Mapping[str, FtsError] = field(default_factory=dict)
