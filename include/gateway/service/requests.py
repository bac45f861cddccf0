"""Reading requests: everything that a caller may send is either a value here or a clear refusal, never a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.history import NOT_IN_A_LINE
from include.gateway import protocol
from include.gateway.errors import BadLeasePath
from include.gateway.paths import LeasePath
from include.gateway.protocol import MAX_VERSION, MIN_VERSION, parse_members, texts_of
from include.gateway.service.replies import INVALID_LEASE, Malformed, Refused

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
        found = ObjectHash.parse(text)
    except CvmfsError as error:
        raise Refused(f"invalid {name}: {error}") from None
    if found.suffix not in ("", CATALOG):
        raise Refused(f"invalid {name}: {found.text} is not the hash of a catalog")
    return found.with_suffix(CATALOG)


def _read(parse: Callable[[bytes], T], body: bytes) -> T:
    try:
        return parse(body)
    except ValueError:
        raise Malformed(400, "invalid request body") from None
