"""Catalogs: counters stay exact whatever is done, equal steps give equal bytes, and damage ends in our errors."""

from __future__ import annotations

import sqlite3
import stat
import zlib
from functools import cache

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.catalog import Catalog, NestedRef, PackedCatalog
from include.cvmfs.format.dirent import Chunk, Dirent
from include.cvmfs.format.hashes import CATALOG, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.schema import Counts, Statistics
from tests.fakes.local import DIRECTORY
from tests.fakes.recount import counter_names
from tests.fakes.refused import refused

FILE = Dirent("", stat.S_IFREG | 0o644, size=7, hash=hash_bytes(b"content"))
KINDS = {
    "directory": (DIRECTORY, 0),
    "file": (FILE, 0),
    "chunked": (FILE.changed(hash=None, chunked=True, size=30), 3),
    "external": (FILE.changed(external=True, xattr=b"\x01\x00"), 0),
    "link": (Dirent("", stat.S_IFLNK | 0o777, size=6, symlink="target"), 0),
    "pipe": (Dirent("", stat.S_IFIFO | 0o600), 0),
}
PATHS = [f"/{above}{below}" for above in "ab" for below in ("", "/x", "/y", "/x/deep")]
NESTED = NestedRef("/n", ObjectHash(b"n" * 20, suffix=CATALOG), 4096)
BELOW = Counts(regular=3, dir=2, file_size=21)

Step = tuple[str, str, str]
VERBS = ("add", "update", "remove", "remove_tree")
steps = st.lists(st.tuples(st.sampled_from(VERBS), st.sampled_from(PATHS), st.sampled_from([*KINDS])), max_size=30)


def piece(number: int) -> Chunk:
    return Chunk(number * 10, 10, hash_bytes(b"%d" % number, suffix="P"))


class Model:
    """A catalog, and beside it what it must hold."""

    def __init__(self) -> None:
        self.catalog = Catalog.create("", DIRECTORY)
        self.entries: dict[str, tuple[Dirent, tuple[Chunk, ...]]] = {"": (DIRECTORY, ())}

    def do(self, verb: str, path: str, kind: str) -> None:
        """One step, if it is one that an editor would take."""
        template, count = KINDS[kind]
        entry = template.changed(name=path.rpartition("/")[2])
        chunks = tuple(piece(number) for number in range(count))
        above, there = self.entries.get(path.rpartition("/")[0]), self.entries.get(path)
        children = [other for other in self.entries if other.startswith(f"{path}/")]
        if verb == "add" and there is None and above is not None and above[0].is_directory:
            self.catalog.add(path, entry, chunks)
            self.entries[path] = entry, chunks
        elif verb == "update" and there is not None and entry.chunked == there[0].chunked and not children:
            self.catalog.update(path, entry)
            self.entries[path] = entry, there[1]
        elif verb == "remove" and there is not None and not children:
            assert self.catalog.remove(path) == there[0]
            del self.entries[path]
        elif verb == "remove_tree" and there is not None:
            self.catalog.remove_tree(path)
            for gone in (path, *children):
                del self.entries[gone]

    def assert_held_by(self, catalog: Catalog) -> None:
        expected = Counts.sum([Counts.of(entry, len(chunks)) for entry, chunks in self.entries.values()])
        assert catalog.statistics == Statistics(own=expected)
        assert catalog._all("SELECT count(*) FROM catalog") == [(len(self.entries),)] == [(expected.entries,)]
        for path, (entry, chunks) in self.entries.items():
            assert catalog.lookup(path) == entry
            assert catalog.chunks(path, entry) == chunks
            names = sorted(
                other.rpartition("/")[2] for other in self.entries if other and other.rpartition("/")[0] == path
            )
            assert [one.name for one in catalog.listing(path)] == names


def made(taken: list[Step]) -> Model:
    model = Model()
    for step in taken:
        model.do(*step)
    return model


