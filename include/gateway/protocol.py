"""Protocol between a gateway and its clients (docs/formats.md, gateway): durations, paths, signatures, bodies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from fractions import Fraction
from typing import Any, Self

from include.cvmfs.format.paths import is_below
from include.gateway.errors import BadLeasePath

NANOSECOND, MICROSECOND, MILLISECOND, SECOND = 1, 10**3, 10**6, 10**9
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND

_UNITS = {
    "h": HOUR, "m": MINUTE, "s": SECOND, "ms": MILLISECOND,
    "us": MICROSECOND, "µs": MICROSECOND, "μs": MICROSECOND, "ns": 1,
}  # fmt: skip
_PART = re.compile(r"([0-9]{1,19}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(ns|us|µs|μs|ms|h|m|s)")
_NUMBER = re.compile(r"[0-9]{1,19}(?:\.[0-9]{1,40})?")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? ([+-])(\d\d)(\d\d) \S+(?: m=\S+)?", re.ASCII
)


def format_duration(nanoseconds: int) -> str:
    """The text of Go's ``Duration.String``: ``1h59m58.123s``, ``7.5ms``, ``0s``."""
    if nanoseconds == 0:
        return "0s"
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left < SECOND:
        size, unit = next(
            (size, unit) for size, unit in ((MILLISECOND, "ms"), (MICROSECOND, "µs"), (1, "ns")) if left >= size
        )
        return sign + _decimal(left, size) + unit
    text = _decimal(left % MINUTE, SECOND) + "s"
    minutes = left // MINUTE
    if minutes:
        text = f"{minutes % 60}m" + text
    if minutes >= 60:
        text = f"{minutes // 60}h" + text
    return sign + text


def parse_duration(value: str | float) -> int:
    """Nanoseconds of a Go duration string, or of seconds given as a number or as its text. Raises ValueError."""
    if isinstance(value, int | float):
        if isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"not a duration: {value!r}")
        return round(value * SECOND)
    if _NUMBER.fullmatch(value):
        return int(Fraction(value) * SECOND)
    body = value[1:] if value[:1] in ("-", "+") else value
    total, position = Fraction(0), 0
    while position < len(body):
        part = _PART.match(body, position)
        if not part:
            raise ValueError(f"not a duration: {value[:80]!r}")
        total += Fraction(part[1] if part[1][-1] != "." else part[1][:-1]) * _UNITS[part[2]]
        position = part.end()
    if not body:
        raise ValueError("not a duration: ''")
    return -int(total) if value.startswith("-") else int(total)


def seconds(value: str | float) -> float:
    """Seconds of what ``parse_duration`` reads."""
    return parse_duration(value) / SECOND


def format_time(unix_ms: int) -> str:
    """The text of Go's ``Time.String`` in UTC: ``2026-11-21 00:41:53.972 +0000 UTC``."""
    whole = datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    fraction = f".{unix_ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{whole}{fraction} +0000 UTC"


def parse_time(text: str) -> datetime:
    """Read what ``format_time`` and Go print, in any zone; finer than a microsecond is cut off. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f"not a time: {text[:80]!r}")
    offset = timedelta(hours=int(match[9]), minutes=int(match[10]))
    zone = timezone(-offset if match[8] == "-" else offset)
    parts = [int(match[group]) for group in range(1, 7)]
    return datetime(*parts, int((match[7] or "0").ljust(6, "0")[:6]), tzinfo=zone)  # type: ignore[arg-type,misc]


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    digits = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0") if unit > 1 else ""
    return f"{whole}.{digits}" if digits else str(whole)


def sign(secret: str, message: bytes) -> str:
    """The signature: base64 of the 40 lower-case hex digits, not of the raw digest."""
    digits = hmac.new(secret.encode(), message, hashlib.sha1).hexdigest()
    return base64.b64encode(digits.encode()).decode()


def authorization(key_id: str, secret: str, message: bytes) -> str:
    """The header's value."""
    return f"{key_id} {sign(secret, message)}"


def split_authorization(header: str | None) -> tuple[str, str] | None:
    """Key id and signature; ``None`` if the header is absent or not two fields around one blank."""
    fields = (header or "").split(" ")
    return (fields[0], fields[1]) if len(fields) == 2 and all(fields) else None


