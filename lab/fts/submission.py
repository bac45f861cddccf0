"""A submission as FTS reads it (`POST /jobs`): its defaults, its limits and its errors for a bad document."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from lab.fts.callers import Caller
from lab.fts.errors import FtsRequestRefused, bad_request, broken
from lab.fts.records import FileRecord, JobOptions, JobRecord, storage_of

MOST_URL = 1100
MOST_FILE_METADATA, MOST_JOB_METADATA, MOST_CHECKSUM, MOST_ACTIVITY = 4096, 2048, 100, 255
MOST_SIZE = (1 << 63) - 1
MOST_FILES = 10_000
DEFAULT_PRIORITY = 3
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
N = TypeVar("N", int, float)
_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_UNSUPPORTED = ("multihop", "overwrite_hop", "overwrite_when_only_on_disk", "target_qos")
_TOKENS = ("source_tokens", "destination_tokens")
_FOREIGN_KEY = (
    "The submission is duplicated (MySQLdb.IntegrityError) (1452, 'Cannot add or update a child row: "
    "a foreign key constraint fails (`fts3`.`t_file`, CONSTRAINT `src_token_id` FOREIGN KEY (`src_token_id`) "
    "REFERENCES `t_token` (`token_id`))')"
)
"""FTS keeps tokens of files only for callers who come with a token."""
_TAPE = ("bring_online", "copy_pin_lifetime", "archive_timeout")


def parsed_job(body: bytes, caller: Caller, *, first_file: int, now: float) -> JobRecord:
    """The job that a request's body describes.

    `first_file`: the id of its first file; the others follow. Raises FtsRequestRefused: 400, 405, 409 or 500, with what
    is wrong.
    """
    document = read_object(body)
    if "delete" in document:
        raise FtsRequestRefused(405, "Deletion jobs are no longer supported by FTS")
    params, files = document.get("params") or {}, document.get("files")
    if not files or not isinstance(files, list):
        raise bad_request("No valid pairs available" if files == [] else "No transfers operations specified")
    if not isinstance(params, dict):
        raise bad_request("Invalid value for params: expected an object")
    if len(files) > MOST_FILES:
        raise bad_request(f"A job of more than {MOST_FILES} files is not accepted")
    metadata = _metadata(params.get("job_metadata"), MOST_JOB_METADATA)
    if metadata is None or isinstance(metadata, dict):
        metadata = {**(metadata or {}), "auth_method": caller.method}
    options = _options(
        params, now, with_checksum=any(isinstance(file, dict) and file.get("checksum") for file in files)
    )
    job = JobRecord(
        _job_id(params, caller.vo_id), caller.user, caller.delegation_id, options,
        _priority(_number(params.get("priority"), int)), metadata, now,
    )  # fmt: skip
    if caller.delegates and any(isinstance(file, dict) and any(map(file.get, _TOKENS)) for file in files):
        raise FtsRequestRefused(409, _FOREIGN_KEY)
    job.files = [_file(job, first_file + index, index, file) for index, file in enumerate(files)]
    if options.job_type == "Y" and len({file.link for file in job.files}) > 1:
        raise bad_request("Reuse jobs can only contain transfers for the same source and destination storage")
    return job


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises FtsRequestRefused."""
    try:
        document = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise bad_request("Badly formatted JSON request") from None
    if not isinstance(document, dict):
        raise bad_request("Expecting a dictionary")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def parsed_priority(body: bytes) -> int | None:
    """The priority of `{"params": {"priority": n}}`, clamped to 1..5; None without one. Raises FtsRequestRefused."""
    params = read_object(body).get("params")
    if not isinstance(params, dict) or "priority" not in params:
        return None
    try:
        return _priority(int(params["priority"]))
    except (ValueError, TypeError, OverflowError):
        raise bad_request("Invalid priority value") from None


def _options(params: Mapping[str, Any], now: float, *, with_checksum: bool) -> JobOptions:
    for name in _UNSUPPORTED:
        if params.get(name):
            raise bad_request(f"{name} is not supported by this service")
    for name in _TAPE:
        if _whole(params, name, -1) > 0:
            raise bad_request(f"{name} is not supported by this service: it has no tape storage")
    overwrite, on_retry = bool(params.get("overwrite")), bool(params.get("overwrite_on_retry"))
    if overwrite and on_retry:
        raise bad_request("Incompatible overwrite flags used at the same time")
    asked = params.get("verify_checksum")
    # of a text FTS keeps the first letter, whatever it is
    verify = asked[0].lower() if isinstance(asked, str) and asked else "b" if asked else "n"
    if not asked and with_checksum:
        verify = "t"
    return JobOptions(
        verify, overwrite, on_retry, bool(params.get("dst_file_report")), bool(params.get("strict_copy")),
        _whole(params, "retry", 0), _whole(params, "retry_delay", 0), _whole(params, "timeout", 0),
        _queue_ends(params.get("max_time_in_queue"), now), "Y" if params.get("reuse") is True else "N",
    )  # fmt: skip


