"""The handlers: jobs and files, who the caller is, delegation, bans, links, and the storages that are simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from starlette.responses import Response

from lab.fts.callers import Caller
from lab.fts.copies.simulated import FAILURES, digits_of, made_up_checksum
from lab.fts.errors import FtsRequestRefused, bad_request
from lab.fts.http.calls import (
    HOST,
    NOT_FOUND,
    FtsCalls,
    FtsRequest,
    file_document,
    is_number,
    job_document,
    job_refusal,
    moment,
    need_level,
    reply,
)
from lab.fts.records import JobRecord
from lab.fts.submission import parsed_priority
from lab.fts.transfers import EVERY_VO, STORAGE, USER

MOST_LISTED, MOST_LISTED_FILES = 500, 1000
_FORM = ("application/x-www-form-urlencoded", "multipart/form-data")
_TERMINAL = {"http_status": "304 Not Modified", "http_message": "The job is in a terminal state"}


class JobCalls(FtsCalls):
    """Calls below `/jobs` and `/archive`."""

    def submit(self, request: FtsRequest) -> Response:
        if request.http.headers.get("content-type", "").startswith(_FORM):
            # FTS sees no files in a form, whatever the body is; the public client gives no type
            raise bad_request("No transfers operations specified")
        return reply({"job_id": self.transfers.submit(request.caller, request.body, request.now)})

    def list(self, request: FtsRequest) -> Response:
        """The caller's jobs; without `state_in`, those that have not ended."""
        caller, states, limit = request.caller, _states(request), _limit(request)
        if request.query("dlg_id") not in (None, caller.delegation_id):
            raise FtsRequestRefused(403, "The provided delegation id does not match your delegation id")
        if request.query("user_dn") not in (None, caller.user):
            raise bad_request("The provided DN and delegation id do not correspond to the same user")
        jobs = (
            job_document(job)
            for job in self.transfers.jobs(caller)
            if (job.state.value in states if states else not job.state.terminal)
        )
        return reply(list(islice(jobs, limit)))

    def files(self, request: FtsRequest) -> Response:
        """Files of the caller's jobs that have not ended."""
        states, names = _states(request), ("source_se", "dest_se", "dest_surl")
        asked = {name: text for name in names if (text := request.query(name))}
        files = (
            file_document(file)
            for job in self.transfers.jobs(request.caller)
            for file in job.files
            if not file.state.terminal and (not states or file.state.value in states)
            if file_document(file, asked) == asked
        )
        return reply(list(islice(files, MOST_LISTED_FILES)))

    def status(self, request: FtsRequest) -> Response:
        fields = [name for name in (request.query("files") or "").split(",") if name]

        def document(job: JobRecord) -> dict[str, Any]:
            files = {"files": [file_document(file, fields) for file in job.files]} if fields else {}
            return {**job_document(job), **files}

        return self._each(request, document)

    def cancel(self, request: FtsRequest) -> Response:
        def cancel(job: JobRecord) -> dict[str, Any]:
            canceled = self.transfers.cancel(job, request.now)
            return {**job_document(job), **({} if canceled else _TERMINAL)}

        return self._each(request, cancel)

    def cancel_all(self, _: FtsRequest) -> Response:
        """FTS cancels the jobs of others for its root only, which no caller is."""
        raise FtsRequestRefused(403, "User does not have root privileges")

    def modify(self, request: FtsRequest) -> Response:
        priority = parsed_priority(request.body)

        def prioritize(job: JobRecord) -> dict[str, Any]:
            changed = self.transfers.prioritize(job, priority, request.now)
            return {**job_document(job), **({} if changed else _TERMINAL)}

        return self._each(request, prioritize)

    def field(self, request: FtsRequest) -> Response:
        """Return one field of a job."""
        job, name = self._job(request), request.path("field")
        document = job_document(job)
        if name == "files":
            return reply([file_document(file) for file in job.files])
        if name == "dm":
            return reply([])
        if name not in document:
            raise FtsRequestRefused(404, "No such field")
        return reply(document[name])

    def cancel_files(self, request: FtsRequest) -> Response:
        answers = self.transfers.cancel_files(self._job(request), request.path("file_ids").split(","), request.now)
        return reply(answers[0] if len(answers) == 1 else answers)

    def retries(self, request: FtsRequest) -> Response:
        file_id = request.path("file_ids")
        file = next((file for file in self._job(request).files if str(file.file_id) == file_id), None)
        if file is None:
            raise FtsRequestRefused(404, f'No file with the id "{file_id[:64]}" has been found')
        attempts = enumerate(file.attempts or (), start=1)
        return reply([
            {"file_id": file.file_id, "attempt": number, "datetime": moment(when), "reason": reason,
             "transfer_host": HOST}
            for number, (when, reason) in attempts
        ])  # fmt: skip

    def archive(self, _: FtsRequest) -> Response:
        job = {"href": "/archive/{id}", "title": "Archived job information", "templated": True}
        return reply(
            {"_links": {"curies": [{"name": "fts", "href": "https://gitlab.cern.ch/fts/fts3"}], "fts:archivedJob": job}}
        )

    def archived(self, request: FtsRequest) -> Response:
        """A job of the archive, with its files."""
        job = self.transfers.archived(request.caller, request.path("job_id"))
        return reply({**job_document(job), "files": [file_document(file) for file in job.files]})

    def _job(self, request: FtsRequest) -> JobRecord:
        return self.transfers.job(request.caller, request.path("job_ids"))

    def _each(self, request: FtsRequest, act: Callable[[JobRecord], dict[str, Any]]) -> Response:
        """A reply about one job, or with a comma in the path, a list about several: 207 if one of them has an error."""
        text = request.path("job_ids")
        documents, status = [], 200
        for job_id in dict.fromkeys(part for part in text.split(",") if part):
            try:
                documents.append(act(self.transfers.job(request.caller, job_id)))
            except FtsRequestRefused as error:
                documents.append(job_refusal(job_id, error))
                status = error.status if "," not in text else 207
        return reply(documents if "," in text else documents[0], status)


