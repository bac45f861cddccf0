"""Jobs as they are submitted to FTS (``POST /jobs``), and its replies about them."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

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
        """Tell whether it is a ban for the jobs of an identity.

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


MOST_URL = 1100
"""Characters of a URL."""
MOST_ACTIVITY = 255
"""Characters of an activity."""
MOST_FILE_METADATA, MOST_JOB_METADATA = 4096, 2048 - 64
"""Bytes as JSON; the server adds something of its own to a job's."""
PRIORITIES = range(1, 6)
"""The highest is served first."""
_CHECKSUM = re.compile(r"[A-Za-z0-9]{1,20}(:[0-9a-fA-F]{1,79})?")
_DIGITS = {"adler32": 8, "crc32": 8, "crc32c": 8, "md5": 32, "sha1": 40, "sha256": 64}


class VerifyChecksum(Enum):
    """Which checksums FTS compares with the one of the file."""

    BOTH = "both"
    SOURCE = "source"
    TARGET = "target"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class JobName:
    """An id that is known before the job is submitted, from `Identity.job_name`.

    Attributes:
        sid: What the server makes ``job_id`` from; a second job of the same one is refused with JobExists.
        job_id: The job's id, a UUID.
    """

    sid: str
    job_id: str


@dataclass(frozen=True, slots=True)
class FtsFile:
    """One file of a job.

    Attributes:
        source: URL. FTS tells storages apart by scheme and host, not by port.
        destination: URL.
        size: Bytes, if known.
        checksum: ``adler32:0a1b2c3d``; the name of an algorithm alone compares source and destination.
        activity: The share of the link that it counts for; None: the server's default.
        metadata: Any JSON; it comes back with the file's status.
        source_token: Bearer token for the storage of the source; with ``destination_token``, or neither.
        destination_token: Bearer token for the storage of the destination.
    """

    source: str
    destination: str
    size: int | None = None
    checksum: str | None = None
    activity: str | None = None
    metadata: Any = None
    source_token: str | None = field(default=None, repr=False)
    destination_token: str | None = field(default=None, repr=False)

    def fault(self) -> str | None:
        """Return what is wrong with it, in words; None if nothing is."""
        for name, url in (("source", self.source), ("destination", self.destination)):
            if fault := _url_fault(url):
                return f"{name} {redact(url[:200])!r} {fault}"
        if self.size is not None and (isinstance(self.size, bool) or self.size < 0):
            return f"size {self.size!r} is not a number of bytes"
        if self.activity is not None and (fault := activity_fault(self.activity)):
            return f"activity {self.activity[:100]!r} {fault}"
        if self.checksum is not None and (fault := _checksum_fault(self.checksum)):
            return f"checksum {self.checksum[:100]!r} {fault}"
        if (self.source_token is None) is not (self.destination_token is None):
            return "has a token for one of its storages only"
        return _metadata_fault(self.metadata, MOST_FILE_METADATA)

    def document(self) -> dict[str, Any]:
        """The file in the form that FTS reads."""
        given = {
            "filesize": self.size, "checksum": self.checksum, "activity": self.activity, "metadata": self.metadata,
            "source_tokens": self.source_token and [self.source_token],
            "destination_tokens": self.destination_token and [self.destination_token],
        }  # fmt: skip
        return {"sources": [self.source], "destinations": [self.destination], **_without_none(given)}


