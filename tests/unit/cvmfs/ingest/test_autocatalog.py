"""Trees are cut into catalogs by markers, dirtab and weight; trees that are too large are refused."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.ingest.autocatalog import Cuts, Weights
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.dirtab import Dirtab
from include.cvmfs.sources.source import SourceLimits
from tests.fakes.memorystore import MemoryStore
from tests.fakes.recount import Found
from tests.fakes.refused import refused
from tests.fakes.trees import Members, Prepared, a_file, a_folder, a_link, prepared

NOW = datetime(2026, 7, 1, tzinfo=UTC)


def publish(members: Members, cuts: Cuts, store: MemoryStore | None = None) -> Prepared:
    return prepared(members, PrepareOptions(cuts=cuts), store=store, destination="/sw/x")


def files(folder: str, count: int) -> Members:
    return [a_file(f"{folder}/f{number:04}", mtime=number) for number in range(count)]


def catalogs(found: dict[str, Found]) -> set[str]:
    return {one.catalog.removeprefix("/sw/x") for one in found.values()}


def auto(most: int, least: int) -> Cuts:
    return Cuts(auto=Weights(most, least))


# -- dirtab


def test_directories_of_the_dirtab_become_catalogs() -> None:
    dirtab = Dirtab.parse("/sw/*/lib\n/sw/x/*/share\n/sw/x/f\n! *.svn\n/sw/x/.svn\n/sw\n/sw/x\n")
    members = [
        a_folder("lib", uid=7, gid=8),
        a_file("lib/a", b"1", mtime=5000),
        a_folder("usr/share"),
        a_file("usr/lib/b"),
        a_folder(".svn"),
        a_file("f"),
        a_link("share", "usr"),
    ]
    changeset, found, _ = publish(members, Cuts(dirtab=dirtab))
    assert catalogs(found) == {"", "/lib", "/usr/share"}
    marker = found["/lib/.cvmfscatalog"].entry
    assert (marker.mode, marker.uid, marker.gid, marker.mtime, marker.size) == (0o100644, 7, 8, 5000, 0)
    assert changeset.notes == ("2 nested catalogs by .cvmfsdirtab",)
    assert changeset.root == publish(random.Random(1).sample(members, len(members)), Cuts(dirtab=dirtab))[0].root


def test_a_marker_that_is_there_stays_as_it_is() -> None:
    changeset, found, _ = publish([a_file("d/.cvmfscatalog", mtime=3)], Cuts(dirtab=Dirtab.parse("/sw/x/d")))
    assert found["/d/.cvmfscatalog"].entry.mtime == 3
    assert changeset.notes == ()


# -- automatic catalogs


BACK = [a_file("a/.cvmfscatalog"), a_file("a/.cvmfsautocatalog"), *files("a", 19), *files("b", 77)]
CUT: dict[str, tuple[Members, Cuts, set[str]]] = {
    # 101 entries with the marker and three directories; without a, it has one more than half
    "light enough": (files("a", 50) + files("b", 47), auto(101, 10), {""}),
    "too heavy": (files("a", 50) + files("b", 47), auto(100, 10), {"", "/a", "/b"}),
    # a/deep weighs 84 and loses its heaviest; what is left below the root is light enough
    "from below": (
        files("a/deep/er", 60) + files("a/deep/or", 20) + files("a", 20), auto(100, 10), {"", "/a/deep/er"},
    ),
    "of the least weight": (files("a", 19) + files("b", 19), auto(30, 20), {"", "/a", "/b"}),
    "below the least weight": (files("a", 19) + files("b", 19), auto(30, 21), {""}),
    "equal ones by name": (files("c", 30) + files("a", 30) + files("b", 30), auto(90, 10), {"", "/a", "/b"}),
    # what comes back counts first: without a the root has 81 entries, with it 100
    "light enough with what comes back": (BACK, auto(100, 30), {""}),
    "too heavy with what comes back": (BACK, auto(99, 30), {"", "/b"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CUT)
def test_heavy_trees_are_cut(case: str) -> None:
    members, cuts, expected = CUT[case]
    assert catalogs(publish(members, cuts).entries) == expected


def test_the_heaviest_directories_go_until_half_is_left() -> None:
    members = files("a", 30) + files("b", 40) + files("c", 35) + files("d", 5)
    changeset, found, _ = publish(members, auto(100, 10))
    # 116 entries: without b (40 of its 41) there are 76, without c 41, and half of 100 is 50.
    assert catalogs(found) == {"", "/b", "/c"}
    for name in (".cvmfscatalog", ".cvmfsautocatalog"):
        marker = found[f"/b/{name}"].entry
        assert (marker.mode, marker.size, marker.mtime) == (0o100600, 0, 39)
    assert changeset.notes == ("automatic nested catalogs at b, c",)


def test_catalogs_that_are_there_weigh_nothing_and_are_cut_themselves() -> None:
    members = [a_file("n/.cvmfscatalog"), *files("n/p", 60), *files("n/q", 30), *files("m", 20)]
    changeset, found, _ = publish(members, auto(80, 10))
    assert catalogs(found) == {"", "/n", "/n/p"}
    assert not [path for path in found if path.endswith("autocatalog") and not path.startswith("/n/p")]
    assert changeset.catalogs == 3


def test_automatic_catalogs_that_became_too_light_go() -> None:
    members = [
        *files("a", 8), a_file("a/.cvmfscatalog"), a_file("a/.cvmfsautocatalog"),
        *files("b", 9), a_file("b/.cvmfscatalog"), a_file("b/.cvmfsautocatalog"),
        *files("c", 2), a_file("c/.cvmfscatalog"),
    ]  # fmt: skip
    # With their root entry and both markers, a has 11 entries and b has 12.
    changeset, found, _ = publish(members, auto(100, 12))
    assert catalogs(found) == {"", "/b", "/c"}
    assert "/a/.cvmfscatalog" not in found
    assert "/a/.cvmfsautocatalog" not in found
    assert changeset.notes == ("automatic nested catalogs gone at a",)
    assert catalogs(publish(members, Cuts())[1]) == {"", "/a", "/b", "/c"}


def test_the_tree_itself_stays_a_catalog() -> None:
    _, found, _ = publish([a_file(".cvmfscatalog"), a_file(".cvmfsautocatalog")], auto(100, 10))
    assert sorted(found) == ["", "/.cvmfsautocatalog", "/.cvmfscatalog"]


def test_a_marker_in_the_way_is_refused_by_name() -> None:
    with refused(SourceError, member="a/.cvmfsautocatalog"):
        publish([a_folder("a/.cvmfsautocatalog"), *files("a", 60)], auto(50, 10))


def test_a_tree_that_was_cut_is_cut_the_same_again() -> None:
    members = files("a/b", 70) + files("a/c", 60) + files("d", 50)
    first, found, _ = publish(members, auto(100, 10))
    assert publish(members, auto(100, 10))[0].root == first.root
    again = members + [
        a_file(path[1:], mode=0o600) for path in found if path.endswith("catalog") and path.count("/") > 1
    ]
    assert catalogs(publish(again, auto(100, 10))[1]) == catalogs(found)


# -- limits


def test_a_catalog_that_is_too_large_is_refused_before_any_is_uploaded() -> None:
    store = MemoryStore()
    members = [a_file("n/.cvmfscatalog"), *files("n/few", 5), *files("n/many", 30), *files("m", 30)]
    with refused(SOURCE_LIMIT_EXCEEDED):
        publish(members, Cuts(entries=38), store)
    assert not any(key.endswith("C") for key in store.objects)
    publish(members, Cuts(entries=39))


def test_the_complaint_names_directory_and_cure() -> None:
    members = [a_file("n/.cvmfscatalog"), *files("n/few", 5), *files("n/many", 30)]
    with refused(SOURCE_LIMIT_EXCEEDED) as fault:
        publish(members, Cuts(entries=20))
    message = str(fault.value)
    assert message.startswith("/sw/x/n: its catalog would have 39 entries, more than 20; put a .cvmfscatalog into")
    assert "/sw/x/n/many is the heaviest, with 31 entries" in message
    assert "turn automatic catalogs on, or raise the limit" in message
    with refused(SOURCE_LIMIT_EXCEEDED, member="/sw/x"):
        publish([a_file(f"f{number}") for number in range(30)], Cuts(entries=20))
    publish(members, Cuts(entries=0))


def test_automatic_catalogs_keep_the_limit() -> None:
    publish(files("n/few", 5) + files("n/many", 30), Cuts(entries=36, auto=Weights(30, 10)))


@pytest.mark.parametrize("files_of", [30, 19])
def test_a_directory_is_refused_before_anything_is_uploaded(tmp_path: Path, files_of: int) -> None:
    for number in range(files_of):
        (tmp_path / f"f{number}").write_bytes(b"%d" % number)

    def published(limit: int, **limits: int) -> MemoryStore:
        store = MemoryStore()
        options = PrepareOptions(cuts=Cuts(entries=limit), limits=SourceLimits(**limits))
        tree = DirectorySource(tmp_path)
        try:
            prepare(tree, store=store, fqrn="r", destination="/x", now=NOW, options=options)
        except SourceError:
            assert store.objects == {}
        return store

    assert published(files_of + 1).objects == {}  # the marker is one entry, the root another
    assert published(files_of + 2).objects
    assert published(1000, members=files_of).objects == {}
    assert published(1000, members=files_of + 1).objects
    assert published(1000, file_bytes=1).objects == {}
    assert published(1000, file_bytes=2).objects


def test_the_survey_of_a_directory_counts_the_markers_of_subdirectories(tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / ".cvmfscatalog").touch()
        for number in range(10):
            (tmp_path / folder / f"f{number}").touch()
    options = PrepareOptions(cuts=Cuts(entries=12))
    prepare(DirectorySource(tmp_path), store=MemoryStore(), fqrn="r", destination="/x", now=NOW, options=options)


# -- any tree


NAMES = st.sampled_from(["a", "b", "c", "d", ".cvmfscatalog", ".cvmfsautocatalog"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    paths=st.sets(PATHS, max_size=60),
    most=st.integers(2, 20),
    least=st.integers(1, 8),
    rules=st.lists(st.sampled_from(["/x/a", "/x/*/b", "/x/*/*", "! /x/c*", "! */d"]), max_size=3),
)
def test_any_tree_is_cut_into_sound_catalogs(paths: set[str], most: int, least: int, rules: list[str]) -> None:
    markers = (".cvmfscatalog", ".cvmfsautocatalog")
    leaves = {path for path in paths if not any(other.startswith(path + "/") for other in paths)}
    members = [a_file(path) for path in leaves if not any(f"{name}/" in path for name in markers)]
    cuts = Cuts(dirtab=Dirtab.parse("\n".join(rules)), auto=Weights(most, least))
    changeset, found, _ = prepared(members, PrepareOptions(cuts=cuts))
    plain = {path[1:] for path in found if path and path.rpartition("/")[2] not in markers}
    kept = {entry.path for entry, _ in members if entry.path.rpartition("/")[2] not in markers}
    assert {path for path in plain if not found["/" + path].entry.is_directory} == kept
    random.Random(0).shuffle(members)
    assert prepared(members, PrepareOptions(cuts=cuts)).changeset.root == changeset.root