def _states(request: FtsRequest) -> set[str]:
    return set(filter(None, (request.query("state_in") or "").split(",")))


def _limit(request: FtsRequest) -> int:
    """Read how many jobs are listed; 0 and what is no number stand for MOST_LISTED. Raises FtsRequestRefused."""
    try:
        limit = int(request.query("limit") or 0)
    except ValueError:
        limit = 0
    if not 0 <= limit <= MOST_LISTED:
        raise bad_request(f"The limit must be positive and less or equal than {MOST_LISTED}")
    return limit or MOST_LISTED


MOST_NAMES = 100_000
_FOREVER_S = 7 * 86400


class IdentityCalls(FtsCalls):
    """`/`, `/whoami` and `/delegation`."""

    def root(self, _: FtsRequest) -> Response:
        version = {"major": 3, "minor": 13, "patch": 4}
        return reply({
            "service": "nightshift-fts", "core": "nightshift", "delegation": {"major": 1, "minor": 0, "patch": 0},
            "api": version, "schema": {"major": 9, "minor": 0, "patch": 0},
            "_links": {"whoami": {"href": "/whoami"}, "jobs": {"href": "/jobs"}},
        })  # fmt: skip

    def whoami(self, request: FtsRequest) -> Response:
        return reply(request.caller.document())

    def delegated(self, request: FtsRequest) -> Response:
        caller = self._own(request)
        if not caller.delegates:
            # nothing has to be delegated; clients that check first find what they need
            return reply({"termination_time": moment(request.now + _FOREVER_S), "voms_attrs": []})
        ends = self.transfers.delegations.get(caller.user, {}).get("ends")
        return reply(None if ends is None else {"termination_time": moment(ends), "voms_attrs": []})

    def request_proxy(self, request: FtsRequest) -> Response:
        """A certificate request; its key stays the same until a proxy comes."""
        caller = self._own(request)
        known = self.transfers.delegations.get(caller.user, {})
        if "key" in known:
            key = load_pem_private_key(known["key"].encode(), password=None)
        else:
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
            self.transfers.delegate(caller.user, {**known, "key": text})
        assert isinstance(key, rsa.RSAPrivateKey)  # noqa: S101 - made here
        name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Dummy")])
        made = x509.CertificateSigningRequestBuilder(name).sign(key, hashes.SHA256())
        return Response(made.public_bytes(Encoding.PEM), media_type="text/plain")

    def delegate(self, request: FtsRequest) -> Response:
        """Take the signed proxy; it must be of the key that was asked for."""
        caller = self._own(request)
        known = self.transfers.delegations.get(caller.user, {})
        try:
            proxy, *_ = x509.load_pem_x509_certificates(request.body)
            ours = load_pem_private_key(known["key"].encode(), password=None).public_key()
        except (ValueError, KeyError):
            raise bad_request("Could not process the proxy: Malformed proxy") from None
        if proxy.public_key() != ours:
            raise bad_request("The proxy is not of the key that was requested")
        ends = proxy.not_valid_after_utc.timestamp()
        if ends <= request.now:
            raise bad_request("The proxy has expired")
        # copies do not use it: the key is not kept
        self.transfers.delegate(caller.user, {"ends": ends})
        return Response(status_code=201)

    def undelegate(self, request: FtsRequest) -> Response:
        self.transfers.delegate(self._own(request).user, None)
        return Response(status_code=204)

    def voms(self, request: FtsRequest) -> Response:
        self._own(request)
        raise FtsRequestRefused(424, "This service has no VOMS servers")

    def _own(self, request: FtsRequest) -> Any:
        if request.path("delegation_id") != request.caller.delegation_id:
            raise FtsRequestRefused(403, "The requested ID and the credentials ID do not match")
        return request.caller


