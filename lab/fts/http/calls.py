"""Calls of the embedded FTS: what they have in common, their documents, and how errors are answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lab.fts.callers import Caller
from lab.fts.errors import FtsRequestRefused, bad_request, broken, status_title
from lab.fts.records import FileRecord, JobRecord
from lab.fts.submission import read_object
from lab.fts.transfers import Transfers

HOST = "localhost"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def moment(seconds: float | None) -> str | None:
    """UTC without a zone, to the second."""
    return None if seconds is None else _second(int(seconds))


def job_document(job: JobRecord) -> dict[str, Any]:
    """A job without its files."""
    options, (source, destination) = job.options, _job_link(job)
    return {
        "job_id": job.job_id, "job_state": job.state.value, "job_type": options.job_type, "reason": job.reason,
        "submit_time": moment(job.submitted), "job_finished": moment(job.ended), "priority": job.priority,
        "source_se": source, "dest_se": destination, "user_dn": job.user, "vo_name": job.vo, "cred_id": job.vo,
        "submit_host": HOST, "job_metadata": job.metadata, "retry": options.retry,
        "retry_delay": options.retry_delay_s, "verify_checksum": options.verify,
        "overwrite_flag": "Y" if options.overwrite else None, "dst_file_report": options.dst_file_report,
        "max_time_in_queue": None if options.queue_ends is None else int(options.queue_ends),
        "bring_online": -1, "copy_pin_lifetime": -1, "archive_timeout": -1, "source_space_token": "",
        "space_token": "", "internal_job_params": None, "target_qos": None, "http_status": "200 Ok",
    }  # fmt: skip


def file_document(file: FileRecord, fields: Iterable[str] | None = None) -> dict[str, Any]:
    """Some fields of a file, or all; a name that no file has is left out."""
    return {name: _FILE[name](file) for name in (_FILE if fields is None else fields) if name in _FILE}


def _job_link(job: JobRecord) -> tuple[str | None, str | None]:
    """The storages of a job whose files are all on one link."""
    first = job.files[0].link
    return first if all(file.link == first for file in job.files) else (None, None)


def _seconds(file: FileRecord) -> float | None:
    return None if file.started is None or file.ended is None else round(file.ended - file.started, 3)


def _throughput(file: FileRecord) -> float | None:
    """MiB/s."""
    seconds = _seconds(file)
    return round(file.size / seconds / (1 << 20), 6) if seconds and file.size else None


_PATHS = {
    "file_id": "file_id", "file_index": "index", "file_state": "state.value", "job_id": "job.job_id",
    "source_surl": "source", "dest_surl": "destination", "reason": "reason", "recoverable": "recoverable",
    "retry": "retry", "user_filesize": "user_size", "checksum": "checksum", "transferred": "size",
    "activity": "activity", "priority": "job.priority", "file_metadata": "metadata", "vo_name": "job.vo",
}  # fmt: skip
_FILE: Mapping[str, Callable[[FileRecord], Any]] = {
    **{name: attrgetter(path) for name, path in _PATHS.items()},
    "source_se": lambda file: file.link[0],
    "dest_se": lambda file: file.link[1],
    "retry_timestamp": lambda file: moment(file.due) if file.due and not file.state.terminal else None,
    "filesize": lambda file: file.size or file.user_size,
    "start_time": lambda file: moment(file.started),
    "finish_time": lambda file: moment(file.ended),
    "tx_duration": _seconds,
    "throughput": _throughput,
    "transfer_host": lambda file: HOST if file.started is not None else None,
    # one for each copy, as where each is a process
    "pid": lambda file: file.file_id if file.started is not None else None,
    "selection_strategy": lambda _: "auto",
    "hashed_id": lambda file: file.file_id % 65536,
    **dict.fromkeys((
        "log_file", "log_file_debug", "internal_file_params", "staging_start", "staging_finished",
        "staging_metadata", "archive_start_time", "archive_finish_time", "archive_metadata", "scitag",
        "bringonline_token", "source_token_id", "destination_token_id", "current_failures", "dest_surl_uuid",
        "log_debug",
    ), lambda _: None),
}  # fmt: skip


JSON = "application/json"
NOT_FOUND = (
    "The requested URL was not found on the server. "
    "If you entered the URL manually please check your spelling and try again."
)


@dataclass(frozen=True, slots=True)
class FtsRequest:
    """One request: who sent it, its body, and when it came."""

    http: Request
    caller: Caller
    body: bytes
    now: float

    def path(self, name: str) -> str:
        """A part of the path."""
        return str(self.http.path_params[name])

    def query(self, name: str) -> str | None:
        return self.http.query_params.get(name)

    def object(self) -> dict[str, Any]:
        """The body as a JSON object. Raises FtsRequestRefused."""
        return read_object(self.body)


FtsHandler = Callable[[FtsRequest], Response]


@dataclass(frozen=True, slots=True)
class FtsCalls:
    """Handlers that share the service's transfers."""

    transfers: Transfers


