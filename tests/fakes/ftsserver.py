"""A small FTS server over real HTTP: jobs in memory, delegation with real keys, and replies that a test puts in front.

Its replies have the form of FTS REST 3.13.4. It copies nothing: tests set the states of jobs and files.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from tests.fakes.loopback import Heard, LoopbackServer, respond

BASE = uuid.UUID("01874efb-4735-4595-bc9c-591aef8240c9")
TERMINAL = {"FINISHED", "FAILED", "FINISHEDDIRTY", "CANCELED"}


@dataclass(frozen=True)
class Scripted:
    """A reply that the next matching request gets in place of the server's own."""

    method: str
    path: str
    status: int
    body: bytes
    headers: dict[str, str]


class Refusal(Exception):
    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.document = status, {"status": f"{status} {name}", "message": message}


@dataclass
class FtsServer(LoopbackServer):
    """``delegated``: until when it has a proxy of the user.

    ``copies``: a job ends as finished once its status was asked for.
    """

    METHODS = ("GET", "PUT", "POST", "DELETE")

    method: str = "certificate"
    user_dn: str = "/DC=ch/CN=user"
    delegated: datetime | None = datetime(2099, 1, 1, tzinfo=UTC)
    tls: ssl.SSLContext | None = None
    copies: bool = False
    refuses_banned: bool = True
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    archive: dict[str, dict[str, Any]] = field(default_factory=dict)
    banned: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[Heard] = field(default_factory=list)
    scripted: list[Scripted] = field(default_factory=list)
    proxy: bytes = b""

    def __post_init__(self) -> None:
        self.vo_id = uuid.uuid5(BASE, "vo")
        self.key = _key()
        self._lock = threading.Lock()
        super().__init__(self.tls)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address}"

    def answer(self, method: str, path: str, status: int, body: bytes | Any = b"", **headers: str) -> None:
        """The next request whose path fits the expression gets this reply. What is not bytes is sent as JSON."""
        form = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.scripted.append(Scripted(method, path, status, form, headers))

    def count(self, method: str, path: str) -> int:
        return sum(one.method == method and bool(re.search(path, one.path)) for one in self.asked)

    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        answer = self.reply(request)
        respond(handler, answer.status, answer.body, answer.headers)

    def reply(self, request: Heard) -> Scripted:
        with self._lock:
            self.asked.append(request)
            for one in self.scripted:
                if one.method == request.method and re.search(one.path, request.path):
                    self.scripted.remove(one)
                    return one
            try:
                status, value = self._route(request)
            except Refusal as refusal:
                status, value = refusal.status, refusal.document
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        return Scripted("", "", status, body, {"Content-Type": "application/json"})

    def _route(self, request: Heard) -> tuple[int, Any]:
        parts = urlsplit(request.path)
        match request.method, *parts.path.strip("/").split("/"):
            case "GET", "whoami":
                return 200, self._identity()
            case _, "delegation", *rest:
                return self._delegation(request, rest)
            case "POST", "jobs":
                return 200, {"job_id": self._submit(request)}
            case method, "jobs", listed:
                return self._listed(method, listed, request)
            case "DELETE", "jobs", job_id, "files", listed:
                return 200, self._cancel_files(job_id, listed.split(","))
            case "GET", "archive", job_id:
                return 200, self._archived(job_id)
            case method, "ban", "se":
                return self._ban(method, request, parse_qs(parts.query))
        raise Refusal(404, "Not Found", "The requested URL was not found on the server.")

    def _identity(self) -> dict[str, Any]:
        return {
            "user_dn": self.user_dn, "dn": [self.user_dn], "base_id": str(BASE), "voms_cred": [], "vos": ["vo"],
            "vos_id": [str(self.vo_id)], "roles": [], "level": {"transfer": "vo"}, "delegation_id": "0123456789abcdef",
            "method": self.method, "is_root": False,
        }  # fmt: skip

    def _delegation(self, request: Heard, rest: list[str]) -> tuple[int, Any]:
        match request.method, *rest:
            case "GET", "0123456789abcdef":
                ends = self.delegated
                return 200, ends and {"termination_time": f"{ends:%Y-%m-%dT%H:%M:%S}", "voms_attrs": [""]}
            case "GET", "0123456789abcdef", "request":
                name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Dummy")])
                made = x509.CertificateSigningRequestBuilder(name).sign(self.key, hashes.SHA256())
                return 200, made.public_bytes(Encoding.PEM)
            case "PUT", "0123456789abcdef", "credential":
                self.proxy = request.body
                ends = x509.load_pem_x509_certificates(request.body)[0].not_valid_after_utc
                self.delegated = ends
                return 201, b""
        raise Refusal(403, "Forbidden", "The requested ID and the credentials ID do not match")

    def _submit(self, request: Heard) -> str:
        if request.headers.get("Content-Type") != "application/json":
            raise Refusal(400, "Bad Request", "No transfers operations specified")
        if self.delegated is None:
            raise Refusal(419, "Authentication Timeout", f'No delegation found for "{self.user_dn}"')
        document = json.loads(request.body)
        params = document["params"]
        known = params.get("id_generator") == "deterministic"
        job_id = str(uuid.uuid5(self.vo_id, params["sid"]) if known else uuid.uuid1())
        if job_id in self.jobs:
            raise Refusal(409, "Conflict", "The sid provided by the user is duplicated")
        for file in document["files"]:
            for url in (*file["sources"], *file["destinations"]):
                storage = f"{urlsplit(url).scheme}://{urlsplit(url).hostname}"
                if storage in self.banned and self.refuses_banned:
                    raise Refusal(403, "Forbidden", f"{storage} is banned")
        self.jobs[job_id] = {
            "job_id": job_id, "job_state": "SUBMITTED", "reason": None, "submit_time": "2026-11-23T10:00:00",
            "job_finished": None, "priority": params.get("priority", 3), "job_metadata": params.get("job_metadata"),
            "user_dn": self.user_dn, "vo_name": "vo", "job_type": "N", "params": params,
            "files": [_file(index, file) for index, file in enumerate(document["files"])],
        }  # fmt: skip
        return job_id

    def _listed(self, method: str, listed: str, request: Heard) -> tuple[int, Any]:
        found = []
        for job_id in filter(None, listed.split(",")):
            job = self.jobs.get(job_id)
            if job is None:
                text = f'No job with the id "{job_id}" has been found'
                found.append({"job_id": job_id, "http_status": "404 Not Found", "http_message": text})
                continue
            told: dict[str, Any] = {"http_status": "200 Ok"}
            if method != "GET" and job["job_state"] in TERMINAL:
                told = {"http_status": "304 Not Modified", "http_message": "The job is in a terminal state"}
            elif method == "DELETE":
                job["job_state"] = "CANCELED"
                for file in job["files"]:
                    file["file_state"] = file["file_state"] if file["file_state"] in TERMINAL else "CANCELED"
            elif method == "POST":
                job["priority"] = json.loads(request.body)["params"]["priority"]
            fields = parse_qs(urlsplit(request.path).query).get("files", [""])[0].split(",")
            files = [{name: file[name] for name in fields if name in file} for file in job["files"]]
            shown: dict[str, Any] = {"files": files} if "?files=" in request.path else {}
            found.append({**{name: value for name, value in job.items() if name != "files"}, **told, **shown})
            if self.copies and job["job_state"] not in TERMINAL:
                self.end(job_id)
        return 207 if any(one["http_status"].startswith("4") for one in found) else 200, found

    def _archived(self, job_id: str) -> dict[str, Any]:
        if job_id not in self.archive:
            raise Refusal(404, "Not Found", f'No job with the id "{job_id}" has been found in the archive')
        return self.archive[job_id]

    def end(self, job_id: str, **reasons: str) -> None:
        """End a job: its files are copied, but for those whose name, the last part of the destination, has a reason."""
        job = self.jobs[job_id]
        for file in job["files"]:
            reason = reasons.get(file["dest_surl"].rpartition("/")[2])
            state, began = "FAILED" if reason else "FINISHED", "2026-11-23T10:00:01"
            file |= {"file_state": state, "reason": reason, "start_time": began}
        states = {file["file_state"] for file in job["files"]}
        job["job_state"] = states.pop() if len(states) == 1 else "FINISHEDDIRTY"

    def _cancel_files(self, job_id: str, file_ids: list[str]) -> Any:
        files = {str(file["file_id"]): file for file in self.jobs[job_id]["files"]}
        told = []
        for file_id in file_ids:
            if file_id in files and files[file_id]["file_state"] not in TERMINAL:
                files[file_id]["file_state"] = "CANCELED"
            told.append(files[file_id]["file_state"] if file_id in files else "File does not belong to the job")
        return told if len(told) > 1 else told[0]

    def _ban(self, method: str, request: Heard, query: dict[str, list[str]]) -> tuple[int, Any]:
        if method == "GET":
            return 200, list(self.banned.values())
        if method == "DELETE":
            self.banned.pop(unquote(query["storage"][0]), None)
            return 204, b""
        asked = json.loads(request.body)
        waits = {"cancel": "CANCEL", "wait": "WAIT_AS" if asked["allow_submit"] else "WAIT"}
        self.banned[asked["storage"]] = {
            "se": asked["storage"], "addition_time": "2026-11-23T10:00:00", "admin_dn": self.user_dn, "vo": "vo",
            "message": asked["message"], "status": waits[asked["status"]],
        }  # fmt: skip
        return 200, []


@cache
def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _file(index: int, file: dict[str, Any]) -> dict[str, Any]:
    return {
        "file_id": 1000 + index, "file_index": index, "file_state": "SUBMITTED", "source_surl": file["sources"][0],
        "dest_surl": file["destinations"][0], "reason": None, "recoverable": None, "retry": 0,
        "filesize": file.get("filesize", 0), "checksum": file.get("checksum"), "start_time": None, "finish_time": None,
        "throughput": None, "transfer_host": None, "log_file": None, "file_metadata": file.get("metadata"),
    }  # fmt: skip
