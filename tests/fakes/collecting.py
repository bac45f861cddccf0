"""A repository in a store with a clock of its own, to collect garbage of: revisions by hand, contents read back."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.check.check import check
from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.collect.report import CollectionReport, CollectionRules
from include.cvmfs.collect.sweep import SwitchingSide
from include.cvmfs.commit.commit import NewTag, load_history, read_head, store_all
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.tags import remove_tags
from include.cvmfs.coordination.generation import CollectionPhase, look
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import RefType, Tag
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash, hash_bytes
from include.cvmfs.format.keys import Signer, format_public_key, generate_master, generate_repository_key
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import compress
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.storage.store import ObjectMeta, Store, Version
from tests.fakes.commits import commit_change
from tests.fakes.memorystore import MemoryStore
from tests.fakes.publishing import Publisher

FQRN = "collected.example.org"
START = datetime(2026, 11, 1, 2, tzinfo=UTC)
BOLD = CollectionRules(careful=False)
CAREFUL = CollectionRules()
ALL_ORPHANS = CollectionRules(careful=False, all_orphans=True)


@cache
def master() -> RSAPrivateKey:
    return generate_master()


@cache
def signer() -> Signer:
    return generate_repository_key(FQRN, START)


class ClockedStore(MemoryStore):
    """Its objects are as old as the clock of the test says."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__()
        self._now = now
        self.times: dict[str, datetime] = {}

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        self.times[key] = self._now()

    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        version = super().replace(key, data, expected=expected)
        self.times[key] = self._now()
        return version

    def head(self, key: str) -> ObjectMeta | None:
        found = super().head(key)
        return None if found is None else ObjectMeta(key, found.size, self.times[key], found.version)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        self.before("list", prefix)
        for found in list(super().list(f"{prefix}/" if prefix else "")):
            yield ObjectMeta(found.key, found.size, self.times[found.key], found.version)


class Place:
    """The repository, in memory unless there is a ``store`` with one. ``now`` is moved by hand."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.now = START
        self._superseded = 0
        self.store: Any = store or ClockedStore(lambda: self.now)
        if store is not None:
            return
        create_repository(self.store, FQRN, master=master(), signer=signer(), now=START, validity=timedelta(days=3650))

    @property
    def seconds(self) -> int:
        return int(self.now.timestamp())

    def pass_time(self, **delta: float) -> None:
        self.now += timedelta(**delta)

    def phase(self) -> CollectionPhase:
        document = look(self.store).generation
        assert document is not None
        return document.phase

    def manifest(self) -> Manifest:
        return read_head(self.store, FQRN).manifest

    def tags(self) -> Sequence[Tag]:
        return load_history(self.store, self.manifest()).tags()

    def keep(self, content: bytes) -> ObjectHash:
        """Store an object that nothing names yet."""
        data = compress(content)
        name = hash_bytes(data)
        self.store.put(name.key, data)
        return name

    def publish(self, path: str, files: Mapping[str, bytes], tag: str | None = None) -> Manifest:
        """A nested catalog with these files in the place of what is there, in a new revision."""

        def change(edit: Edit) -> None:
            if Revision(edit_catalogs(edit), base).lookup(path) is not None:
                edit.remove(path)
            edit.make_nested(path, Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2, mtime=self.seconds))
            for name, content in files.items():
                entry = Dirent(name, stat.S_IFREG | 0o644, size=len(content), hash=self.keep(content))
                edit.add(f"{path}/{name}", entry)

        def edit_catalogs(edit: Edit) -> CatalogCache:
            return edit.catalogs

        base = self.manifest().root
        return self._change(change, path, tag)

    def supersede(self) -> None:
        """Another revision: the tag ``trunk-previous`` protects the one before the current."""
        self._superseded += 1
        self.publish("/z", {"f": b"%d" % self._superseded})

    def garbage(self) -> Manifest:
        """A revision that was superseded four days ago, which a collection deletes."""
        old = self.publish("/a", {"f": b"old"})
        self.publish("/a", {"f": b"new"})
        self.supersede()
        self.pass_time(days=4)
        return old

    def remove(self, path: str) -> Manifest:
        return self._change(lambda edit: edit.remove(path), path)

    def untag(self, name: str) -> None:
        remove_tags(self.store, FQRN, [name], signer=signer(), now=self.seconds)

    def _change(self, change: Callable[[Edit], None], path: str, tag: str | None = None) -> Manifest:
        self.pass_time(seconds=1)
        base = self.manifest().root
        edit = Edit(CatalogCache(self.store), base)
        change(edit)
        new = edit.finish(self.seconds)
        store_all(self.store, [(one.hash.key, one.data) for one in new.catalogs] + list(new.objects))
        return commit_change(
            self.store, fqrn=FQRN, signer=signer(), lease_path=path, old_root=base, new_root=new.hash,
            now=self.seconds, tag=NewTag(tag) if tag else None,
        ).manifest  # fmt: skip

    # -- collections

    def collection(
        self, rules: CollectionRules = BOLD, *, dry_run: bool = False, store: Store | None = None
    ) -> GarbageCollection:
        """``store``: as the collector's process uses it."""
        store = store or self.store
        side = SwitchingSide(store, FQRN, signer())
        return GarbageCollection(store, side, folder=self.folder, rules=rules, now=lambda: self.now, dry_run=dry_run)

    def collect(self, rules: CollectionRules = BOLD, store: Store | None = None) -> CollectionReport:
        """A whole collection; the sweep of one that died is finished instead, if there is one."""
        with self.collection(rules, store=store) as collection:
            if collection.begin():
                collection.mark()
                if collection.condemn():
                    collection.spare()
                    collection.sweep()
            else:
                collection.sweep()
            return collection.end()

    def publisher(self) -> Publisher:
        return Publisher(self.store, FQRN, signer(), now=lambda: self.now, folder=Path(mkdtemp(dir=self.folder)))

    def snapshot(self) -> Callable[[], None]:
        """Call what it returns to go back to what is stored, and the time, of now."""
        now, objects, times = self.now, dict(self.store.objects), dict(self.store.times)

        def restore() -> None:
            self.now = now
            self.store.objects, self.store.times = dict(objects), dict(times)

        return restore

    # -- readers

    def contents(self, root: ObjectHash | None = None) -> dict[str, bytes]:
        """Every object that a revision needs, read."""
        tree = Revision(CatalogCache(self.store, budget=0), root or self.manifest().root)
        return {name.key: self.store.get(name.key) for name, _ in tree.objects_below("")}

    def needed(self) -> set[str]:
        """The keys of all that the reflog and the tags lead to."""
        named = SwitchingSide(self.store, FQRN, signer()).read()
        roots = {tag.hash for tag in named.tags} | {ref.hash for ref in named.refs if ref.type is RefType.CATALOG}
        others = {ref.hash.key for ref in named.refs if ref.type is not RefType.CATALOG}
        return others.union(*(self.contents(root) for root in roots))

    def objects(self) -> set[str]:
        return {found.key for found in self.store.list("data")}

    def problems(self) -> list[str]:
        keys = [format_public_key(master().public_key())]
        repository = Repository.open(self.store, fqrn=FQRN, public_keys=keys, now=START)  # the whitelist is of then
        return [str(one) for one in check(repository, contents=True).problems]


STEPS = ("begin", "mark", "condemn", "spare", "sweep", "end")


def run(collection: GarbageCollection, first: str, last: str) -> Any:
    """The steps of a collection from one to another, and what the last one returns."""
    result = None
    for step in STEPS[STEPS.index(first) : STEPS.index(last) + 1]:
        result = getattr(collection, step)()
        assert result is not False, step
    return result
