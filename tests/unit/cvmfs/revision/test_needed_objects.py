"""The known objects of a subtree are exactly those that its catalogs name."""

from __future__ import annotations

import random

import pytest

from include.cvmfs.commit.commit import read_head
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import DigestSet, identity
from include.cvmfs.ingest.changeset import Changeset, objects_of
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.revision.needed_objects import add_identities
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import archive, file
from tests.fakes.edits import commit, founded, stored
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW

MEMBERS = [file(f"d{number % 3}/f{number}", b"%d" % (number % 70)) for number in range(100)]
MEMBERS += [file(f"d{number}/.cvmfscatalog") for number in range(3)] + [file("d1/deep/.cvmfscatalog")]
MEMBERS += [file("d1/big", random.Random(1).randbytes(500_000))]


@pytest.fixture
def published() -> tuple[MemoryStore, Revision, Changeset]:
    store = founded()
    options = PrepareOptions(chunking=ChunkLimits(1 << 16, 1 << 17, 1 << 18))
    source = TarSource(iter([archive(MEMBERS)]), "x.tar")
    made = prepare(source, store=store, fqrn=FQRN, destination="/top", now=NOW, options=options)
    base = read_head(store, FQRN).manifest.root
    edit = Edit(CatalogCache(store), base)
    edit.hang(made.reference, made.root_entry, made.statistics.total)
    head = commit(store, base, stored(store, edit), "/top")
    return store, Revision(CatalogCache(store), head.manifest.root), made


def slowly(tree: Revision, path: str) -> set[bytes]:
    return {identity(name) for name, _ in tree.objects_below(path)}


@pytest.mark.parametrize("path", ["/top", "/top/d1", "/top/d1/f1", "/top/d1/big"])
def test_it_is_what_the_entries_name(published: tuple[MemoryStore, Revision, Changeset], path: str) -> None:
    _, tree, _ = published
    found = DigestSet()
    add_identities(tree, path, found)
    expected = slowly(tree, path)
    assert len(found) == len(expected)
    assert all(one in found for one in expected)


def test_it_is_what_the_changeset_needed(published: tuple[MemoryStore, Revision, Changeset]) -> None:
    store, tree, made = published
    found, needed = DigestSet(), objects_of(made, CatalogCache(store))
    add_identities(tree, "/top", found)
    assert len(found) == len(needed) == len(slowly(tree, "/top"))


def test_a_missing_catalog_is_an_error_and_the_rest_stays(published: tuple[MemoryStore, Revision, Changeset]) -> None:
    store, tree, _ = published
    reference = tree.nested_at("/top/d1/deep")
    assert reference is not None
    store.delete([reference.hash.with_suffix("C").key])
    found = DigestSet()
    with pytest.raises(CvmfsError):
        add_identities(Revision(CatalogCache(store), tree.root_hash), "/top", found)
    assert len(found) > 0