@dataclass(frozen=True, slots=True)
class JobParams:
    """What holds for all files of a job. None leaves it to the server.

    Attributes:
        verify_checksum: Which checksums are compared.
        overwrite: A file at the destination is replaced.
        dst_file_report: If the destination exists, its size and checksum are reported in the file's metadata.
        retry: How often the server tries again; 0: as the server is configured; negative: never.
        retry_delay_s: Seconds between two tries.
        priority: 1 to 5.
        max_time_in_queue_s: Seconds after which files that still wait are canceled.
        timeout_s: Seconds that one copy may take.
        strict_copy: Only the copy, without looking at source and destination.
        metadata: Any JSON; it comes back with the job's status.
    """

    verify_checksum: VerifyChecksum | None = None
    overwrite: bool = False
    dst_file_report: bool = False
    retry: int | None = None
    retry_delay_s: int | None = None
    priority: int | None = None
    max_time_in_queue_s: int | None = None
    timeout_s: int | None = None
    strict_copy: bool = False
    metadata: Any = None

    def fault(self) -> str | None:
        """Return what is wrong with them, in words; None if nothing is."""
        if self.priority is not None and self.priority not in PRIORITIES:
            return f"priority {self.priority!r} is not one of 1 to 5"
        for name in ("retry_delay_s", "max_time_in_queue_s", "timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 1):
                return f"{name} {seconds!r} is not a whole number of seconds"
        return _metadata_fault(self.metadata, MOST_JOB_METADATA)

    def document(self) -> dict[str, Any]:
        """The parameters in the form that FTS reads."""
        # a number without a unit would be hours
        queue = None if self.max_time_in_queue_s is None else f"{self.max_time_in_queue_s}s"
        given = {
            "verify_checksum": self.verify_checksum and self.verify_checksum.value, "retry": self.retry,
            "retry_delay": self.retry_delay_s, "priority": self.priority, "max_time_in_queue": queue,
            "timeout": self.timeout_s, "job_metadata": self.metadata,
        }  # fmt: skip
        flags = {
            "overwrite": self.overwrite, "dst_file_report": self.dst_file_report, "strict_copy": self.strict_copy,
        }  # fmt: skip
        return {**flags, **_without_none(given)}


@dataclass(frozen=True, slots=True)
class FtsJob:
    """Files that are submitted together. FTS starts and ends each of them by itself."""

    files: tuple[FtsFile, ...]
    params: JobParams = JobParams()

    def document(self, name: JobName | None = None) -> bytes:
        """The body of the request.

        Args:
            name: The job's id, if it is known before.

        Returns:
            JSON, UTF-8.

        Raises:
            FtsError: `FTS_JOB_INVALID`: it names the file and the field that FTS would refuse.
        """
        if not self.files:
            raise _invalid("it has no files")
        for index, file in enumerate(self.files):
            if fault := file.fault():
                raise _invalid(f"file {index}: {fault}")
        if fault := self.params.fault():
            raise _invalid(fault)
        ((destination, times),) = Counter(file.destination for file in self.files).most_common(1)
        if times > 1:
            raise _invalid(f"destination {redact(destination)!r} has {times} files")
        params = self.params.document()
        if name is not None:
            params |= {"id_generator": "deterministic", "sid": name.sid}
        return json.dumps({"files": [file.document() for file in self.files], "params": params}).encode()


def activity_fault(activity: str) -> str | None:
    """Return what FTS cannot keep of the name of an activity, in words; None if nothing.

    Args:
        activity: The name.

    Returns:
        The fault; it reads on after the name.
    """
    if len(activity) > MOST_ACTIVITY:
        return f"has {len(activity)} characters, and FTS takes {MOST_ACTIVITY}"
    return _latin_fault(activity)


def _latin_fault(text: str) -> str | None:
    """FTS's tables are Latin-1; it replies HTTP 500 to what they cannot keep, however often it is sent."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError as error:
        return f"has {text[error.start]!r}, and FTS keeps Latin-1 only"
    return None


def _invalid(fault: str) -> Exception:
    return FTS_JOB_INVALID(f"FTS job refused before it was sent: {fault}; {FTS_JOB_INVALID.hint}")


def _without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _url_fault(url: str) -> str | None:
    if len(url) > MOST_URL:
        return f"has {len(url)} characters, and FTS takes {MOST_URL}"
    if " " in url or not url.isprintable():
        return "has a space or a control character"
    if fault := _latin_fault(url):
        return fault
    try:
        parts = urlsplit(url)
        has_user = parts.username is not None
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return "is not a URL"
    if not parts.scheme or not has_host:
        return "has no scheme or no host"
    if parts.scheme == "file" and parts.hostname != "localhost":
        return "is a folder of another machine"
    if has_user:
        return "has a user name; FTS would show it to others"
    return None if parts.path.strip("/") or parts.query else "has no path"


def _checksum_fault(checksum: str) -> str | None:
    if not _CHECKSUM.fullmatch(checksum):
        return "is not of the form algorithm:hexadecimal"
    algorithm, _, digits = checksum.partition(":")
    longest = _DIGITS.get(algorithm.lower())
    return f"has more than {longest} digits" if longest is not None and len(digits) > longest else None


def _metadata_fault(metadata: Any, most: int) -> str | None:
    try:
        size = len(json.dumps(metadata, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        return "metadata cannot be written as JSON"
    return f"metadata has {size} bytes, and FTS takes {most}" if size > most else None
