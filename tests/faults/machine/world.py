"""The repository that the machine works on, the changes that publishers prepare, and what really stands in it."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import fence, read_head
from include.cvmfs.commit.edit import Edit, NewRoot
from include.cvmfs.coordination.condemned import read_list
from include.cvmfs.coordination.generation import look
from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import SHA1, ObjectHash, hash_bytes
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import compress
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.storage.kinds import Traits
from tests.fakes.collector import Collector
from tests.fakes.commits import commit_change
from tests.fakes.local import LocalRepository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, public_key, signer

PLAIN = ["/a", "/a/y", "/ab", "/a/x/deep", "/c/plain"]
NESTED = ["/a/x", "/b", "/b/x", "/c", "/foreign"]
MADE = ["/a/new", "/c/new"]
"""Nested catalogs that changes make and take away, as publications of builds do."""
LEASES = ["", "/a", "/a/x", "/a/x/deep", "/a/y", "/a/new", "/ab", "/b", "/b/x", "/c", "/c/new", "/c/plain"]
FOLDERS = [*PLAIN, *NESTED]
HERE = -1  # what the content of a made folder is in a ``Content``
_DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2, mtime=1)

Content = Mapping[str, int]
"""Files by path, with the number of their content; made folders with ``HERE``."""


def body(number: int) -> bytes:
    return b"content %d\n" % number


@dataclass(frozen=True)
class Change:
    """What a publisher prepared: stored, derived from ``base``, judged at ``generation``."""

    base: ObjectHash
    revision: int
    was: Content
    now: Content
    new: NewRoot
    objects: Mapping[str, bytes]
    generation: str

    @property
    def touched(self) -> set[str]:
        return {path for path in {*self.was, *self.now} if self.was.get(path) != self.now.get(path)}


class Keeping(MemoryStore):
    """Known to keep conditional writes, so that nobody needs to try."""

    @property
    def traits(self) -> Traits:
        return Traits(put_if_absent=True, replace=True, bulk_delete=True)


@dataclass
class World:
    """Revisions by number as the model knows them: root, content, and what each touched."""

    store: MemoryStore
    roots: dict[int, ObjectHash] = field(default_factory=dict)
    contents: dict[int, Content] = field(default_factory=dict)
    touched: dict[int, set[str]] = field(default_factory=dict)
    seconds: int = int(NOW.timestamp()) + 3600
    sweeps: int = 0

    def __post_init__(self) -> None:
        self.cache = CatalogCache(self.store)  # of all that is not the gateway; who wants to see what is gone has none

    @classmethod
    def fresh(cls) -> World:
        world = cls(Keeping())
        world.store.objects.update(_skeleton())
        head = world.head()
        world.roots[head.revision], world.contents[head.revision] = head.root, {}
        world.touched[head.revision] = set()
        return world

    def head(self) -> Manifest:
        return read_head(self.store, FQRN).manifest

    @property
    def revision(self) -> int:
        """The newest that the model knows."""
        return max(self.roots)

    # -- publishers

    def prepare(self, base: int, wanted: Content) -> Change | None:
        """Derive a change from a revision and store what it needs; None if a collection hinders it or took the base."""
        if self.sweeps and base != self.revision and not self._is_there(self.roots[base]):
            return None
        seen = look(self.store)
        was = self.contents[base]
        edit = Edit(self.cache, self.roots[base])
        objects = _apply(edit, was, wanted)
        new = edit.finish(self._later())
        edit.close()
        change = Change(
            self.roots[base], base, was, wanted, new,
            {**objects, **dict(new.objects), **{one.hash.key: one.data for one in new.catalogs}}, seen.token,
        )  # fmt: skip
        return change if self._stored(change, seen.running_list) else None

    def judge_again(self, change: Change) -> Change | None:
        """What a publisher does whose change was passed by a collection."""
        seen = look(self.store)
        return replace(change, generation=seen.token) if self._stored(change, seen.running_list) else None

    def _stored(self, change: Change, condemned: str | None) -> bool:
        if condemned is not None and {one.key for one in read_list(self.store, condemned)} & change.objects.keys():
            return False
        for key, data in change.objects.items():
            if not self.store.exists(key):
                self.store.put(key, data)
        return True

    def _is_there(self, root: ObjectHash) -> bool:
        try:
            list(Revision(CatalogCache(self.store), root).objects_below(""))
        except Exception:  # noqa: BLE001 - collected, wholly or in part
            return False
        return True

    # -- other writers

    def foreign(self, change: Change, **options: object) -> None:
        """Another writer publishes, without asking the gateway."""
        commit_change(
            self.store, fqrn=FQRN, signer=signer(), lease_path="/foreign", old_root=change.base,
            new_root=change.new.hash, now=self._later(), catalogs=self.cache, **options,
        )  # fmt: skip

    def collector(self) -> Collector:
        return _Sparing(
            self.store, FQRN, barrier=lambda: fence(self.store, FQRN, signer=signer(), now=self._later()), now=NOW
        )

    # -- readers

    def observed(self) -> list[tuple[int, ObjectHash, Content]]:
        """The revisions that are newer than what the model knows, oldest first, as they are."""
        found, root = [], self.head().root
        while root is not None and root.digest != self.roots[self.revision].digest:
            catalog = self.cache.open_nested("", root)
            assert catalog.revision > self.revision, "a revision that is not on the way from the one before"
            found.append((catalog.revision, root, actual(self.cache, root)))
            root = catalog.previous_revision
        found.reverse()
        return found

    def problems(self, *, contents: bool = False) -> list[str]:
        repository = Repository.open(self.store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
        return [str(one) for one in check(repository, contents=contents, quick=not contents).problems]

    def tags(self) -> dict[str, ObjectHash]:
        repository = Repository.open(self.store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
        return {tag.name: tag.hash for tag in repository.tags()}

    def _later(self) -> int:
        self.seconds += 1
        return self.seconds


class _Sparing(Collector):
    """Spares what tags name, too. What a root needs never changes, so each is walked once."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._known: dict[ObjectHash, set[ObjectHash]] = {}

    def _needed(self) -> set[ObjectHash]:
        repository = Repository.open(self._store, fqrn=FQRN, public_keys=[public_key()], now=NOW)
        roots = {self._manifest().root, *(tag.hash for tag in repository.tags())}
        for root in roots - self._known.keys():
            tree = Revision(CatalogCache(self._store), root)
            self._known[root] = {name for name, _ in tree.objects_below("")}
        return set[ObjectHash]().union(*(self._known[root] for root in roots))