class LinkCalls(FtsCalls):
    """`/ban` and `/optimizer`."""

    def bans(self, request: FtsRequest) -> Response:
        need_level(request.caller)
        kind = _ban_kind(request)
        return reply([ban for (of, *_), ban in self.transfers.bans.items() if of == kind])

    def ban(self, request: FtsRequest) -> Response:
        need_level(request.caller)
        kind, document = _ban_kind(request), request.object()
        name = _text(document, _PARAMETER[kind])
        ban = {
            kind: name, "addition_time": moment(request.now), "admin_dn": request.caller.user,
            "message": str(document.get("message") or "")[:256],
        }  # fmt: skip
        if kind == STORAGE:
            ban |= {"status": _ban_status(document), "vo": _vo(kind, request.caller)}
        elif name == request.caller.user:
            raise FtsRequestRefused(409, "The user tried to ban (her|his)self")
        else:
            ban |= {"status": None}
        return reply(self.transfers.ban(kind, name, _vo(kind, request.caller), ban, request.now))

    def unban(self, request: FtsRequest) -> Response:
        need_level(request.caller)
        kind = _ban_kind(request)
        name = request.query(_PARAMETER[kind])
        if not name:
            raise bad_request(f"Missing {_PARAMETER[kind]} parameter")
        self.transfers.unban(kind, name, _vo(kind, request.caller), request.now)
        return Response(status_code=204)

    def optimizer(self, _: FtsRequest) -> Response:
        return reply(True)

    def decisions(self, request: FtsRequest) -> Response:
        """The limit of each link that has files, with how many are active and how many wait."""
        limit = self.transfers.scheduler.active_per_link
        return reply([
            {"source_se": source, "dest_se": destination, "datetime": moment(request.now), "active": limit,
             "nostreams": 1, "ema": None, "running": running, "queued": queued}
            for (source, destination), (running, queued) in sorted(self.transfers.scheduler.links().items())
        ])  # fmt: skip


