"""Names that could do harm, or that no catalog can hold, never get past the guards."""

from __future__ import annotations

import base64
import errno
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import DestinationError, FormatError, SourceError
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.schema import Counts
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import PrepareOptions
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.source import (
    IdMap,
    OwnerMap,
    TreeSource,
    checked_destination,
    checked_member,
    checked_numbers,
    checked_target,
    fixed,
    pack_xattrs,
    printable,
    refused as refusal,
    unpack_xattrs,
)
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import Member, archive, file, folder, hardlink
from tests.fakes.recount import Found
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


# -- extended attributes


KEPT = PrepareOptions(xattrs=("user.",))


def pax(name: str, attributes: dict[bytes, bytes]) -> Member:
    records = b""
    for key, value in attributes.items():
        body = b" " + key + b"=" + value + b"\n"
        length = len(body) + 1
        while len(str(length)) + len(body) != length:
            length = len(str(length)) + len(body)
        records += str(length).encode() + body
    return Member(name.encode() + b".pax", records, type=b"x")


def publish(source: TreeSource | bytes, options: PrepareOptions = KEPT) -> tuple[Changeset, dict[str, Found]]:
    return prepared(source, options)[:2]


def attributes(found: Found) -> dict[bytes, bytes]:
    return unpack_xattrs(found.entry.xattr)


def set_if_allowed(path: Path, name: str, value: bytes) -> bool:
    try:
        os.setxattr(path, name, value)
    except OSError as fault:
        if fault.errno in (errno.EPERM, errno.ENOTSUP):
            return False
        raise
    return True


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    if not set_if_allowed(tmp_path, "user.try", b""):
        pytest.skip("no extended attributes in the folder for temporary files")
    os.removexattr(tmp_path, "user.try")
    return tmp_path


def test_the_known_blob() -> None:
    assert pack_xattrs({b"user.foo": b"bar"}) == bytes.fromhex("01010803757365722e666f6f626172")
    assert pack_xattrs({}) is None
    assert unpack_xattrs(None) == {}


def test_names_are_in_byte_order_and_values_may_be_empty() -> None:
    blob = pack_xattrs({b"user.b": b"", b"user.a": b"\0\xff", b"user.B": b"2"})
    assert blob == b"\1\3\6\1user.B2\6\2user.a\0\xff\6\0user.b"


@given(st.dictionaries(st.binary(min_size=1, max_size=255).filter(lambda key: 0 not in key), st.binary(max_size=255)))
def test_every_blob_is_read_back(given_attributes: dict[bytes, bytes]) -> None:
    assert unpack_xattrs(pack_xattrs(given_attributes)) == given_attributes


@pytest.mark.parametrize(
    "attributes",
    [{b"": b"x"}, {b"a\0b": b""}, {b"k" * 256: b""}, {b"k": b"v" * 256}, {b"%d" % n: b"" for n in range(256)}],
)
def test_what_no_blob_can_tell_is_refused(attributes: dict[bytes, bytes]) -> None:
    with refused(FormatError, what="extended attributes"):
        pack_xattrs(attributes)


@pytest.mark.parametrize(
    "blob", [b"", b"\1", b"\2\0", b"\1\1", b"\1\1\0\1x", b"\1\1\1\2ka", b"\1\0more", b"\1\1\1\1kvmore"]
)
def test_other_blobs_are_refused(blob: bytes) -> None:
    with pytest.raises(FormatError):
        unpack_xattrs(blob)


def test_a_directory_gives_those_of_the_chosen_namespaces(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ".cvmfscatalog").touch()
    (tmp_path / "d" / "f").write_bytes(b"1")
    (tmp_path / "l").symlink_to("d")
    for path in ("", "d", "d/f"):
        os.setxattr(tmp_path / path, "user.where", (path or "root").encode())
    os.setxattr(tmp_path / "d" / "f", "user.empty", b"")
    others = set_if_allowed(tmp_path / "d" / "f", "trusted.other", b"x")
    changeset, found = publish(DirectorySource(tmp_path))
    assert {path: attributes(one) for path, one in found.items() if one.entry.xattr} == {
        "": {b"user.where": b"root"},
        "/d": {b"user.where": b"d"},
        "/d/f": {b"user.where": b"d/f", b"user.empty": b""},
    }
    # The mountpoint's row counts above, the nested root below.
    assert (changeset.statistics.own.xattr, changeset.statistics.below.xattr) == (2, 2)
    assert unpack_xattrs(changeset.root_entry.xattr) == {b"user.where": b"root"}
    _, more = publish(DirectorySource(tmp_path), PrepareOptions(xattrs=("user.", "trusted.")))
    assert (b"trusted.other" in attributes(more["/d/f"])) is others


