"""Any tree comes back as it was, leaves nothing when it goes, and is the same in any order of changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.cvmfs.commit.commit import read_head, store_all
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compression
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.revision.get import get
from include.cvmfs.sources.directory import DirectorySource
from include.cvmfs.sources.source import TreeSource
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import packed
from tests.fakes.commits import commit_change
from tests.fakes.local import CHUNKS, ODD_TREES, LocalRepository, make_folder, read_folder
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, signer

pytestmark = pytest.mark.slow

Nodes = dict[str, dict[str, Any]]
PLACES = st.sampled_from(["/x", "/sw/x", "/sw/deep/er/x"])


def without_root_marker(tree: dict[str, Any]) -> dict[str, Any]:
    """It is made where the tree has none."""
    return {path: facts for path, facts in tree.items() if path != ".cvmfscatalog"}


@settings(max_examples=40)
@given(
    nodes=ODD_TREES, place=PLACES, algorithm=st.sampled_from(list(Algorithm)), how=st.sampled_from(list(Compression))
)
def test_a_tree_comes_back_as_it_was(nodes: Nodes, place: str, algorithm: Algorithm, how: Compression) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary) / "tree", nodes)
        repository = LocalRepository(algorithm)
        repository.publish(folder, place, compression=how)
        assert repository.problems() == []
        done = get(repository.opened().revision, place, Path(temporary) / "back")
        assert without_root_marker(read_folder(Path(temporary) / "back")) == without_root_marker(read_folder(folder))
        assert done.skipped == done.kept == 0
        again = get(repository.opened().revision, place, Path(temporary) / "back")
        assert again.kept == again.files == done.files
        assert without_root_marker(read_folder(Path(temporary) / "back")) == without_root_marker(read_folder(folder))


@settings(max_examples=30)
@given(there=ODD_TREES, nodes=ODD_TREES)
def test_a_tree_that_goes_again_leaves_the_old_counters_and_entries(there: Nodes, nodes: Nodes) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        repository = LocalRepository()
        repository.publish(make_folder(Path(temporary) / "there", there), "/sw/there")
        before, entries = repository.statistics(), everything(repository)
        repository.publish(make_folder(Path(temporary) / "tree", nodes), "/sw/x")
        assert repository.statistics() != before
        repository.change(lambda edit: edit.remove("/sw/x"))
        assert repository.statistics() == before
        assert everything(repository) == entries
        assert repository.problems() == []


@settings(max_examples=30)
@given(trees=st.tuples(ODD_TREES, ODD_TREES, ODD_TREES), gone=st.booleans())
def test_the_order_of_disjoint_changes_is_of_no_effect(trees: tuple[Nodes, Nodes, Nodes], gone: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folders = [make_folder(Path(temporary) / str(number), nodes) for number, nodes in enumerate(trees)]
        begun = LocalRepository()
        begun.publish(folders[0], "/sw/p")
        begun.publish(folders[1], "/sw/q")
        replaced = changed(begun.store, lambda edit: hang(begun.store, edit, folders[2], "/sw/p"))
        other = changed(
            begun.store, lambda edit: edit.remove("/sw/q") if gone else hang(begun.store, edit, folders[2], "/sw/q")
        )
        results = []
        for order in ((replaced, other), (other, replaced)):
            repository = LocalRepository(store=MemoryStore())
            repository.store.objects = dict(begun.store.objects)
            base = read_head(repository.store, FQRN).manifest.root
            for new, lease in ((new, "/sw/p" if new is replaced else "/sw/q") for new in order):
                commit_change(
                    repository.store, fqrn=FQRN, signer=signer(), lease_path=lease, old_root=base, new_root=new,
                    now=int(NOW.timestamp()),
                )  # fmt: skip
            assert repository.problems() == []
            results.append((everything(repository), repository.statistics()))
        assert results[0] == results[1]


@settings(max_examples=40)
@given(nodes=ODD_TREES)
def test_a_folder_and_its_archive_are_the_same_tree(nodes: Nodes) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_folder(Path(temporary) / "tree", nodes)
        # an archive of the standard library tells neither attributes nor sockets, and writes 1e-09 for a time
        options = PrepareOptions(chunking=CHUNKS, specials=Specials.SKIP, mtime=77)

        def root(source: TreeSource) -> ObjectHash:
            return prepare(source, store=MemoryStore(), fqrn=FQRN, destination="/x", now=NOW, options=options).root

        archive = packed(folder, change=lambda member: member.replace(mtime=0, deep=False))
        assert root(DirectorySource(folder)) == root(TarSource(iter([archive]), "x.tar"))


def everything(repository: LocalRepository) -> list[tuple[str, Dirent]]:
    return list(repository.opened().revision.walk())


def changed(store: MemoryStore, apply: Callable[[Edit], object]) -> ObjectHash:
    """A revision that is stored and not switched to."""
    edit = Edit(CatalogCache(store), read_head(store, FQRN).manifest.root)
    apply(edit)
    new = edit.finish(int(NOW.timestamp()))
    store_all(store, [(one.hash.key, one.data) for one in new.catalogs] + list(new.objects))
    return new.hash


def hang(store: MemoryStore, edit: Edit, folder: Path, destination: str) -> None:
    options = PrepareOptions(
        layout=Layout.MTIME_NS, chunking=CHUNKS, mtime_ns=True, specials=Specials.KEEP, xattrs=("user.",)
    )
    changeset = prepare(
        DirectorySource(folder), store=store, fqrn=FQRN, destination=destination, now=NOW, options=options
    )
    edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)
