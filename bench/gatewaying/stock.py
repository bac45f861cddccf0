"""Commits of stock shape: new entries in plain directories, which the gateway merges one by one into its own catalog.

(A nested catalog, as the native publisher prepares one, is swapped whole instead, whatever its size.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gatewaying.changes import reserve
from bench.publishing.places import Place
from bench.publishing.repositories import FQRN
from include.cvmfs.commit.commit import read_head
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes, path_hash
from include.cvmfs.format.objects import compress
from include.cvmfs.format.schema import Counts
from include.gateway.client.client import GatewayClient

TOP = "/stock"
FILES_IN_DIRECTORY = 1000
_CONTENT = b"a file of a tree that is merged entry by entry\n"
_DIRECTORY = Dirent("", 0o40755, size=4096, mtime=1_790_000_000, linkcount=2)


@dataclass(frozen=True, slots=True)
class Merged:
    """Commits of ``entries`` each: seconds of the commit calls, and of everything from the first lease on."""

    entries: int
    commits_s: list[float]
    seconds: float
    acknowledged: list[dict[str, Any]]
    first_revision: int

    @property
    def commits_per_s(self) -> float:
        return len(self.commits_s) / self.seconds

    @property
    def entries_per_s(self) -> float:
        """Against the whole of it: lease, merge, new catalog packed and stored, history, reflog, manifest."""
        return self.entries * self.commits_per_s


def merge_commits(place: Place, public_key: Path, client: dict[str, str], *, entries: int, commits: int) -> Merged:
    """Prepare the changes, outside of any clock; then lease and commit one after another."""
    paths = [f"{TOP}/part{number:02d}" for number in range(commits)]
    first = reserve(place, public_key, client, paths)
    store = place.open()
    packed = compress(_CONTENT)
    content = hash_bytes(packed, Algorithm.SHA1)
    store.put(content.key, packed)
    base = read_head(store, FQRN).manifest.root
    catalogs = CatalogCache(store)
    changes = [(f"{path}/tree", _change(place, catalogs, base, f"{path}/tree", entries, content)) for path in paths]
    acknowledged, commits_s = [], []
    with GatewayClient(client["gateway"], client["key_id"], client["secret"]) as gateway:
        started = time.monotonic()
        for path, new in changes:
            lease = gateway.acquire(FQRN, path, hostname="bench")
            sent = time.monotonic()
            revision = gateway.commit(lease, base, new)
            commits_s.append(time.monotonic() - sent)
            acknowledged.append({"destination": path, "entries": entries, "revision": revision})
        seconds = time.monotonic() - started
    return Merged(entries, commits_s, seconds, acknowledged, first)


def _change(
    place: Place, catalogs: CatalogCache, base: ObjectHash, top: str, entries: int, content: ObjectHash
) -> ObjectHash:
    """A new root with a tree of that many entries at ``top``, stored; directories count."""
    store, edit = place.open(), Edit(catalogs, base)
    edit.add(top, _DIRECTORY)
    left, number = entries - 1, 0
    while left:
        directory = f"{top}/directory{number:04d}"
        edit.add(directory, _DIRECTORY)
        files = min(FILES_IN_DIRECTORY, left - 1)
        parent, rows = path_hash(directory), []
        for at in range(files):
            entry = Dirent(
                f"file{at:04d}", 0o100644, size=len(_CONTENT), mtime=1_790_000_000, hash=content,
                algorithm=content.algorithm,
            )  # fmt: skip
            rows.append((*path_hash(f"{directory}/{entry.name}"), *parent, *entry.to_row()))
        edit.add_rows(directory, rows, [], Counts(regular=files, file_size=files * len(_CONTENT)))
        left, number = left - 1 - files, number + 1
    new = edit.finish(int(time.time()))
    edit.close()
    for packed in new.catalogs:
        store.put(packed.hash.key, packed.data)
    return new.hash