def signature_fits(signature: str, secret: str, message: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(signature.encode("utf-8", "surrogateescape"), sign(secret, message).encode())


def sign_body(secret: str, token: str, body: bytes) -> str:
    """The signature of a call on a lease that covers its body too: HMAC-SHA256 in hex of token, newline and body."""
    return hmac.new(secret.encode(), token.encode() + b"\n" + body, hashlib.sha256).hexdigest()


def body_signature_fits(signature: str, secret: str, token: str, body: bytes) -> bool:
    """Compare in constant time."""
    expected = hmac.new(secret.encode(), token.encode("utf-8", "replace") + b"\n" + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(signature.encode("utf-8", "surrogateescape"), expected.encode())


PATH_BYTES, COMPONENT_BYTES = 4096, 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class LeasePath:
    """A path of a repository: ``""`` for all of it, else it begins with a slash and does not end with one."""

    repository: str
    path: str

    @classmethod
    def parse(cls, text: str) -> LeasePath:
        """Read ``<repository>/<path>`` and take off a trailing slash. Raises BadLeasePath with the gateway's reason."""
        if text.startswith("/"):
            raise BadLeasePath("input has leading slash", path=text)
        repository, slash, rest = text.partition("/")
        if not slash or not repository:
            raise BadLeasePath("missing repository name or subpath", path=text)
        if _CONTROL.search(repository):
            raise BadLeasePath("invalid lease path: control character", path=text)
        return cls(repository, checked_path("/" + rest))

    def __str__(self) -> str:
        return self.repository + (self.path or "/")


def checked_path(path: str) -> str:
    """An absolute path in the form that ``LeasePath`` keeps. Raises BadLeasePath naming what is wrong with it."""
    if path in ("", "/"):
        return ""
    try:
        data = path.encode()
    except UnicodeEncodeError:
        raise BadLeasePath("invalid lease path: not UTF-8", path=path.encode(errors="replace").decode()) from None
    if not path.startswith("/"):
        raise BadLeasePath("invalid lease path: does not begin with a slash", path=path)
    if len(data) > PATH_BYTES:
        raise BadLeasePath(f"invalid lease path: longer than {PATH_BYTES} bytes", path=path[:100])
    if _CONTROL.search(path):
        raise BadLeasePath("invalid lease path: control character", path=path)
    path = path.removesuffix("/")
    for component in path[1:].split("/"):
        if component in ("", ".", ".."):
            raise BadLeasePath(f"invalid lease path: component {component!r}", path=path)
        if len(component.encode()) > COMPONENT_BYTES:
            raise BadLeasePath(f"invalid lease path: a component is longer than {COMPONENT_BYTES} bytes", path=path)
    return path


def overlap(path: str, other: str) -> bool:
    """Tell whether one contains the other: two leases on them exclude each other."""
    return is_below(path, other) or is_below(other, path)


_TASK = re.compile(r"([^/\s]+)/([^/\s]+)/([^/\s\[]+)(?:\[(\d{1,9})\])? try (\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TaskName:
    """A try of a task. ``map_index``: -1 for a task that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int

    @classmethod
    def parse(cls, text: str) -> TaskName | None:
        """Return what ``format`` wrote; None for the name of anybody else."""
        match = _TASK.fullmatch(text)
        if match is None:
            return None
        dag_id, run_id, task_id, index, number = match.groups()
        return cls(dag_id, run_id, task_id, int(index) if index is not None else -1, int(number))

    def format(self) -> str:
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}/{self.run_id}/{self.task_id}{mapped} try {self.try_number}"


API = "/api/v1"
REPOSITORIES = "/repos"
LEASES = "/leases"
LEASES_BY_PATH = "/leases-by-path"
WAITING = "/waiting"
PAYLOADS = "/payloads"
COLLECTION = "/gc"
RELOAD = "/reload"

API_VERSION = 2
"""Version of the protocol that our client speaks."""
MIN_VERSION, MAX_VERSION = 2, 3
"""Versions that our service takes."""

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
    """Abilities that a gateway may have beyond the stock one."""

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
    """Path of a lease: GET shows it, POST commits under it, PATCH renews and DELETE drops it."""
    return f"{LEASES}/{token}"


@dataclass(frozen=True, slots=True)
class AcquireBody:
    """Body of ``POST /leases``, as it is sent. ``request``: drawn by chance, so that a repetition is known."""

    path: str
    api_version: str
    hostname: str
    request: str

    def format(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, body: bytes) -> AcquireBody:
        """Raises ValueError."""
        return cls(*texts_of(body, "path", "api_version", "hostname", "request"))


@dataclass(frozen=True, slots=True)
class CommitBody:
    """Body of ``POST /leases/<token>``, hashes as sent. ``generation``: of collections, when it was prepared."""

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


def parse_renewal(body: bytes) -> int | None:
    """Seconds in the body of ``PATCH /leases/<token>``; None: as many as the gateway allows. Raises ValueError."""
    seconds = parse_members(body).get("expires_in_sec") if body else None
    if seconds is None or seconds == 0:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 < seconds < 2**31:
        raise ValueError("expires_in_sec")
    return seconds


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
