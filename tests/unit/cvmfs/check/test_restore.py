"""What a store has lost is named by a check, and sent again out of a tree that has it; nothing else is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.check.restore import is_whole, restore_objects
from include.cvmfs.commit.commit import read_head, switch
from include.cvmfs.commit.create import create_repository
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import identity
from include.cvmfs.format.keys import format_public_key, generate_master, generate_repository_key
from include.cvmfs.ingest.changeset import Changeset, objects_of
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.directory import DirectorySource
from tests.fakes.memorystore import MemoryStore

FQRN = "r.example.org"
NOW = datetime.now(UTC)
MASTER, SIGNER = generate_master(), generate_repository_key(FQRN, NOW)
CUTS = ChunkLimits(4 << 10, 8 << 10, 16 << 10)
OPTIONS = PrepareOptions(mtime=1, owner=(0, 0), chunking=CUTS)
FILES = {
    "small": b"small",
    "sub/.cvmfscatalog": b"",
    "sub/other": b"other " * 50,
    "large": random.Random(7).randbytes(100 << 10),  # in chunks
}


@dataclass
class Case:
    store: MemoryStore
    tree: Path
    changeset: Changeset

    def check(self, *, contents: bool = False) -> CheckReport:
        return check(self.repository(), contents=contents)

    def repository(self) -> Repository:
        return Repository.open(self.store, fqrn=FQRN, public_keys=[format_public_key(MASTER.public_key())])

    def lose(self, path: str) -> str:
        """Delete the object of a file, or one chunk of it; its key."""
        tree = self.repository()
        chunks = tree.revision.chunks(path)
        name = chunks[1].hash if chunks else tree.revision.entry(path).hash
        assert name is not None
        del self.store.objects[name.key]
        return name.key


def filled(folder: Path, files: Mapping[str, bytes] = FILES) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def case(tmp_path: Path) -> Case:
    store = MemoryStore()
    create_repository(store, FQRN, master=MASTER, signer=SIGNER, now=NOW)
    tree = filled(tmp_path / "tree")
    changeset = prepare(DirectorySource(tree), store=store, fqrn=FQRN, destination="/a", now=NOW, options=OPTIONS)
    head = read_head(store, FQRN)
    edit = Edit(CatalogCache(store), head.manifest.root)
    edit.hang(NestedRef("/a", changeset.root, changeset.root_size), changeset.root_entry, changeset.statistics.total)
    switch(store, head, edit.finish(1), signer=SIGNER, now=int(NOW.timestamp()))
    return Case(store, tree, changeset)


def test_lost_files_chunks_and_damaged_objects_come_back_from_their_tree(case: Case) -> None:
    assert case.check(contents=True).problems == ()
    lost = {case.lose("/a/small"), case.lose("/a/large")}
    broken = case.repository().revision.entry("/a/sub/other").hash
    assert broken is not None
    case.store.objects[broken.key] = b"not what it was"
    report = case.check(contents=True)
    assert {one.hash.key for one in report.lost} == lost | {broken.key}
    assert {one.stored for one in report.lost} == {None, 15}
    puts = case.store.counters.puts
    done = restore_objects(
        case.store, report.lost, lambda: DirectorySource(case.tree), fqrn=FQRN, destination="/x", now=NOW,
        options=OPTIONS,
    )  # fmt: skip
    assert set(done.mended) == set(report.lost)
    assert done.missing == ()
    assert case.store.counters.puts == puts + 3, "nothing but what was lost is sent"
    assert case.check(contents=True).problems == ()


def test_what_the_tree_does_not_have_is_named(case: Case, tmp_path: Path) -> None:
    case.lose("/a/small")
    case.lose("/a/sub/other")
    report = case.check()
    part = filled(tmp_path / "part", {"renamed": FILES["small"], "unrelated": b"x"})
    done = restore_objects(
        case.store, report.lost, lambda: DirectorySource(part), fqrn=FQRN, destination="/x", now=NOW,
        options=OPTIONS,
    )  # fmt: skip
    assert [one.path for one in done.mended] == ["/a/small"]
    assert [one.path for one in done.missing] == ["/a/sub/other"]
    assert [problem.path for problem in case.check().problems] == ["/a/sub/other"]


def test_a_lost_catalog_comes_back_with_the_destination_and_options_of_its_tree(case: Case) -> None:
    (nested,) = [one for one in case.repository().revision.catalogs_below("/a") if one.path == "/a/sub"]
    del case.store.objects[nested.hash.with_suffix("C").key]
    report = case.check()
    assert [one.hash.suffix for one in report.lost] == ["C"]
    assert not is_whole(case.store, report.lost[0])
    elsewhere = restore_objects(
        case.store, report.lost, lambda: DirectorySource(case.tree), fqrn=FQRN, destination="/x", now=NOW,
        options=OPTIONS,
    )  # fmt: skip
    assert elsewhere.mended == ()
    there = restore_objects(
        case.store, report.lost, lambda: DirectorySource(case.tree), fqrn=FQRN, destination="/a", now=NOW,
        options=OPTIONS,
    )  # fmt: skip
    assert there.missing == ()
    assert case.check().problems == ()


def test_a_changeset_names_everything_that_it_needs(case: Case) -> None:
    needed = objects_of(case.changeset, CatalogCache(case.store))
    below = {identity(name) for name, _ in case.repository().revision.objects_below("/a")}
    assert len(needed) == len(below)
    assert all(one in needed for one in below)
