"""Reads a stored tree of catalogs and counts everything again, independently of those who wrote it."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass

from include.cvmfs.format.catalog import MARKER, Catalog, NestedRef
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.objects import Compression, decompress
from include.cvmfs.format.schema import Counts, Statistics
from include.storage.store import Store


@dataclass(frozen=True)
class Found:
    """An entry as readers see it; ``content`` of regular files."""

    entry: Dirent
    content: bytes | None
    chunks: tuple[Chunk, ...]
    catalog: str


def read_back(store: Store, reference: NestedRef) -> tuple[dict[str, Found], Statistics]:
    """Everything below ``reference``, by absolute path. Fails on whatever a check of the repository would find."""
    found: dict[str, Found] = {}
    return found, _catalog(store, reference, None, found)


def _catalog(store: Store, reference: NestedRef, outside: Dirent | None, found: dict[str, Found]) -> Statistics:
    stored = store.get(reference.hash.key)
    assert hash_bytes(stored, reference.hash.algorithm).digest == reference.hash.digest
    catalog = Catalog.load(zlib.decompress(stored), reference.hash)
    assert catalog.path == reference.path
    assert len(catalog.to_bytes()) == reference.size
    root = catalog.root_entry
    assert root.nested_root
    assert not root.mountpoint
    if outside is not None:
        assert outside.changed(mountpoint=False) == root.changed(nested_root=False)
    assert catalog.lookup(f"{reference.path}/{MARKER}").is_regular
    own, below = Counts.of(root), Counts()
    found[reference.path] = Found(root, None, (), reference.path)
    waiting = [reference.path]
    rows = 1
    while waiting:
        folder = waiting.pop()
        listing = catalog.listing(folder)
        rows += len(listing)
        assert found[folder].entry.linkcount == 2 + sum(entry.is_directory for entry in listing)
        groups = Counter(entry.hardlink_group for entry in listing if entry.hardlink_group)
        for entry in listing:
            path = f"{folder}/{entry.name}"
            assert entry.name != MARKER or folder == reference.path, "abandoned marker"
            assert not entry.nested_root
            chunks = catalog.chunks(path, entry)
            own += Counts.of(entry, len(chunks))
            if entry.mountpoint:
                nested = catalog.nested_at(path)
                assert nested is not None
                inner = _catalog(store, nested, entry, found)
                below += inner.total
                own += Counts(nested=1)
                continue
            if entry.is_directory:
                assert entry.hardlink_group == 0
                waiting.append(path)
            elif entry.is_regular:
                assert entry.linkcount == (groups[entry.hardlink_group] or 1)
            found[path] = Found(entry, _content(store, entry, chunks), chunks, reference.path)
    assert catalog._all("SELECT count(*) FROM catalog") == [(rows,)]
    assert catalog.statistics == Statistics(own, below)
    assert len(counter_names(catalog)) == 24
    return catalog.statistics


def counter_names(catalog: Catalog) -> set[str]:
    """The counters that the file really holds."""
    return {str(row[0]) for row in catalog._all("SELECT counter FROM statistics")}


def _content(store: Store, entry: Dirent, chunks: tuple[Chunk, ...]) -> bytes | None:
    if not entry.is_regular:
        assert entry.hash is None
        return None
    if entry.external:
        assert entry.compression is Compression.NONE
        assert (entry.hash is None) == entry.chunked
        return None
    if not entry.chunked:
        assert entry.hash is not None
        assert not chunks
        hashes = [entry.hash]
    else:
        assert entry.hash is None
        assert len(chunks) > 1
        hashes = [chunk.hash for chunk in chunks]
    data = []
    for hash_ in hashes:
        stored = store.get(hash_.key)
        assert hash_bytes(stored, hash_.algorithm).digest == hash_.digest
        data.append(decompress(stored, entry.compression))
    offset = 0
    for chunk, piece in zip(chunks, data, strict=False):
        assert (chunk.offset, chunk.size) == (offset, len(piece))
        offset += len(piece)
    content = b"".join(data)
    assert len(content) == entry.size
    return content
