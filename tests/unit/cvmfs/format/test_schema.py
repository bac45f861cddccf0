"""Counters are those of the stock tools, and the schemas of their versions are read, changed or refused."""

from __future__ import annotations

import stat
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import NewTag, read_head, switch
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import CatalogError, FormatError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import History, Tag
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import HISTORY, Algorithm, hash_bytes
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import compress
from include.cvmfs.format.schema import NAMES, Counts, Statistics
from tests.fakes.local import DIRECTORY
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, SECONDS, MiniRepository, opened, sample, signer
from tests.fakes.oldcatalogs import age, history_at_revision
from tests.fakes.recount import counter_names
from tests.fakes.refused import refused

CONTENT = hash_bytes(b"x")
numbers = st.integers(min_value=-(2**40), max_value=2**40)
counts = st.builds(Counts, *[numbers] * len(NAMES))


@pytest.mark.parametrize(
    ("entry", "chunks", "expected"),
    [
        (Dirent("d", stat.S_IFDIR, size=4096), 0, Counts(dir=1)),
        (Dirent("d", stat.S_IFDIR, size=4096, mountpoint=True), 0, Counts(dir=1)),
        (Dirent("f", stat.S_IFREG, size=7, hash=CONTENT), 0, Counts(regular=1, file_size=7)),
        (
            Dirent("f", stat.S_IFREG, size=9, chunked=True),
            3,
            Counts(regular=1, file_size=9, chunked=1, chunks=3, chunked_size=9),
        ),
        (
            Dirent("f", stat.S_IFREG, size=5, hash=CONTENT, external=True, xattr=b"\x01\x00"),
            0,
            Counts(regular=1, file_size=5, external=1, external_file_size=5, xattr=1),
        ),
        (Dirent("l", stat.S_IFLNK, size=6, symlink="target"), 0, Counts(symlink=1)),
        (Dirent("c", stat.S_IFCHR, size=259), 0, Counts(special=1)),
        (Dirent("p", stat.S_IFIFO), 0, Counts(special=1)),
    ],
)
def test_each_kind_of_entry_adds_what_stock_tools_count(entry: Dirent, chunks: int, expected: Counts) -> None:
    assert Counts.of(entry, chunks) == expected
    assert expected.entries == 1


@given(counts, counts)
def test_what_is_added_can_be_taken_away_again(one: Counts, other: Counts) -> None:
    assert one + other - other == one
    assert one + other == other + one
    assert one - one == Counts()
    assert Statistics(one, other).total == one + other


@given(st.lists(counts, max_size=5))
def test_a_sum_is_that_of_every_column(many: list[Counts]) -> None:
    total = Counts()
    for one in many:
        total = total + one
    assert Counts.sum(many) == total
    assert total.as_dict() == {name: sum(getattr(one, name) for one in many) for name in NAMES}


# -- repositories of older stock tools are read and changed; newer ones are refused


def faults(mini: MiniRepository) -> list[str]:
    return [str(problem) for problem in check(opened(mini.store), contents=True).problems]


def edited(mini: MiniRepository) -> Edit:
    return Edit(CatalogCache(mini.store), opened(mini.store).manifest.root)


def commit(mini: MiniRepository, edit: Edit) -> None:
    head = read_head(mini.store, FQRN)
    switch(mini.store, head, edit.finish(SECONDS + 60), signer=signer(), now=SECONDS + 60, tags=[NewTag("new")])


def old(revision: int, *, upgraded: bool = False, algorithm: Algorithm = Algorithm.SHA1) -> MiniRepository:
    mini = age(sample(MemoryStore(), algorithm, Layout.MTIME_NS), revision, upgraded=upgraded)
    mini.publish()
    return mini


