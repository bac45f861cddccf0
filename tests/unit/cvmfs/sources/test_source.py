"""Names that could do harm, or that no catalog can hold, never get past the guards."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.errors import DestinationError, FormatError, SourceError
from include.cvmfs.ingest.prepare import PrepareOptions
from include.cvmfs.sources.source import (
    IdMap,
    OwnerMap,
    checked_destination,
    checked_member,
    checked_numbers,
    checked_target,
    fixed,
    printable,
)
from include.cvmfs.sources.source import refused as refusal
from tests.fakes.archives import archive, file, folder
from tests.fakes.refused import refused
from tests.fakes.trees import prepared


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"a", "a"), (b"./a/b", "a/b"), (b"a/b/", "a/b"), (b".", ""), (b"./", ""), (b"././", ""), (b"...", "..."),
        (b"..a/b..", "..a/b.."), (b".hidden", ".hidden"), (b"with space\nand line", "with space\nand line"),
        ("é/ü".encode(), "é/ü"), (b"n" * 255, "n" * 255), (b".//etc/passwd", "etc/passwd"), (b"a//b", "a/b"),
        (b"a/./b", "a/b"), (b"a/././/./b//", "a/b"), (b"a//", "a"), (b"a/.", "a"), (b"./.", ""), (b".//", ""),
        (b"./" * 3000 + b"a", "a"),
    ],
)  # fmt: skip
def test_good_names_become_relative_paths(raw: bytes, path: str) -> None:
    assert checked_member(raw, "x.tar") == path


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "empty name"), (b"/", "absolute"), (b"/etc/passwd", "absolute"), (b"//a", "absolute"),
        (b"..", r"'\.\.'"), (b"../a", r"'\.\.'"), (b"./../a", r"'\.\.'"), (b"a/../../b", r"'\.\.'"),
        (b"a/..", r"'\.\.'"), (b"a/../", r"'\.\.'"), (b"a/.//../../b", r"'\.\.'"), (b"a\0b", "NUL"),
        (b"n" * 256, "longer than 255"), ("é".encode() * 128, "longer than 255"), (b"n/" * 2100, "longer than 4095"),
        (b"caf\xe9", "not UTF-8"), (b"\xed\xa0\x80", "not UTF-8"),
    ],
)  # fmt: skip
def test_the_message_about_a_bad_name_has_artifact_and_cure(raw: bytes, complaint: str) -> None:
    with pytest.raises(SourceError, match=rf"{complaint}.*; .*pack the tree again.* \(artifact x\.tar\)$"):
        checked_member(raw, "x.tar")


@given(st.binary(max_size=40))
def test_whatever_passes_stays_inside_the_tree(raw: bytes) -> None:
    try:
        path = checked_member(raw, "x.tar")
    except SourceError:
        return
    parts = path.split("/") if path else []
    assert all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    assert checked_member(path.encode() or b".", "x.tar") == path


def test_link_targets_may_point_anywhere() -> None:
    assert checked_target(b"/etc/passwd", "l", "x.tar") == "/etc/passwd"
    assert checked_target(b"../../..", "l", "x.tar") == "../../.."


@pytest.mark.parametrize("raw", [b"", b"a\0b", b"\xff", b"x" * 4096])
def test_link_targets_that_no_catalog_can_hold_are_refused(raw: bytes) -> None:
    with pytest.raises(SourceError) as caught:
        checked_target(raw, "l", "x.tar")
    assert caught.value.member == "l"


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (0, 1 << 32, 0), (0, 0, 1 << 60), (0, 0, -(1 << 60))])
def test_owners_and_times_out_of_range_are_refused(numbers: tuple[int, int, int]) -> None:
    uid, gid, mtime = numbers
    with pytest.raises(SourceError) as caught:
        checked_numbers("m", "x.tar", uid=uid, gid=gid, mtime=mtime)
    assert caught.value.member == "m"


def test_messages_hold_no_control_characters() -> None:
    error = refusal("evil\n.tar", b"a\x1b[31m\xff", "is bad")
    assert str(error).isprintable()
    assert error.member == "a\\x1b[31m\\\\xff"
    assert printable("plain é") == "plain é"


@pytest.mark.parametrize("destination", ["/a", "/nightlies/main/2026-07-01/Project/x86_64-el9+opt"])
def test_destinations_below_the_root_are_taken(destination: str) -> None:
    assert checked_destination(destination) == destination


@pytest.mark.parametrize(
    "destination",
    ["", "/", "a", "/a/", "/a//b", "/a/../b", "/.", "/a\0", "/" + "n" * 256, "/\udcff", "/" + chr(0xD800), "/.cvmfs/x"],
)
def test_other_destinations_are_refused(destination: str) -> None:
    with pytest.raises(DestinationError):
        checked_destination(destination)


# -- owner maps


NOW = datetime(2026, 7, 1, tzinfo=UTC)
IDS = st.integers(0, 0xFFFFFFFF)
TEXT = """
# map UIDs 137 and 138 to 1000
137  1000
  138 1000

# swap two
101  5
5    101
* 0
"""


def test_rules_comments_and_the_default() -> None:
    ids = IdMap.parse(TEXT)
    assert [ids[number] for number in (137, 138, 101, 5, 77)] == [1000, 1000, 5, 101, 0]


def test_ids_without_a_rule_stay() -> None:
    assert IdMap.parse("1 2\n1 3\n")[1] == 3
    assert IdMap.parse("1 2")[9] == 9
    assert IdMap()[9] == 9


@given(st.dictionaries(IDS, IDS), st.none() | IDS)
def test_every_map_is_read_back(rules: dict[int, int], default: int | None) -> None:
    assert IdMap.parse(IdMap(rules, default).format()) == IdMap(rules, default)


@pytest.mark.parametrize(
    "line", ["1", "1 2 3", "a 1", "1 b", "1 *", "* *", "-1 2", "1 4294967296", "1 ²", "1:2", "9" * 5000 + " 1"]
)
def test_bad_lines_are_named(line: str) -> None:
    with refused(FormatError, what="uid.map, line 3"):
        IdMap.parse(f"# head\n1 1\n{line}\n", "uid.map")


def test_a_map_counts_for_all_entries_once() -> None:
    swap = IdMap({1: 2, 2: 1, 0: 7})
    members = [folder("d", uid=1, gid=1), file("d/.cvmfscatalog", uid=2), file("e/f", uid=2, gid=1)]
    found = prepared(archive(members), PrepareOptions(owner=OwnerMap(swap, IdMap(default=9)))).entries
    assert {path: one.entry.uid for path, one in found.items()} == {
        "": 7,
        "/.cvmfscatalog": 7,
        "/d": 2,
        "/d/.cvmfscatalog": 1,
        "/e": 7,
        "/e/f": 1,
    }
    assert {one.entry.gid for one in found.values()} == {9}


def test_one_owner_for_everything() -> None:
    assert fixed(3, 4).of(100, 200) == (3, 4)
