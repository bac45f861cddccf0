"""What a gateway and its clients agree on: paths, headers, offers and bodies (docs/formats.md, gateway).

Paths are relative to ``API``. The ``X-Nightshift-*`` headers, the offers and the members ``request`` and ``generation``
are Nightshift's own; a stock gateway ignores them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

API = "/api/v1"
REPOSITORIES = "/repos"
LEASES = "/leases"
LEASES_BY_PATH = "/leases-by-path"
WAITING = "/waiting"
PAYLOADS = "/payloads"
COLLECTION = "/gc"
RELOAD = "/reload"

API_VERSION = 2
"""Of the protocol, as our client speaks it."""
MIN_VERSION, MAX_VERSION = 2, 3
"""As our service takes it."""

TRACE_HEADER = "X-Nightshift-Trace"
"""In every reply: the id by which the service's log knows the call."""
OFFERS_HEADER = "X-Nightshift-Offers"
"""In the reply to a greeting and to every acquire: what the gateway has beyond the stock one."""
EXPIRES_HEADER = "X-Nightshift-Expires-In"
"""With a grant and a renewal: seconds until the lease ends."""
EPOCH_HEADER = "X-Nightshift-Epoch"
"""With a grant: the fence of the lease."""
WAITING_HEADER = "X-Nightshift-Waiting"
"""With an acquire: the caller wants to know its place in the waiting list."""
BODY_SIGNATURE_HEADER = "X-Nightshift-Body-Signature"
"""With a commit or a renewal: ``auth.sign_body`` of the body, which the protocol's own signature leaves out."""


class Offer(Enum):
    """What a gateway may have beyond the stock one."""

    BODY_SIGNATURE = "body-signature"
    RENEWAL = "renewal"
    REPEATED_ACQUIRE = "repeated-acquire"
    WAITING_LIST = "waiting-list"


def format_offers(offers: frozenset[Offer]) -> str:
    """The header's value, in the order of ``Offer``."""
    return ", ".join(offer.value for offer in Offer if offer in offers)


def parse_offers(text: str) -> frozenset[Offer]:
    """The offers of a header; those of a later version, which are unknown here, are left out."""
    names = {name.strip() for name in text.split(",")}
    return frozenset(offer for offer in Offer if offer.value in names)


def lease_path(token: str) -> str:
    """Of one lease: GET shows it, POST commits under it, PATCH renews and DELETE drops it."""
    return f"{LEASES}/{token}"


@dataclass(frozen=True, slots=True)
class AcquireBody:
    """Of ``POST /leases``, as it is sent. ``request``: drawn by chance, so that a repetition is known."""

    path: str
    api_version: str
    hostname: str
    request: str

    def format(self) -> bytes:
        members = {
            "path": self.path, "api_version": self.api_version, "hostname": self.hostname, "request": self.request
        }  # fmt: skip
        return json.dumps(members).encode()

    @classmethod
    def parse(cls, body: bytes) -> AcquireBody:
        """Raises ValueError."""
        return cls(*texts_of(body, "path", "api_version", "hostname", "request"))


@dataclass(frozen=True, slots=True)
class CommitBody:
    """Of ``POST /leases/<token>``, hashes as they are sent. ``generation``: of collections, when it was prepared."""

    old_root_hash: str
    new_root_hash: str
    tag_name: str
    tag_description: str
    generation: str

    def format(self) -> bytes:
        members = {
            "old_root_hash": self.old_root_hash,
            "new_root_hash": self.new_root_hash,
            "tag_name": self.tag_name,
            "tag_channel": 0,
            "tag_description": self.tag_description,
            **({"generation": self.generation} if self.generation else {}),
        }
        return json.dumps(members).encode()

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Raises ValueError."""
        return cls(*texts_of(body, "old_root_hash", "new_root_hash", "tag_name", "tag_description", "generation"))


def format_enable(enabled: bool) -> bytes:
    """Body of ``POST /repos/<name>``."""
    return json.dumps({"enable": enabled, "wait": False}).encode()


def format_collection(repository: str, *, revisions: int, dry_run: bool) -> bytes:
    """Body of ``POST /gc``. ``revisions``: how many before the current one stay; 0: as ``cvmfs_server gc`` has it."""
    members = {"repo": repository, "num_revisions": revisions, "dry_run": dry_run, "verbose": True}
    return json.dumps(members).encode()


def format_renewal(wanted_s: int | None) -> bytes:
    """Body of ``PATCH /leases/<token>``: how long it shall last from now; None for as long as the gateway allows."""
    return b"" if wanted_s is None else json.dumps({"expires_in_sec": wanted_s}).encode()


def parse_renewal(body: bytes) -> int | None:
    """The same. Raises ValueError."""
    wanted = parse_members(body).get("expires_in_sec") if body else None
    if wanted is None or wanted == 0:
        return None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 < wanted < 2**31:
        raise ValueError("expires_in_sec")
    return wanted


def parse_members(body: bytes) -> dict[str, Any]:
    """The members of a JSON object. Raises ValueError."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def texts_of(body: bytes, *names: str) -> list[str]:
    """Members that are texts, "" for one that is absent. Raises ValueError."""
    members = parse_members(body)
    return [_text(members.get(name)) for name in names]


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError("no text")
    return value or ""


def _no_constant(name: str) -> None:
    raise ValueError(name)
