"""What a reply means: nothing if its status is ok, else an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from include.gateway.client.transport import Reply
from include.gateway.client.values import Lease
from include.gateway.errors import (
    BAD_REQUEST,
    GATEWAY_FAILED,
    UNEXPECTED_REPLY,
    GatewayError,
    GatewayErrorKind,
    LeaseLost,
    NotOffered,
    kind_of,
)
from include.gateway.paths import LeasePath
from include.gateway.protocol import EPOCH_HEADER, EXPIRES_HEADER

T = TypeVar("T")


class ReplyVerdict:
    """Judges the replies of one gateway to calls with one key; errors name both."""

    def __init__(self, url: str, key_id: str) -> None:
        self._url = url
        self._key_id = key_id

    def require_ok(self, reply: Reply, what: str, about: Lease | LeasePath | None = None) -> None:
        """Raises the error that the reply means, unless its status is ok."""
        members, fields = reply.members, self.about(about)
        if reply.status == 200 and members is not None:
            if members.get("status") == "ok":
                return
            reason = members.get("reason", members.get("status"))
            if isinstance(reason, str) and reason:
                detail = members.get("detail")
                raise _error(kind_of(reason), what, reason, reply, fields, detail if isinstance(detail, str) else "")
            self.unexpected(reply, what)
        text = reply.text.strip()
        if reply.status >= 500:
            raise _error(LeaseLost if text == "invalid lease" else GATEWAY_FAILED, what, text, reply, fields)
        if reply.status in (404, 405):
            raise _error(NotOffered, what, f"HTTP {reply.status}", reply, fields)
        if 400 <= reply.status < 500:
            raise _error(BAD_REQUEST, what, text or f"HTTP {reply.status}", reply, fields)
        self.unexpected(reply, what)

    def parsed(self, reply: Reply, what: str, parse: Callable[[Any], T]) -> T:
        """What ``parse`` makes of the reply's data. Raises GatewayError if it cannot."""
        data = (reply.members or {}).get("data")
        try:
            return parse({} if data is None else data)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.unexpected(reply, what)

    def unexpected(self, reply: Reply, what: str) -> NoReturn:
        """Raises GatewayError: this is no reply of a gateway."""
        raise UNEXPECTED_REPLY(
            f"gateway {self._url}: {what}: HTTP {reply.status}, {reply.text[:200]!r}; {UNEXPECTED_REPLY.hint}",
            trace=reply.trace,
        )

    def about(self, about: Lease | LeasePath | None) -> dict[str, str]:
        """The fields that errors carry."""
        fields = {"key_id": self._key_id}
        return fields if about is None else {**fields, "repository": about.repository, "path": about.path}


def _error(
    kind: GatewayErrorKind, what: str, reason: str, reply: Reply, fields: Mapping[str, str], detail: str = ""
) -> GatewayError:
    message = f"{reason}: {detail}" if detail else reason
    trace = f" (trace {reply.trace})" if reply.trace else ""
    return kind(f"{what}: {message[:1000]}; {kind.hint}{trace}", reason=reason, trace=reply.trace, **fields)


def deadline_of(reply: Reply, sent_at: float) -> float | None:
    """When a lease ends, monotonic: counted from before the request was sent, so never later than at the gateway."""
    try:
        return sent_at + float(reply.headers[EXPIRES_HEADER])
    except (KeyError, ValueError):
        return None


def queue_of(reply: Reply) -> str:
    """Our place among those who wait, in words; nothing if the gateway does not report it."""
    members = reply.members or {}
    position, waiting, expected = (members.get(name) for name in ("position", "waiting", "expected_wait"))
    if not isinstance(position, int) or not isinstance(waiting, int) or not isinstance(expected, str):
        return ""
    return f", place {position} of {waiting} who wait, expected in {expected[:20]}"


def epoch_of(reply: Reply) -> int | None:
    """The fence of a lease, if the gateway gives one."""
    text = reply.headers.get(EPOCH_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
