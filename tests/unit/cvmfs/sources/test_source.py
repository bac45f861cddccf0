"""Names that could do harm, or that no catalog can hold, never get past the guards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.errors import DestinationError, SourceError
from include.cvmfs.sources.source import (
    checked_destination,
    checked_member,
    checked_numbers,
    checked_target,
    printable,
    refused,
)


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"a", "a"),
        (b"./a/b", "a/b"),
        (b"a/b/", "a/b"),
        (b".", ""),
        (b"./", ""),
        (b"././", ""),
        (b"...", "..."),
        (b"..a/b..", "..a/b.."),
        (b".hidden", ".hidden"),
        (b"with space\nand line", "with space\nand line"),
        ("é/ü".encode(), "é/ü"),
        (b"n" * 255, "n" * 255),
        (b".//etc/passwd", "etc/passwd"),
        (b"a//b", "a/b"),
        (b"a/./b", "a/b"),
        (b"a/././/./b//", "a/b"),
        (b"a//", "a"),
        (b"a/.", "a"),
        (b"./.", ""),
        (b".//", ""),
        (b"./" * 3000 + b"a", "a"),
    ],
)
def test_good_names_become_relative_paths(raw: bytes, path: str) -> None:
    assert checked_member(raw, "x.tar") == path


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "empty name"),
        (b"/", "absolute"),
        (b"/etc/passwd", "absolute"),
        (b"//a", "absolute"),
        (b"..", r"'\.\.'"),
        (b"../a", r"'\.\.'"),
        (b"./../a", r"'\.\.'"),
        (b"a/../../b", r"'\.\.'"),
        (b"a/..", r"'\.\.'"),
        (b"a/../", r"'\.\.'"),
        (b"a/.//../../b", r"'\.\.'"),
        (b"a\0b", "NUL"),
        (b"n" * 256, "longer than 255"),
        ("é".encode() * 128, "longer than 255"),
        (b"n/" * 2100, "longer than 4095"),
        (b"caf\xe9", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
    ],
)
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
    error = refused("evil\n.tar", b"a\x1b[31m\xff", "is bad")
    assert str(error).isprintable()
    assert error.member == "a\\x1b[31m\\\\xff"
    assert printable("plain é") == "plain é"


@pytest.mark.parametrize("destination", ["/a", "/nightlies/main/2026-07-01/Project/x86_64-el9+opt"])
def test_destinations_below_the_root_are_taken(destination: str) -> None:
    assert checked_destination(destination) == destination


@pytest.mark.parametrize(
    "destination",
    ["", "/", "a", "/a/", "/a//b", "/a/../b", "/.", "/a\0", "/" + "n" * 256, "/\udcff", "/" + chr(0xD800)],
)
def test_other_destinations_are_refused(destination: str) -> None:
    with pytest.raises(DestinationError):
        checked_destination(destination)


def test_reserved_names_are_no_destinations() -> None:
    with pytest.raises(DestinationError) as caught:
        checked_destination("/.cvmfs/x")
    assert caught.value.path == "/.cvmfs/x"
