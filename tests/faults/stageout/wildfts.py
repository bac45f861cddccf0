"""An FTS server in this process, for the real client: it loses replies, forgets jobs, restarts and fails files.

Replies have the form of FTS REST 3.13. Time is passed in; files go on when `go_on` says what becomes of them.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NewConnectionError

from include.fts.client import FtsClient
from tests.faults.stageout.storages import Content, SimulatedStorages, place_of

VO = uuid.UUID("01874efb-4735-4595-bc9c-591aef8240c9")
IDENTITY = {
    "user_dn": "/CN=service", "method": "certificate", "vos": ["vo"], "vos_id": [str(VO)], "base_id": str(VO),
    "delegation_id": "0123456789abcdef", "level": {"transfer": "vo"},
}  # fmt: skip
TERMINAL = {"FINISHED", "FAILED", "CANCELED"}
JOB_TERMINAL = {*TERMINAL, "FINISHEDDIRTY"}


class Trouble(Enum):
    """What becomes of one request."""

    UNREACHABLE = "nothing arrives"
    LOST_REQUEST = "the connection ends, nothing was done"
    LOST_REPLY = "the connection ends, it was done"
    LATE = "the connection ends; it is done after the next request for the same job of the ledger, if there is one"
    HTML = "a page in place of the reply; it was done"
    OVERLOADED = "503, nothing was done"
    HALF = "half of the reply; it was done"
    FORGETFUL = "a reply without its last job"


class Outcome(Enum):
    """What becomes of a file when it is its turn: FTS's reason, and what is left at the destination."""

    WAITS = "waits"
    ACTIVE = "is being copied"
    FINISHED = "finished"
    WRONG = "finished, with another content at the destination"
    ALTERED = "finished, with other bytes of the same size at the destination"
    MISMATCH = "DESTINATION [5] User-defined and destination adler32 checksum do not match (1 != 2)"
    TIMEOUT = "TRANSFER [110] operation timeout"
    NO_SPACE = "TRANSFER [28] no space left on device"
    QUOTA = "DESTINATION [122] disk quota exceeded"
    DENIED = "DESTINATION [1] HTTP 403 : Permission refused"
    INVALID = "DESTINATION [36] File name too long"
    SOURCE_DOWN = "SOURCE [112] Result Could not connect to server"
    EXPIRED = "TRANSFER [13] the proxy has expired"
    ODD = "something that has no number"


WRITTEN = {Outcome.FINISHED, Outcome.WRONG, Outcome.ALTERED}
"""Finished, as FTS says."""
LEFT_BEHIND = {Outcome.MISMATCH, Outcome.TIMEOUT, Outcome.NO_SPACE}
"""A part of the file stays at the destination."""
BEFORE_THE_COPY = {Outcome.SOURCE_DOWN}
"""Sources are asked before destinations."""
STOPS = timedelta(minutes=5)
"""A copy of a job that was canceled goes on for so long at most."""
OUTLIVES = timedelta(seconds=602)
"""A copy that nothing stops goes on for so long: FTS's time limit of a small file."""


class Refused(Exception):
    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.document = status, {"status": f"{status} {name}", "message": message}


@dataclass
class FtsJobRow:
    """A job as the server has it."""

    id: str
    params: dict[str, Any]
    metadata: Any
    submitted: datetime
    files: list[dict[str, Any]]
    finished: datetime | None = None

    @property
    def state(self) -> str:
        states = {file["file_state"] for file in self.files}
        if states - TERMINAL:
            return "ACTIVE" if "ACTIVE" in states else "SUBMITTED"
        if "FAILED" in states:
            return "FINISHEDDIRTY" if "FINISHED" in states else "FAILED"
        return "CANCELED" if "CANCELED" in states else "FINISHED"

    def document(self, *, with_files: bool) -> dict[str, Any]:
        told = {
            "job_id": self.id, "job_state": self.state, "reason": None, "submit_time": _time(self.submitted),
            "job_finished": self.finished and _time(self.finished), "priority": self.params.get("priority", 3),
            "job_metadata": self.metadata, "http_status": "200 Ok",
        }  # fmt: skip
        return {**told, **({"files": self.files} if with_files else {})}


