"""Extended attributes: the blob that catalogs hold, and which of a tree's attributes come into it.

Format: docs/formats.md, catalogs (extended attributes). One byte holds each length, so longer ones cannot be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from include.cvmfs.errors import FormatError
from include.cvmfs.sources.source import Entry, Opener, TreeSource, printable

VERSION = 1
MOST = 255  # attributes of one entry, bytes of a name, bytes of a value
_NAMED_AT_MOST = 3


def pack_xattrs(attributes: Mapping[bytes, bytes]) -> bytes | None:
    """The blob of an entry's attributes; None if there are none. Raises FormatError for what it cannot hold."""
    if not attributes:
        return None
    if len(attributes) > MOST:
        raise _bad(f"{len(attributes)} of one entry, at most {MOST} are possible")
    parts = [bytes((VERSION, len(attributes)))]
    for key in sorted(attributes):
        value = attributes[key]
        if (fault := _fault(key, value)) is not None:
            raise _bad(f"{printable(key)} {fault}")
        parts += (bytes((len(key), len(value))), key, value)
    return b"".join(parts)


def unpack_xattrs(blob: bytes | None) -> dict[bytes, bytes]:
    """The attributes in a blob. Raises FormatError."""
    if blob is None:
        return {}
    if len(blob) < 2 or blob[0] != VERSION:
        raise _bad("not a blob of version 1")
    found: dict[bytes, bytes] = {}
    at = 2
    for _ in range(blob[1]):
        sizes = blob[at : at + 2]
        if len(sizes) < 2 or not sizes[0] or at + 2 + sum(sizes) > len(blob):
            raise _bad("an attribute has no name, or is cut short")
        key_end = at + 2 + sizes[0]
        at = key_end + sizes[1]
        found[blob[key_end - sizes[0] : key_end]] = blob[key_end:at]
    if at != len(blob):
        raise _bad(f"{len(blob) - at} bytes after the last attribute")
    return found


class AttributedSource:
    """A source whose entries carry those of their attributes whose names begin with one of ``namespaces``."""

    def __init__(self, source: TreeSource, namespaces: Iterable[str]) -> None:
        self._source = source
        self._namespaces = tuple(namespace.encode() for namespace in namespaces)
        self._dropped: Counter[str] = Counter()
        self._examples: list[str] = []

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def sha256(self) -> str | None:
        return self._source.sha256

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        for entry, opener in self._source.entries():
            attributes = self._source.xattrs(entry, self._namespaces)
            blob = self._packed(entry, attributes) if attributes else None
            yield (entry if blob is None else replace(entry, xattr=blob)), opener

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        return self._source.xattrs(entry, namespaces)

    def notes(self) -> tuple[str, ...]:
        """What was left out, and of which entries."""
        if not self._dropped:
            return ()
        reasons = ", ".join(f"{count} that {why}" for why, count in sorted(self._dropped.items()))
        return (f"extended attributes left out: {reasons} (such as {'; '.join(self._examples)})",)

    def _packed(self, entry: Entry, attributes: Mapping[bytes, bytes]) -> bytes | None:
        kept: dict[bytes, bytes] = {}
        for key in sorted(attributes):
            fault = _fault(key, attributes[key])
            if fault is None and len(kept) == MOST:
                fault = f"came after the first {MOST} of their entry"
            if fault is None:
                kept[key] = attributes[key]
                continue
            self._dropped[fault] += 1
            if len(self._examples) < _NAMED_AT_MOST:
                self._examples.append(f"{printable(key)[:80]} of {printable(entry.path or '.')}")
        return pack_xattrs(kept)


def _fault(key: bytes, value: bytes) -> str | None:
    if not key or len(key) > MOST or b"\0" in key:
        return f"have no name of 1 to {MOST} bytes"
    return f"are longer than {MOST} bytes" if len(value) > MOST else None


def _bad(detail: str) -> FormatError:
    return FormatError("extended attributes", detail)