class SimulatedCalls(FtsCalls):
    """`/simulated`: the files of `mock://` storages, in bulk, and the model of their copies."""

    def stat(self, request: FtsRequest) -> Response:
        find, document = self.transfers.namespace.find, request.object()
        as_source = document.get("sources") is True
        urls = _urls(document)
        return reply({"files": [_content(url, find(url, source=as_source)) for url in urls]})

    def remove(self, request: FtsRequest) -> Response:
        """Remove files; the reply has for each whether it existed."""
        remove = self.transfers.namespace.remove
        return reply({"files": [{"url": url, "removed": remove(url)} for url in _urls(request.object())]})

    def create(self, request: FtsRequest) -> Response:
        """Create `{"files": [{"url", "size"}, ..]}`, or one `{"url", "size"}`."""
        document = request.object()
        files = document.get("files", [document])
        if not isinstance(files, list) or len(files) > MOST_NAMES:
            raise bad_request(f"Invalid value for files: expected a list of up to {MOST_NAMES}")
        contents = {}
        for file in files:
            size = file.get("size") if isinstance(file, dict) else None
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 62:
                raise bad_request("Invalid value for size: expected a number of bytes")
            name = _text(file, "url").partition("?")[0]
            contents[name] = size, made_up_checksum(name, size)
        for name, content in contents.items():
            self.transfers.namespace.put(name, content)
        return reply({"created": len(contents)}, 201)

    def list(self, request: FtsRequest) -> Response:
        found = self.transfers.namespace.list(request.query("prefix") or "", MOST_NAMES)
        return reply({"files": [_content(name, content) for name, content in found]})

    def model(self, request: FtsRequest) -> Response:
        """Change the model: `mean_s`, `spread`, `failures`."""
        need_level(request.caller)
        document, model = request.object(), self.transfers.simulated.model
        failures = document.get("failures", model.failures)
        numbers = [document.get("mean_s", model.mean_s), document.get("spread", model.spread)]
        if not isinstance(failures, dict) or failures.keys() - FAILURES.keys():
            raise bad_request(f"Invalid value for failures: expected fractions of {', '.join(FAILURES)}")
        if not all(map(is_number, [*numbers, *failures.values()])):
            raise bad_request("Invalid model: expected numbers that are not negative")
        self.transfers.simulated.model = replace(model, mean_s=numbers[0], spread=numbers[1], failures=failures)
        return reply({"mean_s": numbers[0], "spread": numbers[1], "failures": failures})


_PARAMETER = {STORAGE: "storage", USER: "user_dn"}


def _ban_kind(request: FtsRequest) -> str:
    kind = request.path("kind")
    if kind not in _PARAMETER:
        raise FtsRequestRefused(404, NOT_FOUND)
    return kind


def _vo(kind: str, admin: Caller) -> str:
    """Return whose jobs a ban is for: storages are banned for the VO of the administrator."""
    return admin.delegation_id if kind == STORAGE else EVERY_VO


def _ban_status(document: Mapping[str, Any]) -> str:
    status, allow = str(document.get("status") or "cancel").upper(), bool(document.get("allow_submit"))
    if status not in ("CANCEL", "WAIT"):
        raise bad_request("status can only be cancel or wait")
    if allow and status == "CANCEL":
        raise bad_request("allow_submit and status = CANCEL can not be combined")
    return "WAIT_AS" if allow else status


def _text(document: Any, name: str) -> str:
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 1100:
        raise bad_request(f"Missing {name} parameter")
    return value


def _urls(document: dict[str, Any]) -> list[str]:
    urls = document.get("urls")
    if (
        not isinstance(urls, list)
        or len(urls) > MOST_NAMES
        or not all(isinstance(url, str) and url.isprintable() for url in urls)
    ):
        raise bad_request(f"Invalid value for urls: expected a list of up to {MOST_NAMES} texts")
    return urls


def _content(url: str, content: tuple[int, int] | None) -> dict[str, Any]:
    if content is None:
        return {"url": url, "size": None, "checksum": None}
    return {"url": url, "size": content[0], "checksum": f"adler32:{digits_of(content[1])}"}