@dataclass
class WildFts:
    """One server.

    Attributes:
        writers: The job of each destination that is being worked on, of all servers.
        troubles: Of the next requests; `troubled`: only of those with this method.
    """

    clock: Callable[[], datetime]
    storages: SimulatedStorages
    writers: dict[tuple[str, str], str]
    reach: Callable[[str], None]
    name: str = "fts"
    jobs: dict[str, FtsJobRow] = field(default_factory=dict)
    archive: dict[str, FtsJobRow] = field(default_factory=dict)
    banned: dict[str, str] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    troubled: str | None = None
    stopping: list[tuple[FtsJobRow, dict[str, Any], datetime]] = field(default_factory=list)
    outliving: list[tuple[FtsJobRow, dict[str, Any], datetime]] = field(default_factory=list)
    """Files that FTS has ended, whose copies go on, and until when."""
    late: list[dict[str, Any]] = field(default_factory=list)
    down: bool = False
    file_ids: int = 1000

    def client(self) -> FtsClient:
        """The real client, whose requests end here."""
        client = FtsClient(f"http://{self.name}.example.org", retries=1, pause=lambda _: None)
        client._transport._session.mount("http://", _InProcess(self))
        return client

    # -- what happens to files

    def waiting(self) -> Iterator[tuple[FtsJobRow, dict[str, Any]]]:
        """Files that have not ended, the oldest job first."""
        for job in self.jobs.values():
            for file in job.files:
                if file["file_state"] not in TERMINAL:
                    yield job, file

    def go_on(self, outcomes: Iterable[Outcome]) -> list[tuple[tuple[str, str], Outcome]]:
        """Each file that waits, in turn, has one of the outcomes; the destinations of those that failed by it."""
        self.stop()
        done = []
        for (job, file), outcome in zip(list(self.waiting()), outcomes, strict=False):
            if self.turn(job, file, outcome):
                done.append((place_of(file["dest_surl"]), outcome))
        return done

    def stop(self, before: datetime | None = None) -> None:
        """Copies that were canceled, before a time if one is given, end and leave a part."""
        ending = [entry for entry in self.stopping if before is None or entry[2] < before]
        self.stopping = [entry for entry in self.stopping if before is not None and entry[2] >= before]
        for job, file, _ in ending:
            self._leave_part(job, file)
            self.end(job, file, "CANCELED", file["reason"])

    def expire(self) -> None:
        """Copies that nothing stops end at their time limit, whether the server is asked or not."""
        for entry in [entry for entry in self.outliving if entry[2] <= self.clock()]:
            # as late as it may: whatever is there by now is replaced
            job, file, _ = entry
            self.outliving.remove(entry)
            self._leave_part(job, file)
            self.release(job, file)

    def _leave_part(self, job: FtsJobRow, file: dict[str, Any]) -> None:
        part = Content(1, "adler32:0000beef", job.id, self.clock())
        self.storages.overwrite(*place_of(file["dest_surl"]), part, allowed=True)

    def _outlive(self, job: FtsJobRow, file: dict[str, Any]) -> None:
        began = datetime.fromisoformat(file["start_time"]).replace(tzinfo=UTC)
        self.outliving.append((job, file, began + OUTLIVES))

    def turn(self, job: FtsJobRow, file: dict[str, Any], outcome: Outcome) -> bool:
        """Whether the outcome is what became of the file."""
        now = self.clock()
        if file["file_state"] == "SUBMITTED" and now - job.submitted > queue_time(job):
            self.end(job, file, "CANCELED", "file was canceled because it stayed in the queue for too long")
            return False
        if outcome is Outcome.WAITS or any(_storage(file[key]) in self.banned for key in ("source_surl", "dest_surl")):
            return False
        destination, source = place_of(file["dest_surl"]), self.storages.files.get(place_of(file["source_surl"]))
        if file["file_state"] == "SUBMITTED":
            file.update(file_state="ACTIVE", start_time=_time(now), transfer_host=self.name, pid=file["file_id"])
            if outcome in BEFORE_THE_COPY:
                self.end(job, file, "FAILED", outcome.value)
                return True
            fault = self.start_fault(job, file, source, destination)
            if fault is not None:
                self.end(job, file, "FAILED", fault)
                return False
            self.storages.tried.add(destination)
        if source is not None:
            file.update(throughput=1.0)
        if outcome is Outcome.ACTIVE:
            return False
        if source is None:
            self.end(job, file, "FAILED", "SOURCE [2] Result HTTP 404 : File not found after 1 attempts")
            return False
        self.copied(job, file, outcome, source, destination)
        return outcome is not Outcome.FINISHED

    def start_fault(
        self, job: FtsJobRow, file: dict[str, Any], source: Content | None, destination: tuple[str, str]
    ) -> str | None:
        """What FTS finds out before it copies."""
        if source is None:
            return "SOURCE [2] Result HTTP 404 : File not found after 1 attempts"
        verifies = job.params.get("verify_checksum") in ("both", "source", True)
        if verifies and ":" in (file["checksum"] or "") and file["checksum"].lower() != source.checksum:
            return "SOURCE [5] Source and user-defined adler32 checksum do not match (1 != 2)"
        there = self.storages.files.get(destination)
        if there is not None and not job.params.get("overwrite"):
            return "DESTINATION [17] Destination file exists and overwrite is not enabled"
        return None

    def copied(
        self, job: FtsJobRow, file: dict[str, Any], outcome: Outcome, source: Content, destination: tuple[str, str]
    ) -> None:
        whole = Content(source.size, source.checksum, job.id, self.clock())
        size = source.size if outcome is Outcome.ALTERED else source.size // 2
        wrong = Content(size, "adler32:0bad0bad", job.id, self.clock())
        overwrites = bool(job.params.get("overwrite"))
        # a file that another wrote since the start was not there when FTS checked
        allowed = overwrites or destination not in self.storages.files
        if outcome in WRITTEN | LEFT_BEHIND:
            content = whole if outcome is Outcome.FINISHED else wrong
            self.storages.overwrite(*destination, content, allowed=allowed)
        if outcome in WRITTEN:
            file.update(filesize=source.size, checksum=source.checksum)
            self.end(job, file, "FINISHED", "")
        else:
            self.end(job, file, "FAILED", outcome.value)

    def end(self, job: FtsJobRow, file: dict[str, Any], state: str, reason: str | None) -> None:
        file.update(file_state=state, reason=reason, recoverable=False, finish_time=_time(self.clock()))
        self.note_end(job)
        self.release(job, file)

    def note_end(self, job: FtsJobRow) -> None:
        if job.finished is None and job.state in JOB_TERMINAL:
            job.finished = self.clock()

    def release(self, job: FtsJobRow, file: dict[str, Any]) -> None:
        place = place_of(file["dest_surl"])
        if self.writers.get(place) == job.id:
            del self.writers[place]

    def ban(self, storage: str, how: str | None) -> None:
        """Ban a storage, None: end its ban. With CANCEL its files that wait are canceled."""
        if how is None:
            self.banned.pop(storage, None)
            return
        self.banned[storage] = how
        if how == "CANCEL":
            for job, file in list(self.waiting()):
                if storage in (_storage(file["source_surl"]), _storage(file["dest_surl"])):
                    self.cancel(job, [file], "Storage banned", whole=False)

    def forget(self, which: Iterable[str], *, archived: bool) -> set[tuple[str, str]]:
        """Jobs that the server does not know any more: those that ended may be in its archive. Their destinations."""
        places = set()
        for job_id in which:
            self.stop()
            job = self.jobs.pop(job_id, None) or self.archive.pop(job_id, None)
            for file in job.files if job is not None else ():
                if file["file_state"] == "ACTIVE":
                    self._outlive(job, file)
                elif not any(file is other for _, other, _ in self.outliving):
                    self.release(job, file)
                places.add(place_of(file["dest_surl"]))
            if archived and job is not None and job.state in JOB_TERMINAL:
                self.archive[job_id] = job
        return places

    # -- requests

    def received(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """The reply to a request. Raises requests' errors."""
        self.reach(f"before {method} {path[:20]}")
        self.stop(self.clock() - STOPS)
        fits = self.troubles and self.troubled in (None, method)
        trouble = self.troubles.pop(0) if fits else None
        if self.down or trouble is Trouble.UNREACHABLE:
            raise requests.ConnectionError(NewConnectionError(HTTPConnection(self.name), "refused"))
        if trouble is Trouble.LATE and method == "POST" and body:
            self.late.append(json.loads(body))
        if trouble in (Trouble.LATE, Trouble.LOST_REQUEST):
            raise requests.ConnectionError("reset")
        if trouble is Trouble.OVERLOADED:
            return 503, b'{"status": "503 Service Unavailable", "message": "no connection of the pool"}'
        try:
            status, value = self.route(method, path, json.loads(body) if body else {})
        except Refused as refusal:
            status, value = refusal.status, refusal.document
        self.reach(f"after {method} {path[:20]}")
        if trouble is Trouble.LOST_REPLY:
            raise requests.ConnectionError("reset")
        if trouble is Trouble.HTML:
            return 502, b"<html><body>Bad Gateway</body></html>"
        if trouble is Trouble.FORGETFUL and isinstance(value, list):
            value = value[:-1]
        reply = json.dumps(value).encode()
        return status, reply[: len(reply) // 2] if trouble is Trouble.HALF else reply

    def route(self, method: str, path: str, document: dict[str, Any]) -> tuple[int, Any]:
        parts = urlsplit(path)
        match method, *parts.path.strip("/").split("/"):
            case "GET", "whoami":
                return 200, IDENTITY
            case "POST", "jobs":
                try:
                    return 200, {"job_id": self.submit(document["files"], document["params"])}
                finally:
                    self.arrive(document["params"]["job_metadata"]["job"])
            case "GET" | "DELETE", "jobs", listed:
                return self.listed(method, listed, with_files="files" in parse_qs(parts.query))
            case "DELETE", "jobs", job_id, "files", listed:
                return 200, self.cancel_files(job_id, [int(number) for number in listed.split(",")])
            case "GET", "archive", job_id:
                if job_id in self.archive:
                    return 200, self.archive[job_id].document(with_files=True)
                raise _no_job(job_id)
            case "GET", "ban", "se":
                return 200, [
                    {"se": name, "status": how, "vo": "vo", "message": ""} for name, how in self.banned.items()
                ]
            case "GET", "ban", "dn":
                return 200, []
        raise Refused(404, "Not Found", "The requested URL was not found on the server.")

    def arrive(self, number: int) -> None:
        """Late requests for a job of the ledger are done."""
        arriving = [document for document in self.late if document["params"]["job_metadata"]["job"] == number]
        self.late = [document for document in self.late if document not in arriving]
        for document in arriving:
            with suppress(Refused):
                self.submit(document["files"], document["params"])

    def submit(self, files: list[dict[str, Any]], params: dict[str, Any]) -> str:
        job_id = str(uuid.uuid5(VO, params["sid"]))
        if job_id in self.jobs or job_id in self.archive:
            raise Refused(409, "Conflict", "The sid provided by the user is duplicated")
        for file in files:
            for url in (*file["sources"], *file["destinations"]):
                if self.banned.get(_storage(url), "WAIT_AS") != "WAIT_AS":
                    raise Refused(403, "Forbidden", f"{_storage(url)} is banned")
        rows = [self.file(index, file) for index, file in enumerate(files)]
        job = FtsJobRow(job_id, params, params.get("job_metadata"), self.clock(), rows)
        for file in job.files:
            place = place_of(file["dest_surl"])
            if place in self.writers:
                self.storages.violations.append(f"{place} has two attempts: {self.writers[place]}, {job_id}")
            if params.get("overwrite") and place not in self.storages.tried:
                self.storages.violations.append(f"{job_id} may replace {place}, where no copy had begun")
            self.writers[place] = job_id
        self.jobs[job_id] = job
        return job_id

    def file(self, index: int, file: dict[str, Any]) -> dict[str, Any]:
        self.file_ids += 1
        return {
            "file_id": self.file_ids, "file_index": index, "file_state": "SUBMITTED",
            "source_surl": file["sources"][0], "dest_surl": file["destinations"][0], "reason": None,
            "recoverable": None, "retry": 0, "filesize": file.get("filesize"), "checksum": file.get("checksum"),
            "start_time": None, "finish_time": None, "throughput": None, "transfer_host": None, "pid": None,
            "file_metadata": file.get("metadata"),
        }  # fmt: skip

    def listed(self, method: str, listed: str, *, with_files: bool) -> tuple[int, Any]:
        found: list[dict[str, Any]] = []
        for job_id in filter(None, listed.split(",")):
            job = self.jobs.get(job_id)
            if job is None:
                text = f'No job with the id "{job_id}" has been found'
                found.append({"job_id": job_id, "http_status": "404 Not Found", "http_message": text})
            elif method == "GET":
                found.append(job.document(with_files=with_files))
            else:
                self.cancel(job, job.files)
                found.append(job.document(with_files=with_files))
        return 207 if any(part["http_status"].startswith("4") for part in found) else 200, found

    def cancel_files(self, job_id: str, file_ids: list[int]) -> Any:
        if job_id not in self.jobs:
            raise _no_job(job_id)
        job = self.jobs[job_id]
        files = {file["file_id"]: file for file in job.files}
        self.cancel(job, [files[number] for number in file_ids if number in files], None, whole=False)
        states = [
            files[number]["file_state"] if number in files else "File does not belong to the job" for number in file_ids
        ]
        return states if len(states) > 1 else states[0]

    def cancel(
        self,
        job: FtsJobRow,
        files: Iterable[dict[str, Any]],
        reason: str | None = "Job canceled by the user",
        *,
        whole: bool = True,
    ) -> None:
        """Cancel files. The daemon stops only copies of a job that was canceled as a whole."""
        for file in files:
            if file["file_state"] in TERMINAL:
                continue
            if file["file_state"] == "ACTIVE" and not whole:
                file.update(file_state="CANCELED", reason=reason, finish_time=_time(self.clock()))
                self._outlive(job, file)
                self.note_end(job)
            elif file["file_state"] == "ACTIVE":
                # it writes until the daemon stops it; only then it has a time of its end
                file.update(file_state="CANCELED", reason=reason)
                self.stopping.append((job, file, self.clock()))
                self.note_end(job)
            else:
                self.end(job, file, "CANCELED", reason)


class _InProcess(BaseAdapter):
    def __init__(self, server: WildFts) -> None:
        super().__init__()
        self.server = server

    def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
        body = request.body.encode() if isinstance(request.body, str) else request.body
        status, reply = self.server.received(str(request.method), request.path_url, body)
        response = requests.Response()
        response.status_code, response.request, response.url = status, request, str(request.url)
        response.raw = HTTPResponse(io.BytesIO(reply), status=status, preload_content=False)
        return response

    def close(self) -> None: ...


def queue_time(job: FtsJobRow) -> timedelta:
    """`max_time_in_queue` of a job."""
    text = str(job.params.get("max_time_in_queue") or "365d")
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1])
    return timedelta(seconds=int(text[:-1]) * unit) if unit else timedelta(hours=int(text))


def _no_job(job_id: str) -> Refused:
    return Refused(404, "Not Found", f'No job with the id "{job_id}" has been found')


def _storage(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}"
