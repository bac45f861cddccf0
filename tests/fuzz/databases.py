"""Catalogs, histories, reflogs and content indices for `readers.py`: examples, and all that is done with one."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from include.cvmfs.check.check import check
from include.cvmfs.collect.scan import ScanCache, walk
from include.cvmfs.commit.commit import store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.commit.merge import merge
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format import manifest as manifests
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import History, Reflog, RefType, Tag
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compression
from include.cvmfs.ingest.packing import ContentIndex
from include.cvmfs.revision.get import get
from include.cvmfs.revision.repository import Repository, Trusted
from include.cvmfs.revision.revision import diff
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, SECONDS, MiniRepository, sample


@functools.cache
def whole() -> MiniRepository:
    """A repository as it should be."""
    mini = sample(MemoryStore())
    mini.publish([Tag("one", hash_bytes(b"one", suffix=CATALOG), 1, SECONDS, 10)])
    return mini


def a_copy() -> MemoryStore:
    store = MemoryStore()
    store.objects.update(whole().store.objects)  # type: ignore[attr-defined]
    return store


def stored(key: str) -> list[bytes]:
    return [whole().store.get(key)]


def read_catalog(place: str, database: bytes) -> None:
    """A repository with this catalog in one place of it; each use ends on its own."""
    store, manifest = a_copy(), whole().manifest
    assert manifest is not None
    mini = MiniRepository(store)
    mini.databases = {**{path: whole().databases[path] for path in [""] if place}, place: database}
    before, root = manifest.root, mini.store_catalogs().hash
    signed = manifests.SignedManifest(b"", root, b"", dataclasses.replace(manifest, root=root, root_size=0))
    repository = Repository(store, Trusted(signed, verified=True))
    assert check(repository, contents=True).problem_count >= 0
    cache = CatalogCache(store)
    uses: tuple[Callable[[], object], ...] = (
        lambda: _look_at(Catalog.load(database)),
        lambda: list(repository.revision.walk()),
        lambda: [repository.revision.read(path) for path, entry in repository.revision.walk() if entry.is_regular],
        lambda: list(repository.revision.objects_below()),
        lambda: list(diff(repository.at(before), repository.revision)),
        lambda: _write_to_disk(repository),
        lambda: _edited(cache, root),
        lambda: Edit(cache, root).move("/sw", "/moved"),
        lambda: Edit(cache, root).remove("/sw"),
        lambda: merge(cache, base=before, new=root, current=before, lease_path="").finish(SECONDS),
        lambda: merge(cache, base=root, new=before, current=root, lease_path="/sw").finish(SECONDS),
    )
    faults = []
    for use in uses:
        try:
            use()
        except CvmfsError as fault:
            faults.append(fault)
    if faults:
        raise faults[0]


def read_swapped(database: bytes) -> None:
    """A change that brings this catalog: what a revision takes is readable for collections, and hinders no commit."""
    store, manifest = a_copy(), whole().manifest
    assert manifest is not None
    before, mini = manifest.root, MiniRepository(store)
    mini.databases = {"": whole().databases[""], "/sw/app": database}
    cache = CatalogCache(store)
    merged = merge(cache, base=before, new=mini.store_catalogs().hash, current=before, lease_path="/sw/app")
    taken = merged.finish(SECONDS)
    store_all(store, [(packed.hash.key, packed.data) for packed in taken.catalogs])
    with tempfile.TemporaryDirectory(prefix="nightshift-fuzz-") as folder:
        walk(ScanCache(store, Path(folder)), [taken.hash], set(), lambda *_: None)
    other = Edit(cache, taken.hash)
    other.make_nested("/other", Dirent("", stat.S_IFDIR | 0o755, linkcount=2))
    other.finish(SECONDS)


def _look_at(catalog: Catalog) -> None:
    assert catalog.revision + catalog.last_modified + catalog.ttl is not None
    assert catalog.previous_revision is None or catalog.previous_revision.digest
    assert catalog.root_entry is not None
    catalog.nested()
    catalog.binds()
    list(catalog.identities())
    list(catalog.objects())
    catalog.make_writable()
    catalog.next_hardlink_group()
    for child in catalog.listing(catalog.path):
        catalog.chunks(f"{catalog.path}/{child.name}", child)
    for child in catalog.listing(catalog.path):
        catalog.remove_tree(f"{catalog.path}/{child.name}")
    catalog.to_bytes()
    catalog.move_to("/else/where")


def _write_to_disk(repository: Repository) -> None:
    with tempfile.TemporaryDirectory(prefix="nightshift-fuzz-") as top:
        target = Path(top) / "a/b/c/d/e/f/g/target"
        target.parent.mkdir(parents=True)
        try:
            get(repository.revision, "", target)
        finally:
            around = [path for path in Path(top).rglob("*") if target not in (path, *path.parents)]
            assert set(around) <= set(target.parents), around


def _edited(cache: CatalogCache, root: ObjectHash) -> None:
    edit = Edit(cache, root)
    edit.add("/new", Dirent("", stat.S_IFDIR | 0o755, linkcount=2))
    edit.make_nested("/sw/new", Dirent("", stat.S_IFDIR | 0o755, linkcount=2))
    edit.remove("/readme")
    edit.symlink("/sw/app/link", "x", now=SECONDS)
    edit.finish(SECONDS)


def histories() -> list[bytes]:
    history = History.create(FQRN)
    history.rotate_trunk(_tag(1))
    for number in range(20):
        history.add(dataclasses.replace(_tag(number), name=f"tag-{number}"))
    history.rotate_trunk(_tag(30), hash_bytes(b"before"))
    return [history.to_bytes()]


def _tag(number: int) -> Tag:
    return Tag("", hash_bytes(b"%d" % number, suffix=CATALOG), number, SECONDS + number, 4096, "a description")


def read_history(data: bytes) -> None:
    history = History.load(data)
    assert history.fqrn is not None
    assert history.previous_revision is None or history.previous_revision.digest
    history.tags()
    history.branches()
    history.problems()
    history.rotate_trunk(_tag(500), hash_bytes(b"x"))
    history.add(dataclasses.replace(_tag(501), name="new"))
    history.move(dataclasses.replace(_tag(502), name="tag-3"))
    history.remove("tag-2")
    history.pack()


def reflogs() -> list[bytes]:
    reflog = Reflog.create(FQRN)
    for number, kind in enumerate([*RefType] * 5):
        reflog.add(hash_bytes(b"%d" % number), kind, SECONDS + number)
    return [reflog.to_bytes()]


def read_reflog(data: bytes) -> None:
    reflog = Reflog.load(data)
    assert reflog.fqrn is not None
    reflog.refs()
    reflog.refs(RefType.CATALOG, before=SECONDS + 3)
    reflog.contains(hash_bytes(b"1"))
    reflog.add(hash_bytes(b"x"), RefType.META, SECONDS)
    reflog.remove(hash_bytes(b"1"))
    assert len(reflog) >= 0
    reflog.hash()


def indices() -> list[bytes]:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "index.db"
        index = ContentIndex(path, algorithm=Algorithm.SHA1, compression=Compression.ZLIB)
        for number in range(50):
            index.remember(index.key(b"%d" % number), hashlib.sha1(b"%d" % number).digest())
        index.close()
        return [path.read_bytes()]


def read_index(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "index.db"
        path.write_bytes(data)
        index = ContentIndex(path, algorithm=Algorithm.SHA1, compression=Compression.ZLIB)
        wanted = {index.key(b"%d" % number): hashlib.sha1(b"%d" % number).digest() for number in range(60)}
        assert index.find([*wanted]).items() <= wanted.items()
        for number in range(60, 70):
            index.remember(index.key(b"%d" % number), hashlib.sha1(b"%d" % number).digest())
        index.close()
