"""Requests and replies: everything that a caller may send is either a value here or a clear refusal, never a
traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response

from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.database import NOT_IN_A_LINE
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.errors import NightshiftError
from include.gateway import protocol
from include.gateway.errors import BadLeasePath
from include.gateway.protocol import MAX_VERSION, MIN_VERSION, LeasePath, parse_members, texts_of

_TEXT_TYPE = "text/plain; charset=utf-8"
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


class Refused(NightshiftError):
    """The call is answered with ``status=error``; ``detail`` is one more member, for people."""

    code = "request-refused"

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class Malformed(NightshiftError):
    """The request is answered with an HTTP error and a line of text."""

    code = "request-malformed"

    def __init__(self, status: int, text: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = dict(headers or {})


INVALID_LEASE = "invalid lease"


def go_json(value: Mapping[str, Any]) -> bytes:
    """Compact JSON with ``<``, ``>``, ``&`` escaped; members keep their order, as Go keeps the fields of a struct."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES).encode("utf-8", "replace")


def answer(members: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> Response:
    """HTTP 200 with the members sorted by name, as Go sorts a map."""
    body = go_json({name: members[name] for name in sorted(members)})
    return Response(body, headers=dict(headers or {}), media_type=_TEXT_TYPE)


def raw(body: bytes) -> Response:
    """HTTP 200 with what ``go_json`` made."""
    return Response(body, media_type=_TEXT_TYPE)


def ok(**members: Any) -> Response:
    return answer({"status": "ok", **members})


def error(reason: str, detail: str | None = None) -> Response:
    members = {"status": "error", "reason": reason}
    return answer(members if detail is None else {**members, "detail": detail})


def plain(status: int, text: str, *, headers: Mapping[str, str] | None = None) -> Response:
    """An HTTP error as Go's ``http.Error`` writes it: the text and a newline."""
    return Response(
        text + "\n", status, headers={"X-Content-Type-Options": "nosniff", **(headers or {})}, media_type=_TEXT_TYPE
    )


def moved(status: int, location: str) -> Response:
    """A redirect as Go writes it; only GET gets a body."""
    body = f'<a href="{location}">Moved Permanently</a>.\n\n' if status == 301 else ""
    return Response(body, status, headers={"Location": location}, media_type="text/html; charset=utf-8")


T = TypeVar("T")

BODY_BYTES = 64 * 1024

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_SIZE = re.compile(r"[0-9]{1,18}")
_TOKEN = re.compile(r"[A-Z2-7]{52}====")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_HOSTNAME_CHARACTERS, _TAG_CHARACTERS, _DESCRIPTION_CHARACTERS = 256, 255, 4096


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Body of ``POST /leases``. ``request``: our own member, by which a repetition is known."""

    path: LeasePath
    version: int
    hostname: str
    request: str = ""

    @classmethod
    def parse(cls, body: bytes, *, remote: str) -> LeaseRequest:
        """Raises Malformed (HTTP 400) or Refused. ``remote`` replaces an absent hostname."""
        sent = _read(protocol.AcquireBody.parse, body)
        version, hostname = sent.api_version, sent.hostname
        if not _INTEGER.fullmatch(version):
            raise Malformed(400, "invalid request body")
        if int(version) < MIN_VERSION:
            raise Refused(f"incompatible request version: {int(version)}, min version: {MIN_VERSION}")
        if len(hostname) > _HOSTNAME_CHARACTERS or _CONTROL.search(hostname):
            raise Refused(
                f"invalid hostname: at most {_HOSTNAME_CHARACTERS} characters, none of them a control character"
            )
        try:
            lease = LeasePath.parse(sent.path)
        except BadLeasePath as error:
            raise Refused(str(error)) from None
        return cls(lease, min(int(version), MAX_VERSION), hostname or remote, sent.request)


class CommitRequest(protocol.CommitBody):
    """Body of ``POST /leases/<token>``. The hashes are parsed only once the lease is known: ``roots``."""

    __slots__ = ()

    @classmethod
    def parse(cls, body: bytes) -> CommitRequest:
        """Raises Malformed (HTTP 400)."""
        return _read(super().parse, body)

    def roots(self) -> tuple[ObjectHash, ObjectHash]:
        """Both root hashes. Raises Refused naming the member."""
        return _root("old_root_hash", self.old_root_hash), _root("new_root_hash", self.new_root_hash)

    def check_tag(self) -> None:
        """Raises Refused for a tag that no history can hold."""
        if len(self.tag_name) > _TAG_CHARACTERS or NOT_IN_A_LINE.search(self.tag_name):
            raise Refused(f"invalid tag_name: at most {_TAG_CHARACTERS} characters, none of them a control character")
        if len(self.tag_description) > _DESCRIPTION_CHARACTERS or NOT_IN_A_LINE.search(self.tag_description):
            one_line = f"at most {_DESCRIPTION_CHARACTERS} characters in one line, none of them a control character"
            raise Refused(f"invalid tag_description: {one_line}")


@dataclass(frozen=True, slots=True)
class PayloadMessage:
    """The message before the pack of a payload. ``digest``: SHA-1 of the pack's header, in hex; as sent."""

    token: str
    digest: str
    header_size: int

    @classmethod
    def parse(cls, body: bytes) -> PayloadMessage:
        """Raises Malformed (HTTP 400)."""
        names = ("session_token", "payload_digest", "header_size", "api_version")
        token, digest, size, _ = _read(lambda data: texts_of(data, *names), body)
        if not _SIZE.fullmatch(size):
            raise Malformed(400, "invalid header_size")
        return cls(token, digest, int(size))


def parse_enable(body: bytes) -> bool:
    """Body of ``POST /repos/<name>``. Raises Malformed."""
    enable = _read(parse_members, body).get("enable", False)
    if not isinstance(enable, bool):
        raise Malformed(400, "invalid request body")
    return enable


def parse_collection(body: bytes) -> str:
    """Body of ``POST /gc``: the repository. Raises Malformed."""
    [repository] = _read(lambda data: texts_of(data, "repo"), body)
    return repository


def parse_renewal(body: bytes) -> float | None:
    """Body of ``PATCH /leases/<token>``: the seconds asked for, or ``None``. Raises Malformed."""
    return _read(protocol.parse_renewal, body)


def checked_token(text: str) -> str:
    """Raises Refused for what cannot be a token, as for one that is unknown."""
    if not _TOKEN.fullmatch(text):
        raise Refused(INVALID_LEASE)
    return text


def _root(name: str, text: str) -> ObjectHash:
    try:
        root = ObjectHash.parse(text)
    except CvmfsError as error:
        raise Refused(f"invalid {name}: {error}") from None
    if root.suffix not in ("", CATALOG):
        raise Refused(f"invalid {name}: {root.text} is not the hash of a catalog")
    return root.with_suffix(CATALOG)


def _read(parse: Callable[[bytes], T], body: bytes) -> T:
    try:
        return parse(body)
    except ValueError:
        raise Malformed(400, "invalid request body") from None
