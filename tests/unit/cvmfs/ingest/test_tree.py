"""A tree becomes nested catalogs with exact counters, and the same tree always becomes the same bytes."""

from __future__ import annotations

import random
from functools import partial

import pytest

from include.cvmfs.errors import SourceError
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.objects import Compressor
from include.cvmfs.format.schema import Counts
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions
from include.cvmfs.ingest.spool import SpecialBits, Spool
from include.cvmfs.sources.source import Entry, EntryKind
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused
from tests.fakes.trees import a_file, a_folder, a_hard_link, a_link, prepared

SMALL_CHUNKS = PrepareOptions(chunking=ChunkLimits(1 << 16, 1 << 17, 1 << 18))
publish = partial(prepared, options=SMALL_CHUNKS, destination="/sw/x")


def test_an_empty_tree_is_a_root_with_its_marker() -> None:
    changeset, found, store = publish([a_folder("")])
    assert sorted(found) == ["", "/.cvmfscatalog"]
    assert changeset.statistics.total == Counts(regular=1, dir=1)
    assert "data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78" in store.objects
    assert (changeset.catalogs, changeset.files, changeset.bytes) == (1, 1, 0)


def test_children_may_come_before_parents_and_parents_may_be_missing() -> None:
    _, found, _ = publish(
        [a_file("a/b/c", b"1", mtime=9), a_folder("a", mode=0o700, mtime=8), a_file("d/e/f/g", mtime=44)]
    )
    assert found["/a"].entry.mode == 0o40700
    assert found["/a/b"].entry.mode == 0o40755
    assert found["/d/e"].entry.mtime == 44
    assert found["/d/e/f"].entry.linkcount == 2
    assert found[""].entry.linkcount == 4


def test_every_directory_with_a_marker_becomes_a_nested_catalog() -> None:
    changeset, found, _ = publish(
        [
            a_folder(""),
            a_file(".cvmfscatalog", mtime=3),
            a_folder("a"),
            a_file("a/.cvmfscatalog"),
            a_folder("a/deep"),
            a_folder("a/deep/er"),
            a_file("a/deep/er/.cvmfscatalog"),
            a_file("a/deep/er/x", b"x"),
            a_folder("a-b"),
            a_file("a-b/y", b"y"),
        ]
    )
    assert changeset.catalogs == 3
    assert found["/.cvmfscatalog"].entry.mtime == 3
    assert found["/a/deep/er/x"].catalog == "/sw/x/a/deep/er"
    assert found["/a/deep"].catalog == "/sw/x/a"
    assert found["/a-b/y"].catalog == "/sw/x"
    assert changeset.statistics.own.nested == 1
    assert changeset.statistics.below.nested == 1


def test_a_nested_catalog_has_the_newest_time_of_what_is_below_it() -> None:
    members = [
        a_folder("", mtime=1),
        a_folder("a", mtime=2),
        a_file("a/.cvmfscatalog", mtime=2),
        a_file("a/f", b"1", mtime=50),
        a_file("z", b"2", mtime=40),
    ]
    changeset, _, store = publish(members)
    root = CatalogCache(store).open(changeset.root)
    assert (root.last_modified, root.revision, root.previous_revision) == (50, 1, None)


def test_hard_links_in_one_directory_are_a_group() -> None:
    changeset, found, _ = publish(
        [
            a_file("d/b", b"same", mode=0o640, mtime=7),
            a_hard_link("d/a", "d/b"),
            a_file("d/other", b"o"),
            a_hard_link("d/c", "d/a"),
            a_hard_link("d/another", "d/other"),
        ]
    )
    group = {name: found[f"/d/{name}"].entry for name in ("a", "b", "c")}
    assert {entry.linkcount for entry in group.values()} == {3}
    assert len({entry.changed(name="") for entry in group.values()}) == 1
    assert group["a"].mode == 0o100640
    assert {found["/d/other"].entry.hardlink_group, group["a"].hardlink_group} == {1, 2}
    assert changeset.notes == ()
    assert changeset.bytes == 14