def full() -> Catalog:
    """A catalog that has something in every table."""
    model = made([("add", path, kind) for path, kind in zip(PATHS, ("directory", *KINDS, "file"), strict=False)])
    catalog = model.catalog
    catalog.add(NESTED.path, DIRECTORY.changed(name="n", mountpoint=True))
    catalog.set_nested(NESTED, BELOW)
    catalog.add("/bound", DIRECTORY.changed(name="bound", bind=True))
    catalog.set_bind(NestedRef("/bound", NESTED.hash, 1))
    for key, value in {"previous_revision": str(NESTED.hash), "TTL": 60, "last_modified": 5}.items():
        catalog.set_property(key, value)
    return catalog


@cache
def image() -> bytes:
    return full().to_bytes()


@settings(max_examples=60)
@given(steps)
def test_counters_and_rows_are_exact_after_any_steps_and_when_read_again(taken: list[Step]) -> None:
    model = made(taken)
    model.assert_held_by(model.catalog)
    model.assert_held_by(Catalog.load(model.catalog.to_bytes()))


@settings(max_examples=20)
@given(steps)
def test_equal_steps_give_equal_bytes(taken: list[Step]) -> None:
    first = made(taken).catalog.pack()
    assert made(taken).catalog.pack() == first
    assert PackedCatalog.of(made(taken).catalog.to_bytes()) == first


def test_all_24_counters_are_in_the_file() -> None:
    assert len(counter_names(Catalog.load(image()))) == 24


def test_nested_catalogs_count_in_both_halves_until_they_are_forgotten() -> None:
    catalog = Catalog.create("", DIRECTORY)
    catalog.add("/n", DIRECTORY.changed(name="n", mountpoint=True))
    before = catalog.statistics
    catalog.set_nested(NESTED, BELOW)
    assert catalog.statistics == Statistics(before.own + Counts(nested=1), BELOW)
    assert catalog.nested_at("/n") == NESTED
    grown = NestedRef("/n", ObjectHash(b"m" * 20, suffix=CATALOG), 8192)
    catalog.set_nested(grown, Counts(regular=1))
    assert catalog.statistics == Statistics(before.own + Counts(nested=1), BELOW + Counts(regular=1))
    assert catalog.nested() == [grown]
    catalog.remove_nested("/n", BELOW + Counts(regular=1))
    assert catalog.statistics == before
    with refused(CatalogError, path="/n"):
        catalog.remove_nested("/n", Counts())


def test_a_nested_catalog_has_its_path_as_prefix_and_a_root_has_none() -> None:
    root, nested = Catalog.load(image()), Catalog.load(Catalog.create("/sw/app", DIRECTORY).to_bytes())
    assert (root.path, root.get_property("root_prefix"), root.root_entry.flags) == ("", None, 1)
    assert (nested.path, nested.get_property("root_prefix"), nested.root_entry.flags) == ("/sw/app", "/sw/app", 33)
    assert nested.root_entry.name == "app"
    assert (root.revision, root.ttl, nested.ttl) == (0, 60, 240)
    assert (root.get_property("schema"), root.get_property("schema_revision")) == ("2.5", "6")
    assert Catalog.create("", DIRECTORY, Layout.MTIME_NS).get_property("schema_revision") == "7"


@pytest.mark.parametrize("text", ["", "0" * 40, "0" * 40 + "-shake128"])
def test_no_predecessor_is_written_in_three_ways(text: str) -> None:
    catalog = Catalog.create("/n", DIRECTORY)
    catalog.set_property("previous_revision", text)
    assert catalog.previous_revision is None
    catalog.set_property("previous_revision", str(NESTED.hash))
    assert catalog.previous_revision == NESTED.hash


@pytest.mark.parametrize("verb", ["update", "remove", "remove_tree"])
def test_what_is_not_there_cannot_be_changed(verb: str) -> None:
    catalog = full()
    before = catalog.statistics
    arguments = (FILE,) if verb == "update" else ()
    with refused(CatalogError, path="/gone"):
        getattr(catalog, verb)("/gone", *arguments)
    assert catalog.statistics == before


def test_a_path_holds_one_entry() -> None:
    catalog = Catalog.load(image())
    before = catalog.statistics
    with refused(CatalogError, path="") as caught:
        catalog.add("/a", FILE.changed(name="a"))
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)
    assert catalog.statistics == before


