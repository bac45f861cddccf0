"""Who the caller is, delegation, bans, links, and the storages that are simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from starlette.responses import Response

from lab.fts.callers import Caller
from lab.fts.copies.simulated import FAILURES, digits_of, made_up_checksum
from lab.fts.errors import FtsRequestRefused, bad_request
from lab.fts.http.calls import NOT_FOUND, FtsCalls, FtsRequest, is_number, moment, need_level, reply
from lab.fts.transfers import EVERY_VO, STORAGE, USER

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