def test_hard_links_across_directories_become_separate_files_with_a_note() -> None:
    changeset, found, store = publish(
        [a_file("a/x", b"same"), a_hard_link("b/x", "a/x"), a_hard_link("b/y", "a/x"), a_hard_link("c", "a/x")]
    )
    assert [found[path].entry.linkcount for path in ("/a/x", "/b/x", "/b/y", "/c")] == [1, 2, 2, 1]
    assert found["/a/x"].entry.hardlink_group == found["/c"].entry.hardlink_group == 0
    assert changeset.notes == ("1 hard-linked files have names in several directories and became separate files there",)
    assert len(store.objects) == 3  # content, marker, catalog


def test_a_large_file_is_stored_in_pieces_and_each_of_its_names_has_all_of_them() -> None:
    data = random.Random(1).randbytes(1_000_000)
    changeset, found, store = publish([a_file("big", data), a_hard_link("also", "big"), a_file("small", data[:65536])])
    assert found["/big"].content == found["/also"].content == data
    assert found["/big"].chunks == found["/also"].chunks
    assert not found["/small"].entry.chunked
    assert changeset.statistics.own.chunked == 2
    assert changeset.statistics.own.chunks == 2 * len(found["/big"].chunks)
    assert changeset.statistics.own.chunked_size == 2_000_000
    assert sum(key.endswith("P") for key in store.objects) == len(found["/big"].chunks)


def test_a_large_file_of_one_piece_is_an_ordinary_object() -> None:
    # Longer than the least piece, but without a cut: nothing but zeros up to the greatest length.
    _, found, store = publish([a_file("zeros", bytes(200_000))])
    assert not found["/zeros"].entry.chunked
    assert not any(key.endswith("P") for key in store.objects)


def test_a_piece_and_a_file_of_the_same_bytes_are_two_objects() -> None:
    data = random.Random(1).randbytes(600_000)
    _, found, _ = publish([a_file("big", data)])
    first = found["/big"].chunks[0]
    publish([a_file("big", data), a_file("head", data[: first.size])])
    publish([a_file("a-head", data[: first.size]), a_file("big", data)])


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("compressor", list(Compressor))
def test_all_algorithms_and_compressions(algorithm: Algorithm, compressor: Compressor) -> None:
    options = PrepareOptions(algorithm=algorithm, compressor=compressor, chunking=SMALL_CHUNKS.chunking)
    data = random.Random(2).randbytes(500_000)
    changeset, found, _ = publish(
        [a_file("d/.cvmfscatalog"), a_file("d/big", data), a_file("t", b"1")], options=options
    )
    assert changeset.root.algorithm is algorithm
    assert found["/d/big"].content == data
    assert found["/t"].entry.hash is not None
    assert found["/t"].entry.hash.algorithm is algorithm
    assert found["/t"].entry.compression is compressor.compression


def test_the_order_of_the_source_does_not_matter() -> None:
    members = [
        a_folder("", mtime=10),
        a_folder("a", mtime=20),
        a_file("a/.cvmfscatalog"),
        a_file("a/2", b"two", mtime=31),
        a_file("a/1", b"one"),
        a_folder("a b"),
        a_link("a b/l", "x"),
        a_file("a.b", random.Random(3).randbytes(300_000)),
    ]
    roots = set()
    for seed in range(6):
        random.Random(seed).shuffle(members)
        roots.add(publish(members)[0].root)
    assert len(roots) == 1


def test_another_destination_gives_other_catalogs_but_no_other_objects() -> None:
    first, _, store = publish([a_file("x", b"x")])
    before = len(store.objects)
    second, _, _ = publish([a_file("x", b"x")], store=store, destination="/sw/z")
    assert first.root != second.root
    assert len(store.objects) == before + 1


