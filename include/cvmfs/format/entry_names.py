"""Names of entries: the bytes of one, and which a catalog may hold (docs/formats.md, rows).

Prepare, merge, check and get judge a name by the one rule that is here.
"""

from __future__ import annotations

import re

NAME_BYTES = 255
COMPONENT = rb"(?!\.\.?(?:/|\Z))[^/\0]{1,%d}" % NAME_BYTES
"""The rule as a pattern for one component of a path."""

_COMPONENT = re.compile(COMPONENT)
_SHORT = re.compile(r"(?!\.\.?\Z)[^/\0]{1,63}")  # as text: 63 characters are at most 252 bytes


def name_of_bytes(raw: bytes) -> str:
    """A name, path or link target as text; bytes that are not UTF-8 are kept as lone surrogates."""
    return raw.decode("utf-8", "surrogateescape")


def bytes_of_name(name: str) -> bytes:
    """The bytes that :func:`name_of_bytes` read."""
    return name.encode("utf-8", "surrogateescape")


def name_fault(name: str | bytes) -> str | None:
    """Why an entry cannot have this name, in words that follow the entry's path; None if it can."""
    if isinstance(name, str):
        if _SHORT.fullmatch(name):
            return None
        name = bytes_of_name(name)
    if _COMPONENT.fullmatch(name):
        return None
    if not name:
        return "has an empty name"
    if name in (b".", b".."):
        return f"has the name {name.decode()!r}"
    if b"/" in name:
        return "has a slash in its name"
    if b"\0" in name:
        return "has a NUL byte in its name"
    return f"has a name longer than {NAME_BYTES} bytes"