def actual(cache: CatalogCache, root: ObjectHash) -> Content:
    """What stands in a revision."""
    view, found = Revision(cache, root), dict[str, int]()
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for entry in view.listing(folder):
            path = f"{folder}/{entry.name}"
            if entry.is_directory:
                waiting.append(path)
                if path in MADE:
                    found[path] = HERE
            elif entry.name != MARKER:
                found[path] = _numbers()[entry.hash.digest]
    view.close()
    return found


def _apply(edit: Edit, was: Content, now: Content) -> dict[str, bytes]:
    """Do to an edit what makes one content of another; the objects that it needs."""
    objects: dict[str, bytes] = {}
    gone = {path for path, value in was.items() if value == HERE and path not in now}
    for path in gone:
        edit.remove(path)
    for path in sorted(was.keys() | now.keys()):
        if was.get(path) == now.get(path):
            continue
        above = path.rpartition("/")[0]
        if path in was and path not in gone and above not in gone:
            edit.remove(path)
        if now.get(path) == HERE:
            edit.make_nested(path, _DIRECTORY)
        elif path in now:
            data = compress(body(now[path]))
            name = hash_bytes(data, edit.root_hash.algorithm)
            objects[name.key] = data
            entry = Dirent("", stat.S_IFREG | 0o644, size=len(body(now[path])), mtime=1, hash=name)
            edit.add(path, entry.changed(algorithm=name.algorithm))
    return objects


@cache
def _numbers() -> dict[bytes, int]:
    return {hash_bytes(compress(body(number)), SHA1).digest: number for number in range(1000)}


@cache
def _skeleton() -> dict[str, bytes]:
    repository = LocalRepository()

    def folders(edit: Edit) -> None:
        for path in sorted(FOLDERS):
            if path in NESTED:
                edit.make_nested(path, _DIRECTORY)
            else:
                edit.add(path, _DIRECTORY)

    repository.change(folders)
    return repository.store.objects