def test_special_bits_are_stripped_with_a_note_or_kept_and_owner_and_time_set_for_all() -> None:
    members = [a_folder("", mode=0o1777), a_file("su", b"", mode=0o4755), a_folder("g", mode=0o2775)]
    changeset, found, _ = publish(members, options=PrepareOptions(owner=(7, 8), mtime=123))
    assert [found[path].entry.mode for path in ("", "/su", "/g")] == [0o40777, 0o100755, 0o40775]
    assert changeset.notes == ("set-uid, set-gid and sticky bits stripped from 3 entries",)
    assert {(one.entry.uid, one.entry.gid, one.entry.mtime) for one in found.values()} == {(7, 8, 123)}
    changeset, found, _ = publish(members, options=PrepareOptions(special_bits=SpecialBits.KEEP))
    assert [found[path].entry.mode for path in ("", "/su", "/g")] == [0o41777, 0o104755, 0o42775]
    assert changeset.root_entry.mode == 0o41777
    assert changeset.notes == ()


@pytest.mark.parametrize(
    ("members", "member"),
    [
        ([a_file("x"), a_file("y"), a_file("x", b"other")], "x"),
        ([a_folder("x"), a_folder("x", mode=0o700)], "x"),
        ([a_folder(""), a_folder("", mode=0o700)], "."),
        ([a_link("l", "/etc"), a_file("l/passwd")], "l/passwd"),
        ([a_link("l", "/etc"), a_file("l/a/b/c")], "l/a/b/c"),
        ([a_file("l/a"), a_link("l", "/etc")], "l/a"),
        ([a_file("l"), a_file("l/a")], "l/a"),
        ([a_file("")], "."),
        ([a_hard_link("x", "y")], "x"),
        ([a_hard_link("x", "x")], "x"),
        ([a_hard_link("x", "y"), a_file("y")], "x"),
        ([a_folder("y"), a_hard_link("x", "y")], "x"),
        ([a_folder("a/.cvmfscatalog")], "a/.cvmfscatalog"),
        ([a_link(".cvmfscatalog", "x")], ".cvmfscatalog"),
        ([a_link("x", "y"), a_hard_link(".cvmfscatalog", "x")], ".cvmfscatalog"),
        ([(Entry("dev/null", EntryKind.CHARACTER_DEVICE, 0o666, 0), None)], "dev/null"),
        ([(Entry("pipe", EntryKind.FIFO, 0o666, 0), None)], "pipe"),
    ],
)
def test_bad_trees_are_refused_by_name(members: list[tuple[Entry, bytes | None]], member: str) -> None:
    store = MemoryStore()
    with refused(SourceError, member=member):
        publish(members, store=store)
    assert not any(key.endswith("C") for key in store.objects)


def test_a_hard_link_to_a_symbolic_link_is_a_symbolic_link() -> None:
    _, found, _ = publish([a_link("l", "t"), a_hard_link("m", "l")])
    assert found["/m"].entry.symlink == "t"
    assert found["/m"].entry.linkcount == 1


def test_more_entries_than_one_batch() -> None:
    members = [a_file(f"d{number % 7}/f{number}", b"%d" % (number % 50)) for number in range(5000)]
    members += [a_file(f"d{number}/.cvmfscatalog") for number in range(0, 7, 2)]
    changeset, _, store = publish(members)
    assert changeset.files == 5005
    assert changeset.catalogs == 5
    assert len(store.objects) == 50 + 1 + 5


def test_a_full_disk_under_the_spool_is_an_error_of_the_source() -> None:
    def fill() -> None:
        with Spool("x.tar") as spool:
            spool._db.execute("PRAGMA max_page_count = 8")
            for number in range(10_000):
                spool.add(Entry(f"f{number}", EntryKind.FILE, 0o644, 0), bytes(20))

    with refused(SourceError, member="x.tar"):
        fill()
