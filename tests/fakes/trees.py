"""Trees as lists of entries, and short ways to write them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

from include.cvmfs.sources.source import Entry, EntryKind, Opener

Members = list[tuple[Entry, bytes | None]]


class ListedSource:
    """Entries from a list, in its order."""

    sha256 = None

    def __init__(self, members: Members, name: str = "listed") -> None:
        self.name = name
        self._members = members

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        for entry, data in self._members:
            yield entry, None if data is None else (lambda data=data: io.BytesIO(data))

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        return {}


def a_file(path: str, data: bytes = b"", **fields: int) -> tuple[Entry, bytes | None]:
    return Entry(
        path, EntryKind.FILE, fields.pop("mode", 0o644), fields.pop("mtime", 1000), size=len(data), **fields
    ), data


def a_folder(path: str, **fields: int) -> tuple[Entry, bytes | None]:
    return Entry(path, EntryKind.DIRECTORY, fields.pop("mode", 0o755), fields.pop("mtime", 1000), **fields), None


def a_link(path: str, target: str) -> tuple[Entry, bytes | None]:
    return Entry(path, EntryKind.SYMLINK, 0o777, 1000, symlink=target), None


def a_hard_link(path: str, target: str) -> tuple[Entry, bytes | None]:
    return Entry(path, EntryKind.HARDLINK, 0o600, 1, hardlink_to=target), None
