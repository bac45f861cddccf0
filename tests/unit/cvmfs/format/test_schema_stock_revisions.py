"""Repositories of older stock tools are read and built upon, and stay valid; newer ones are not guessed at."""

from __future__ import annotations

import stat
from dataclasses import replace

import pytest

from include.cvmfs.check.check import check
from include.cvmfs.commit.commit import NewTag, read_head, switch
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import CatalogError, FormatError
from include.cvmfs.format.catalog import Catalog
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import HISTORY, Algorithm, hash_bytes
from include.cvmfs.format.history import History, Tag
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import compress
from include.cvmfs.revision.repository import Repository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import FQRN, NOW, SECONDS, MiniRepository, public_key, sample, signer
from tests.fakes.oldcatalogs import age, history_at_revision
from tests.fakes.recount import counter_names
from tests.fakes.refused import refused

DIRECTORY = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)


def opened(mini: MiniRepository) -> Repository:
    return Repository.open(mini.store, fqrn=FQRN, public_keys=[public_key()], now=NOW)


def faults(mini: MiniRepository) -> list[str]:
    return [str(problem) for problem in check(opened(mini), contents=True).problems]


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
    before = dict(opened(mini).revision.walk())
    edit = Edit(CatalogCache(mini.store), opened(mini).manifest.root)
    edit.make_nested("/sw/new", DIRECTORY)
    edit.add("/sw/app/lib/deep/more", DIRECTORY)
    edit.remove("/sw/app/one")
    commit(mini, edit)
    assert faults(mini) == []
    root = opened(mini).revision.catalog_at("")
    assert counter_names(root) >= {"self_special", "subtree_special", "self_xattr", "subtree_external"}
    assert root.get_property("schema_revision") == str(max(revision, 6))
    assert {catalog.layout for catalog in map(opened(mini).revision.catalog_at, ("", "/sw/app", "/sw/new"))} == {
        root.layout
    }
    assert root.layout.has_mtime_ns is (revision == 7)
    after = dict(opened(mini).revision.walk())
    assert after.keys() - before.keys() == {"/sw/new", "/sw/new/.cvmfscatalog", "/sw/app/lib/deep/more"}
    assert before.keys() - after.keys() == {"/sw/app/one"}


@pytest.mark.parametrize("revision", range(1, 8))
def test_what_older_catalogs_do_not_count_is_counted_all_the_way_down(revision: int) -> None:
    mini, present = old(revision), old(7)
    wanted = opened(present).revision.catalog_at("").statistics
    edit = Edit(CatalogCache(mini.store), opened(mini).manifest.root)
    found = edit.root.statistics
    if revision < 2:  # such a catalog cannot hold extended attributes
        assert found.total.xattr == 0
        assert wanted.total.xattr > 0
    assert found.below.special == wanted.below.special
    assert found.own.special == wanted.own.special == 1
    assert found.total.entries == wanted.total.entries


def test_the_next_change_finds_the_predecessor_of_an_all_zero_one() -> None:
    mini = old(2)
    repository = opened(mini)
    first = repository.revision.nested_at("/sw/app")
    assert first is not None
    assert repository.revision.catalog_at("/sw/app").previous_revision is None
    edit = Edit(CatalogCache(mini.store), repository.manifest.root)
    edit.remove("/sw/app/run")
    commit(mini, edit)
    assert opened(mini).revision.catalog_at("/sw/app").previous_revision == first.hash


def test_moved_catalogs_of_an_older_revision_are_upgraded_and_stay_valid() -> None:
    mini = old(1)
    edit = Edit(CatalogCache(mini.store), opened(mini).manifest.root)
    edit.move("/sw/app", "/empty/app")
    commit(mini, edit)
    assert faults(mini) == []
    assert opened(mini).revision.read("/empty/app/lib/deep/data") == b"deep data"


@pytest.mark.parametrize("path", ["", "/sw/app"])
def test_a_newer_revision_of_the_schema_is_read_but_not_written(path: str) -> None:
    mini = sample(MemoryStore())
    mini.damage(path, "UPDATE properties SET value = '8' WHERE key = 'schema_revision'")
    mini.publish()
    assert opened(mini).revision.read("/sw/app/run") == b"#!/bin/sh\n"
    with refused(CatalogError, path=path):
        Edit(CatalogCache(mini.store), opened(mini).manifest.root).remove("/sw/app/run")


@pytest.mark.parametrize(("schema", "number"), [("2.6", "2.6"), ("3.0", "3"), ("2.4", "2.4")])
def test_another_schema_is_refused_even_for_reading(schema: str, number: str) -> None:
    mini = sample(MemoryStore())
    mini.damage("/sw/app", "UPDATE properties SET value = ? WHERE key = 'schema'", schema)
    mini.publish()
    with refused(CatalogError, path="/sw/app"):
        opened(mini).revision.read("/sw/app/run")
    assert any(number in fault for fault in faults(mini))


@pytest.mark.parametrize("revision", range(4))
def test_older_tag_databases_are_read_and_written(revision: int) -> None:
    mini = sample(MemoryStore())
    mini.publish([Tag("first", mini.store_catalogs().hash, 1, SECONDS, 4711, "by stock tools")])
    assert mini.manifest is not None
    history = opened(mini).history()
    assert history is not None
    stored = compress(history_at_revision(history.to_bytes(), revision))
    name = hash_bytes(stored, suffix=HISTORY)
    mini.store.put(name.key, stored)
    mini.publish(history=name)
    assert mini.manifest is not None
    mini.write_manifest(_with_reflog(mini))
    tags = {tag.name: tag for tag in opened(mini).tags()}
    assert set(tags) == {"first", "trunk"}
    assert tags["first"].size == (4711 if revision else 0)
    commit(mini, Edit(CatalogCache(mini.store), opened(mini).manifest.root))
    assert faults(mini) == []
    assert {tag.name for tag in opened(mini).tags()} == {"first", "new", "trunk", "trunk-previous"}


def test_a_newer_tag_database_is_read_but_not_written() -> None:
    history = History.create(FQRN)
    history.rotate_trunk(Tag("", hash_bytes(b"", suffix="C"), 1, SECONDS, 1))
    history.set_property("schema_revision", "4")
    newer = History.load(history.to_bytes())
    assert [tag.name for tag in newer.tags()] == ["trunk"]
    with refused(FormatError, what="history"):
        newer.remove("any")


def test_a_catalog_that_moves_says_so_itself_and_nothing_else_changes() -> None:
    mini = sample(MemoryStore())
    catalog = Catalog.load(mini.databases["/sw/app"])
    before = catalog.statistics
    catalog.move_to("/other/place")
    again = Catalog.load(catalog.to_bytes())
    assert again.path == "/other/place"
    assert again.root_entry.name == "place"
    assert again.statistics == before
    assert [one.path for one in again.nested()] == ["/other/place/lib/deep"]
    entry = again.lookup("/other/place/big")
    assert entry is not None
    assert [piece.size for piece in again.chunks("/other/place/big", entry)] == [1000, 500, 700]
    again.move_to("/sw/app")
    assert again.to_bytes() != b""
    assert [one.path for one in again.nested()] == ["/sw/app/lib/deep"]


def _with_reflog(mini: MiniRepository) -> Manifest:
    assert mini.manifest is not None
    return replace(mini.manifest, reflog=mini.write_reflog(mini.manifest), timestamp=SECONDS)
