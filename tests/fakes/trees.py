"""Trees as lists of entries, and short ways to write them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.source import Entry, EntryKind, Opener, TreeSource
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import NOW
from tests.fakes.recount import Found, read_back

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


class Prepared(NamedTuple):
    """A changeset, its entries by their path in the tree, and the store."""

    changeset: Changeset
    entries: dict[str, Found]
    store: MemoryStore


def prepared(
    source: TreeSource | Members | bytes,
    options: PrepareOptions | None = None,
    *,
    store: MemoryStore | None = None,
    destination: str = "/x",
) -> Prepared:
    """A tree (members, the bytes of a tar archive, or a source) in a store, read back and counted again."""
    store = store or MemoryStore()
    if isinstance(source, bytes):
        source = TarSource(iter([source]), "x.tar")
    tree = ListedSource(source) if isinstance(source, list) else source
    changeset = prepare(
        tree, store=store, fqrn="r.example.org", destination=destination, now=NOW, options=options or PrepareOptions()
    )
    entries, statistics = read_back(store, changeset.reference)
    assert changeset.statistics == statistics
    assert entries[destination].entry == changeset.root_entry.changed(nested_root=True)
    assert Changeset.parse(changeset.format()) == changeset
    return Prepared(changeset, {path.removeprefix(destination): entry for path, entry in entries.items()}, store)