def reply(value: Any, status: int = 200) -> Response:
    """A JSON document."""
    return Response(json.dumps(value, separators=(",", ":")), status, media_type=JSON)


def refusal(error: FtsRequestRefused) -> Response:
    """FTS's form of an error."""
    return reply({"status": error.title, "message": error.message}, error.status)


def job_refusal(job_id: str, error: FtsRequestRefused) -> dict[str, Any]:
    """FTS's form of an error about one job of several."""
    return {"job_id": job_id, "http_status": error.title, "http_message": error.message}


def page(status: int, text: str) -> Response:
    """A page, as FTS's login and the web server before it reply with."""
    title = status_title(status)
    html = f"<!doctype html>\n<title>{title}</title>\n<h1>{title.partition(' ')[2]}</h1>\n<p>{text}</p>\n"
    return Response(html, status, media_type="text/html")


def for_users(handler: FtsHandler, path: str) -> FtsHandler:
    """The handler, refused to callers without a credential: 403, as FTS has it, not 401.

    It is 500 below `/jobs/`, where FTS looks for the caller's VO before it looks for the right.
    """

    def call(request: FtsRequest) -> Response:
        if request.caller.method == "unauthenticated":
            raise broken() if path.startswith("/jobs/") else FtsRequestRefused(403, "Not enough permissions")
        return handler(request)

    return call


def need_level(caller: Caller) -> None:
    """Raises FtsRequestRefused unless the caller may configure."""
    if not caller.admin:
        raise FtsRequestRefused(403, "Not enough permissions")


_COUNTS = ("html", "busy", "partial")


@dataclass(slots=True)
class Faults:
    """Faults of replies below `/jobs`, after their request was done.

    `delay_s`: each reply comes that much later. `counts`: how many of the next replies are a page (`html`), 503
    (`busy`), or, if they are about several jobs, miss the first one (`partial`: 207). `fails`: submissions whose body
    has one of these texts get 500, and nothing is done.
    """

    transfers: Transfers
    delay_s: float = 0.0
    fails: tuple[bytes, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def set(self, request: FtsRequest) -> Response:
        """`{"delay_s", "html", "busy", "partial", "fails": [texts], "forget": [job ids]}`; what is not named ends."""
        need_level(request.caller)
        document = request.object()
        delay, forget = document.get("delay_s", 0), document.get("forget", [])
        counts = {name: document.get(name, 0) for name in _COUNTS}
        fails = document.get("fails", [])
        lists = isinstance(forget, list) and isinstance(fails, list)
        if not all(is_number(number) for number in [delay, *counts.values()]) or not lists:
            raise bad_request("Invalid faults: expected numbers, and lists of texts and of job ids to forget")
        self.delay_s, self.counts = float(delay), counts
        self.fails = tuple(str(text).encode() for text in fails)
        forgotten = [job_id for job_id in forget if self.transfers.forget(str(job_id), request.now)]
        return reply({"delay_s": self.delay_s, **counts, "forgotten": forgotten})

    def before(self, http: Request, body: bytes) -> None:
        """Apply the fault that comes before a request is done. Raises FtsRequestRefused."""
        submits = http.method in ("POST", "PUT") and http.url.path == "/jobs"
        if submits and any(text in body for text in self.fails):
            raise broken()

    async def applied(self, http: Request, response: Response) -> Response:
        """The reply as the caller gets it."""
        if not http.url.path.startswith("/jobs"):
            return response
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self._takes("html"):
            return page(500, "The server encountered an internal error")
        if self._takes("busy"):
            return page(503, "The server is temporarily unable to service your request")
        if "," in http.url.path and self._takes("partial"):
            documents: list[dict[str, Any]] = json.loads(bytes(response.body))
            missing = FtsRequestRefused(500, "Internal Server Error")
            return reply([job_refusal(documents[0]["job_id"], missing), *documents[1:]], 207)
        return response

    def _takes(self, name: str) -> bool:
        left = self.counts.get(name, 0)
        if left:
            self.counts[name] = left - 1
        return left > 0


def is_number(value: object) -> bool:
    """Tell if a value of a document is a number that is neither negative nor very large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e6