def test_a_catalog_that_was_read_whole_replies_as_before_until_it_is_changed() -> None:
    catalog, other = Catalog.load(image()), Catalog.load(image())
    assert catalog.contents() is catalog.contents()
    paths = ["", *PATHS, NESTED.path, "/bound", "/not there"]
    assert [catalog.lookup(path) for path in paths] == [other.lookup(path) for path in paths]
    assert [catalog.nested_at(path) for path in paths] == [other.nested_at(path) for path in paths]
    assert catalog.nested_at(NESTED.path) == NESTED
    catalog.make_writable()
    catalog.remove("/bound")
    catalog.remove_nested(NESTED.path, BELOW)
    assert catalog.lookup("/bound") is catalog.nested_at(NESTED.path) is None
    assert catalog.contents() is not catalog.contents()


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_catalog_is_stored_as_a_zlib_stream_under_its_hash(algorithm: Algorithm) -> None:
    packed = full().pack(algorithm)
    assert packed.hash == hash_bytes(packed.data, algorithm, "C")
    assert zlib.decompress(packed.data) == image()
    assert packed.size == len(image())


@pytest.mark.parametrize("schema", ["2.6", "3", "2.4"])
def test_another_schema_is_refused(schema: str) -> None:
    catalog = Catalog.create("/n", DIRECTORY)
    catalog.set_property("schema", schema)
    with refused(CatalogError, path="/n"):
        Catalog.load(catalog.to_bytes())


def another_database() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE something (else_ TEXT)")
    return connection.serialize()


@pytest.mark.parametrize("database", [b"", b"no database", b"SQLite format 3\0" + bytes(4096), another_database()])
def test_what_is_no_catalog_is_refused(database: bytes) -> None:
    with pytest.raises(CatalogError):
        Catalog.load(database)


@pytest.mark.parametrize("path", ["/n", "", "/", "/other", "/nn"])
def test_a_catalog_that_registers_one_outside_of_itself_is_refused(path: str) -> None:
    catalog = Catalog.create("/n", DIRECTORY)
    catalog.set_nested(NestedRef(path, NESTED.hash, 1), BELOW)
    loaded = Catalog.load(catalog.to_bytes())
    with refused(CatalogError, path="/n"):
        loaded.nested()


def test_a_directory_that_is_in_itself_is_refused() -> None:
    catalog = Catalog.create("", DIRECTORY)
    for path in ("/a", "/a/x"):
        catalog.add(path, DIRECTORY.changed(name=path[-1:]))
    catalog._run("UPDATE catalog SET parent_1 = md5path_1, parent_2 = md5path_2 WHERE name = 'a'")
    with refused(CatalogError, path="/a/a"):
        catalog.move("/a", "/b")


def test_a_revision_of_the_schema_without_end_is_refused() -> None:
    catalog = Catalog.create("", DIRECTORY)
    catalog.set_property("schema_revision", "1e999")
    loaded = Catalog.load(catalog.to_bytes())
    with refused(CatalogError, path="") as caught:
        loaded.make_writable()
    assert isinstance(caught.value.__cause__, OverflowError)


def test_symbolic_links_are_found_with_their_paths_below_any_mountpoint() -> None:
    link = KINDS["link"][0]
    for top in ("", "/n"):
        catalog = Catalog.create(top, DIRECTORY)
        for directory in (f"{top}/a", f"{top}/a/deep"):
            catalog.add(directory, DIRECTORY.changed(name=directory.rpartition("/")[2]))
        catalog.add(f"{top}/a/file", FILE.changed(name="file"))
        for name in ("a/deep/one", "two"):
            catalog.add(f"{top}/{name}", link.changed(name=name.rpartition("/")[2], symlink=f"to-{name}"))
        assert catalog.symlinks() == {f"{top}/a/deep/one": "to-a/deep/one", f"{top}/two": "to-two"}
        catalog.remove(f"{top}/a/deep")
        with refused(CatalogError, path=top):
            catalog.symlinks()
