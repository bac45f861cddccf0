"""The reply of a WebDAV server to PROPFIND (RFC 4918), read as it comes. It is hostile input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NoReturn
from xml.parsers import expat

PROPFIND = (
    b'<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:prop>'
    b"<D:resourcetype/><D:getcontentlength/><D:getlastmodified/></D:prop></D:propfind>"
)
_MOST_TEXT = 8192
"""Characters of one value; a path has at most 4096 bytes."""
_MOST_DEPTH = 32
_SIZE, _TIME, _PATH = "DAV: getcontentlength", "DAV: getlastmodified", "DAV: href"


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file or folder. An attribute that the server does not report in the standard's form has the value None."""

    href: str
    size: int | None
    modified: datetime | None
    is_folder: bool


def folder_entries(blocks: Iterable[bytes]) -> Iterator[FolderEntry]:
    """The entries of a reply.

    Raises:
        ValueError: It is no XML, or has a document type, values or depths that no server needs.
    """
    reader = _Reader()
    try:
        for block in blocks:
            reader.parser.Parse(block, False)
            yield from reader.taken()
        reader.parser.Parse(b"", True)
    except expat.ExpatError:
        raise ValueError("not XML, or cut off") from None
    yield from reader.taken()


class _Reader:
    def __init__(self) -> None:
        self.parser = parser = expat.ParserCreate("utf-8", namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        # entities are declared in a document type: without one there is nothing to expand or to fetch
        parser.StartDoctypeDeclHandler = self._doctype
        self._entries: list[FolderEntry] = []
        self._values: dict[str, str] = {}
        self._collected: list[str] = []
        self._length = self._depth = 0
        self._is_folder = False

    def taken(self) -> list[FolderEntry]:
        entries, self._entries = self._entries, []
        return entries

    def _start(self, name: str, _: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise ValueError("elements in too many elements")
        if self._depth == 1 and name != "DAV: multistatus":
            raise ValueError("another document")
        if name == "DAV: response":
            self._values, self._is_folder = {}, False
        elif name == "DAV: collection":
            self._is_folder = True
        self._collected, self._length = [], 0

    def _end(self, name: str) -> None:
        self._depth -= 1
        text = "".join(self._collected).strip()
        if name in {_SIZE, _TIME, _PATH} and text:
            # an empty one belongs to the properties that the server does not have
            self._values[name] = text
        elif name == "DAV: response" and _PATH in self._values:
            size, modified = _size(self._values.get(_SIZE, "")), http_time(self._values.get(_TIME, ""))
            self._entries.append(FolderEntry(self._values[_PATH], size, modified, self._is_folder))
        self._collected, self._length = [], 0

    def _text(self, text: str) -> None:
        self._length += len(text)
        if self._length > _MOST_TEXT:
            raise ValueError("a value is too long")
        self._collected.append(text)

    def _doctype(self, *_: object) -> NoReturn:
        raise ValueError("it has a document type")


def _size(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def http_time(text: str) -> datetime | None:
    """Parse a time in the form of HTTP; None if it has another form."""
    try:
        found = parsedate_to_datetime(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