@pytest.mark.parametrize("upgraded", [False, True])
@pytest.mark.parametrize("revision", range(1, 8))
def test_every_revision_is_valid_before_and_after_it_is_built_upon(revision: int, upgraded: bool) -> None:
    mini = old(revision, upgraded=upgraded)
    assert faults(mini) == []
    before = dict(opened(mini.store).revision.walk())
    edit = edited(mini)
    edit.make_nested("/sw/new", DIRECTORY)
    edit.add("/sw/app/lib/deep/more", DIRECTORY)
    edit.remove("/sw/app/one")
    commit(mini, edit)
    assert faults(mini) == []
    root = opened(mini.store).revision.catalog_at("")
    assert counter_names(root) >= {"self_special", "subtree_special", "self_xattr", "subtree_external"}
    assert root.get_property("schema_revision") == str(max(revision, 6))
    assert {catalog.layout for catalog in map(opened(mini.store).revision.catalog_at, ("", "/sw/app", "/sw/new"))} == {
        root.layout
    }
    assert root.layout.has_mtime_ns is (revision == 7)
    after = dict(opened(mini.store).revision.walk())
    assert after.keys() - before.keys() == {"/sw/new", "/sw/new/.cvmfscatalog", "/sw/app/lib/deep/more"}
    assert before.keys() - after.keys() == {"/sw/app/one"}


@pytest.mark.parametrize("revision", range(1, 8))
def test_what_older_catalogs_do_not_count_is_counted_all_the_way_down(revision: int) -> None:
    mini, present = old(revision), old(7)
    wanted = opened(present.store).revision.catalog_at("").statistics
    edit = edited(mini)
    found = edit.root.statistics
    if revision < 2:  # such a catalog cannot hold extended attributes
        assert found.total.xattr == 0
        assert wanted.total.xattr > 0
    assert found.below.special == wanted.below.special
    assert found.own.special == wanted.own.special == 1
    assert found.total.entries == wanted.total.entries


def test_the_next_change_finds_the_predecessor_of_an_all_zero_one() -> None:
    mini = old(2)
    repository = opened(mini.store)
    first = repository.revision.nested_at("/sw/app")
    assert first is not None
    assert repository.revision.catalog_at("/sw/app").previous_revision is None
    edit = Edit(CatalogCache(mini.store), repository.manifest.root)
    edit.remove("/sw/app/run")
    commit(mini, edit)
    assert opened(mini.store).revision.catalog_at("/sw/app").previous_revision == first.hash


def test_moved_catalogs_of_an_older_revision_are_upgraded_and_stay_valid() -> None:
    mini = old(1)
    edit = edited(mini)
    edit.move("/sw/app", "/empty/app")
    commit(mini, edit)
    assert faults(mini) == []
    assert opened(mini.store).revision.read("/empty/app/lib/deep/data") == b"deep data"


@pytest.mark.parametrize("path", ["", "/sw/app"])
def test_a_newer_revision_of_the_schema_is_read_but_not_written(path: str) -> None:
    mini = sample(MemoryStore())
    mini.damage(path, "UPDATE properties SET value = '8' WHERE key = 'schema_revision'")
    mini.publish()
    assert opened(mini.store).revision.read("/sw/app/run") == b"#!/bin/sh\n"
    with refused(CatalogError, path=path):
        edited(mini).remove("/sw/app/run")


@pytest.mark.parametrize("revision", range(4))
def test_older_tag_databases_are_read_and_written(revision: int) -> None:
    mini = sample(MemoryStore())
    mini.publish([Tag("first", mini.store_catalogs().hash, 1, SECONDS, 4711, "by stock tools")])
    assert mini.manifest is not None
    history = opened(mini.store).history()
    assert history is not None
    stored = compress(history_at_revision(history.to_bytes(), revision))
    name = hash_bytes(stored, suffix=HISTORY)
    mini.store.put(name.key, stored)
    manifest = mini.publish(history=name)
    mini.write_manifest(replace(manifest, reflog=mini.write_reflog(manifest), timestamp=SECONDS))
    tags = {tag.name: tag for tag in opened(mini.store).tags()}
    assert set(tags) == {"first", "trunk"}
    assert tags["first"].size == (4711 if revision else 0)
    commit(mini, edited(mini))
    assert faults(mini) == []
    assert {tag.name for tag in opened(mini.store).tags()} == {"first", "new", "trunk", "trunk-previous"}


def test_a_newer_tag_database_is_read_but_not_written() -> None:
    history = History.create(FQRN)
    history.rotate_trunk(Tag("", hash_bytes(b"", suffix="C"), 1, SECONDS, 1))
    history.set_property("schema_revision", "4")
    newer = History.load(history.to_bytes())
    assert [tag.name for tag in newer.tags()] == ["trunk"]
    with refused(FormatError, what="history"):
        newer.remove("any")