def _whole(params: Mapping[str, Any], name: str, default: int) -> int:
    value = _number(params.get(name), int)
    if value is None:
        return default
    if abs(value) >= 1 << 31:
        raise broken()
    return value


def _number(value: Any, kind: type[N]) -> N | None:
    """A number, or a text that has one, as FTS takes it; None for None. Raises FtsRequestRefused."""
    try:
        return None if value is None else kind(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise bad_request(f"Invalid value within the request: {error}") from None


def _priority(priority: int | None) -> int:
    return DEFAULT_PRIORITY if priority is None else min(5, max(1, priority))


def _queue_ends(value: Any, now: float) -> float | None:
    """A number is hours; a text has a unit. FTS takes anything else for no limit."""
    found = _DURATION.fullmatch(str(value))
    seconds = int(found[1]) * _UNITS[found[2] or "h"] if found else 0
    return now + seconds if seconds else None


def _job_id(params: Mapping[str, Any], vo_id: uuid.UUID) -> str:
    kind = params.get("id_generator", "standard")
    if kind == "standard":
        return str(uuid.uuid1())
    if kind != "deterministic":
        raise bad_request("Invalid value for id_generator")
    sid = params.get("sid")
    if sid is None:
        raise bad_request("Need sid for deterministic job id generation")
    if not isinstance(sid, str):
        raise bad_request(f'Malformed request: can only concatenate str (not "{type(sid).__name__}") to str')
    if not sid.isprintable():
        raise bad_request("Malformed request: sid has characters that UTF-8 cannot have")
    return str(uuid.uuid5(vo_id, sid))


def _metadata(value: Any, most: int) -> Any:
    if isinstance(value, str):
        value = {"label": value}
    if value is not None and len(json.dumps(value)) > most:
        refused = f"Job Submission Refused, metadata exceeds size limit of {most}"
        raise bad_request(f"Invalid value within the request: {refused}")
    return value


def _file(job: JobRecord, file_id: int, index: int, given: Any) -> FileRecord:
    if not isinstance(given, dict):
        raise bad_request(f"File {index}: expected an object")
    source, destination = (_url(given.get(name), name) for name in ("sources", "destinations"))
    size = _number(given.get("filesize"), float) or 0
    checksum, activity = given.get("checksum"), given.get("activity") or "default"
    if not abs(size) <= MOST_SIZE:
        raise broken()
    for text, most in ((source, MOST_URL), (destination, MOST_URL), (activity, MOST_ACTIVITY)):
        _require_storable(text, most)
    if checksum is not None:
        _require_storable(checksum, MOST_CHECKSUM)
    return FileRecord(
        file_id, index, job, source, destination, (storage_of(source), storage_of(destination)), int(size),
        checksum or None, activity, _metadata(given.get("metadata"), MOST_FILE_METADATA), _tokens(given),
    )  # fmt: skip


def _require_storable(text: Any, most: int) -> None:
    """What the column of the database can hold: FTS's are Latin-1. Raises FtsRequestRefused, 500."""
    try:
        storable = isinstance(text, str) and len(text.encode("latin-1")) <= most
    except UnicodeEncodeError:
        storable = False
    if not storable:
        raise broken()


def _url(urls: Any, name: str) -> str:
    if not urls:
        raise bad_request(f"Missing parameter: '{name}'")
    if len(urls) > 1 and isinstance(urls, list):
        raise bad_request(f"Several {name} of one file are not supported by this service")
    url = urls[0] if isinstance(urls, list | str) else None
    if not isinstance(url, str) or not url.isprintable():
        raise bad_request(f"Invalid value within the request: no URL in {name}")
    url = url.strip()
    try:
        fault = _url_fault(urlsplit(url))
    except ValueError:
        fault = "Malformed URL"
    if fault:
        raise bad_request(f"Invalid value within the request: {fault} ({url})")
    return url


def _url_fault(parts: SplitResult) -> str | None:
    """The part that FTS misses in a URL. Raises ValueError for a port that is no number."""
    _ = parts.port
    if not parts.scheme:
        return "Missing scheme"
    if parts.scheme == "file" and not parts.hostname:
        return "Can not transfer local files"
    if not parts.path or (parts.path == "/" and not parts.query):
        return "Missing path"
    return None if parts.hostname else "Missing host"


def _tokens(given: Mapping[str, Any]) -> tuple[str, str] | None:
    pair = [given.get(name) for name in _TOKENS]
    if pair == [None, None]:
        return None
    if not all(isinstance(tokens, list) and len(tokens) == 1 and isinstance(tokens[0], str) for tokens in pair):
        raise bad_request("A file needs one source and one destination token, or none")
    return str(pair[0][0]), str(pair[1][0])  # type: ignore[index]
