"""Revisions made of edits, without signatures or with them, and a recount of all that their catalogs count."""

from __future__ import annotations

from typing import Any

from include.cvmfs.commit.commit import Head, read_head, store_all
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit, NewRoot
from include.cvmfs.format.catalog import MARKER, Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.schema import Counts
from tests.fakes.commits import commit_change
from tests.fakes.local import DIRECTORY
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, SECONDS, master_key, signer

LATER = SECONDS + 60


class Crash(BaseException):
    """The process dies here; nothing below may catch it."""


def file(content: bytes = b"x", **fields: int) -> Dirent:
    return Dirent("", 0o100644, size=len(content), hash=hash_bytes(content), **fields)


class EditedStore:
    """A store with a root catalog; each step makes a revision."""

    def __init__(self, root: Catalog | None = None, algorithm: Algorithm = Algorithm.SHA1) -> None:
        self.store = MemoryStore()
        self.cache = CatalogCache(self.store)
        packed = (root or Catalog.create("", DIRECTORY)).pack(algorithm)
        self.store.put(packed.hash.key, packed.data)
        self.root = packed.hash

    def edit(self, base: ObjectHash | None = None) -> Edit:
        return Edit(self.cache, base or self.root)

    def keep(self, edit: Edit, now: int = 1) -> ObjectHash:
        new: NewRoot = edit.finish(now)
        for packed in new.catalogs:
            self.store.put(packed.hash.key, packed.data)
        return new.hash

    def nested(self, path: str, files: dict[str, Dirent] | None = None) -> tuple[NestedRef, Dirent, Counts]:
        """A prepared flat tree, stored, ready to be hung."""
        catalog = Catalog.create(path, DIRECTORY)
        for name, entry in {MARKER: file(b""), **(files or {})}.items():
            catalog.add(f"{path}/{name}", entry.changed(name=name))
        packed = catalog.pack()
        self.store.put(packed.hash.key, packed.data)
        return NestedRef(path, packed.hash, packed.size), catalog.root_entry, catalog.statistics.total


def assert_consistent(cache: CatalogCache, root: ObjectHash) -> dict[str, Dirent]:
    """Recount a revision from its rows; returns all its entries by path."""
    entries: dict[str, Dirent] = {}

    def catalog_of(path: str, hash_: ObjectHash) -> Counts:
        catalog = cache.open(hash_)
        own, below = Counts(), Counts()

        def walk(directory: str, row: Dirent) -> None:
            nonlocal own, below
            children = catalog.listing(directory)
            assert row.linkcount == 2 + sum(child.is_directory for child in children), directory
            for child in children:
                here = f"{directory}/{child.name}"
                entries[here] = child
                own += Counts.of(child, len(catalog.chunks(here, child)))
                if child.mountpoint:
                    reference = catalog.nested_at(here)
                    assert reference is not None
                    assert reference.size == len(cache.database(reference.hash))
                    inner = cache.open(reference.hash).root_entry
                    assert inner.changed(mountpoint=True, nested_root=False) == child
                    own += Counts(nested=1)
                    below += catalog_of(here, reference.hash)
                elif child.is_directory:
                    walk(here, child)

        top = catalog.root_entry
        own += Counts.of(top)
        walk(path, top)
        assert catalog.statistics.own == own, path
        assert catalog.statistics.below == below, path
        assert catalog._all("SELECT count(*) FROM catalog") == [(own.entries,)]
        return own + below

    catalog_of("", root)
    return entries


def founded(algorithm: Algorithm = Algorithm.SHA1, *, mtime_ns: bool = False) -> MemoryStore:
    """A store with a new repository, of the keys of `minirepo`."""
    store = MemoryStore()
    create_repository(
        store, FQRN, master=master_key(), signer=signer(), now=NOW, algorithm=algorithm, mtime_ns=mtime_ns
    )
    return store


def stored(store: MemoryStore, edit: Edit) -> ObjectHash:
    """The root of an edit, its catalogs and objects stored."""
    new = edit.finish(1)
    store_all(store, [(packed.hash.key, packed.data) for packed in new.catalogs] + list(new.objects))
    return new.hash


def change(store: MemoryStore, path: str) -> tuple[ObjectHash, ObjectHash]:
    """A publisher's change on the current revision, its catalogs stored: (old root, new root)."""
    base = read_head(store, FQRN).manifest.root
    edit = Edit(CatalogCache(store), base)
    edit.make_nested(path, DIRECTORY)
    return base, stored(store, edit)


def commit(store: MemoryStore, old: ObjectHash, new: ObjectHash, path: str, **more: Any) -> Head:
    fields = {"fqrn": FQRN, "signer": signer(), "now": LATER} | more
    return commit_change(store, lease_path=path, old_root=old, new_root=new, **fields)