def test_none_are_kept_unless_this_is_asked_for(tmp_path: Path) -> None:
    os.setxattr(tmp_path, "user.a", b"1")
    changeset, found = publish(DirectorySource(tmp_path), PrepareOptions())
    assert found[""].entry.xattr is None
    assert changeset.statistics.total == Counts(regular=1, dir=1)


def test_unreadable_attributes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").touch()

    def denied(path: bytes, **_: object) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listxattr", denied)
    with refused(SourceError, member=str(tmp_path)):
        publish(DirectorySource(tmp_path))


def test_archives_carry_them_in_either_way() -> None:
    encoded = base64.b64encode(b"\0\xffx").rstrip(b"=")
    members = [
        pax("d", {b"SCHILY.xattr.user.on": b"folder"}),
        folder("d"),
        pax("f", {b"SCHILY.xattr.user.a": b"x=\ny", b"LIBARCHIVE.xattr.user.b%20c": encoded, b"mtime": b"7.5"}),
        file("d/f", b"1"),
        file("d/plain"),
        hardlink("d/g", "d/f"),
    ]
    changeset, found = publish(archive(members))
    assert attributes(found["/d"]) == {b"user.on": b"folder"}
    assert attributes(found["/d/f"]) == {b"user.a": b"x=\ny", b"user.b c": b"\0\xffx"}
    assert attributes(found["/d/g"]) == attributes(found["/d/f"])
    assert found["/d/plain"].entry.xattr is None
    assert changeset.statistics.total.xattr == 3


def test_an_attribute_that_cannot_be_decoded_makes_the_archive_damaged() -> None:
    data = archive([pax("f", {b"LIBARCHIVE.xattr.user.a": b"?"}), file("f")])
    with refused(SourceError, member="x.tar"):
        publish(data)


def test_a_global_header_gives_none() -> None:
    header = pax("g", {b"SCHILY.xattr.user.a": b"1"})
    data = archive([Member(header.name, header.data, type=b"g"), file("f"), file("h")])
    assert publish(data)[0].statistics.total.xattr == 0


def test_what_is_too_long_is_left_out_and_named() -> None:
    many = {b"SCHILY.xattr.user.%03d" % number: b"" for number in range(300)}
    members = [
        pax("f", {b"SCHILY.xattr.user.long": b"v" * 256, b"SCHILY.xattr.user.fits": b"v" * 255}),
        file("f"),
        pax("m", many),
        file("m"),
    ]
    changeset, found = publish(archive(members))
    assert attributes(found["/f"]) == {b"user.fits": b"v" * 255}
    assert list(attributes(found["/m"])) == [b"user.%03d" % number for number in range(255)]
    [note] = changeset.notes
    assert "45 that came after the first 255 of their entry" in note
    assert "1 that are longer than 255 bytes" in note
    assert "user.long of f" in note


def test_a_directory_and_its_archive_give_the_same_catalog(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / "f").write_bytes(b"1")
    os.link(tree / "d" / "f", tree / "d" / "g")
    os.mkfifo(tree / "d" / "pipe")
    os.utime(tree / "d" / "pipe", ns=(1, 7))
    for path in (tree, tree / "d", tree / "d" / "f"):
        os.setxattr(path, "user.name", os.fsencode(path.name))
        os.setxattr(path, "user.other", b"\0\1")
    os.utime(tree / "d" / "f", ns=(1, 1_234_567_890_123_456_789))
    for path in (tree / "d", tree):
        os.utime(path, ns=(1, 5_000_000_001))
    packed = tmp_path / "tree.tar"
    subprocess.run(["tar", "--format=pax", "--xattrs", "-C", tree, "-cf", packed, "."], check=True)
    options = PrepareOptions(layout=Layout.MTIME_NS, xattrs=("user.",), mtime_ns=True, specials=Specials.KEEP)
    from_disk, found = publish(DirectorySource(tree), options)
    with packed.open("rb") as stream:
        from_tar, _ = publish(TarSource(stream, "tree.tar"), options)
    assert from_tar.root == from_disk.root
    assert from_disk.root == publish(DirectorySource(tree), options)[0].root
    assert found["/d/g"].entry.mtime_ns == 123_456_789
    assert (from_disk.root_entry.mtime, from_disk.root_entry.mtime_ns) == (5, 1)
