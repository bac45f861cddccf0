"""Replies byte for byte as the stock gateway writes them: Go's compact JSON as plain text, and Go's error texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from include.errors import NightshiftError

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
