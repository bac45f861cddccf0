"""Zip archives are read as they tell, after their sum was found right; the hostile and the damaged are refused."""

from __future__ import annotations

import hashlib
import io
import random
import re
import stat
import struct
import zipfile
import zlib
from datetime import UTC, datetime

import pytest

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.ingest.prepare import prepare
from include.cvmfs.sources.artifact import open_artifact
from include.cvmfs.sources.source import Entry, EntryKind, SourceLimits
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.zipmembers import ZipSource
from include.errors import ErrorRow
from tests.fakes.archives import archive, file, folder, symlink
from tests.fakes.memorystore import MemoryStore
from tests.fakes.recount import read_back
from tests.fakes.refused import refused
from tests.fakes.zips import DOS, ZipMember, deflated, ntfs, owners, times, zip_archive

NOW = datetime(2026, 7, 1, tzinfo=UTC)
DOS_TIME = 1_715_953_530  # 2024-05-17 13:45:30, as if in UTC
SAMPLE = [
    ZipMember(b"d/", mode=0o040750),
    ZipMember(b"d/f", b"content" * 50, mode=0o100640),
    ZipMember(b"l", b"../x", mode=stat.S_IFLNK | 0o777),
    ZipMember(b"s", b"stored", method=0),
    ZipMember(b"empty"),
]


def entries(data: bytes, *, block: int = 1 << 20, **options: object) -> list[tuple[Entry, bytes | None]]:
    blocks = (data[start : start + block] for start in range(0, len(data), block))
    source = ZipSource(blocks, "x.zip", **options)  # type: ignore[arg-type]
    return [(entry, opener().read() if opener else None) for entry, opener in source.entries()]


def complaint(
    data: bytes, kind: type[SourceError] | ErrorRow[..., SourceError] = SourceError, **options: object
) -> str:
    with refused(kind) as fault:
        entries(data, **options)
    return str(fault.value)


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
@pytest.mark.parametrize("wide", [False, True])
def test_members_come_as_they_were_packed(block: int, wide: bool) -> None:
    data = zip_archive(SAMPLE, comment=b"made by hand", wide=wide)
    assert entries(data, block=block) == [
        (Entry("d", EntryKind.DIRECTORY, 0o750, DOS_TIME), None),
        (Entry("d/f", EntryKind.FILE, 0o640, DOS_TIME, size=350), b"content" * 50),
        (Entry("l", EntryKind.SYMLINK, 0o777, DOS_TIME, symlink="../x"), None),
        (Entry("s", EntryKind.FILE, 0o644, DOS_TIME, size=6), b"stored"),
        (Entry("empty", EntryKind.FILE, 0o644, DOS_TIME), b""),
    ]


def test_numbers_that_do_not_fit_are_read_from_their_field() -> None:
    [(entry, data)] = entries(zip_archive([ZipMember(b"f", b"1234", wide=True)]))
    assert (entry.size, data) == (4, b"1234")


def test_exact_times_and_owners_count_where_there_are_any() -> None:
    [(one, _), (two, _), (three, _)] = entries(
        zip_archive(
            [
                ZipMember(b"a", extra=owners(3_000_000_000, 7) + times(1234)),
                ZipMember(b"b", extra=ntfs(1_500_000_000_123_456_700)),
                ZipMember(b"c", extra=times(-5) + ntfs(99)),
            ]
        )
    )
    assert (one.uid, one.gid, one.mtime, one.mtime_ns) == (3_000_000_000, 7, 1234, 0)
    assert (two.mtime, two.mtime_ns) == (1_500_000_000, 123_456_700)
    assert (three.mtime, three.mtime_ns) == (-5, 0)


def test_a_day_that_is_none_is_the_first_of_all() -> None:
    [(entry, _)] = entries(zip_archive([ZipMember(b"a", date=0)]))
    assert entry.mtime == 315_532_800


def test_members_of_other_systems_have_usual_modes() -> None:
    found = entries(zip_archive([ZipMember(b"d/", mode=16, host=DOS), ZipMember(b"f", mode=32, host=DOS)]))
    assert [(entry.kind, entry.mode) for entry, _ in found] == [(EntryKind.DIRECTORY, 0o755), (EntryKind.FILE, 0o644)]


def test_the_root_may_be_a_member() -> None:
    assert [one.path for one, _ in entries(zip_archive([ZipMember(b"./", mode=0o040755), ZipMember(b"./a")]))] == [
        "",
        "a",
    ]


def test_an_archive_without_members_is_an_empty_tree() -> None:
    assert entries(zip_archive([])) == []


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 3 << 20])
@pytest.mark.parametrize("kind", ["zeros", "noise"])
def test_contents_of_every_size(size: int, kind: str) -> None:
    data = bytes(size) if kind == "zeros" else random.Random(size).randbytes(size)
    archived = zip_archive([ZipMember(b"deflated", data), ZipMember(b"stored", data, method=0)])
    assert [content for _, content in entries(archived)] == [data, data]
    source = ZipSource(io.BytesIO(archived), "x.zip")
    for _, opener in source.entries():
        assert opener is not None
        content = opener()
        parts = iter(lambda content=content: content.read(1000), b"")
        assert b"".join(parts) == data


def test_what_the_standard_library_writes_is_read() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("d/é", "x" * 1000)
        packed.mkdir("e")
        with packed.open("streamed", "w") as stream:
            stream.write(b"1" * 5000)
    found = {entry.path: data for entry, data in entries(out.getvalue())}
    assert found == {"d/é": b"x" * 1000, "e": None, "streamed": b"1" * 5000}


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (ZipMember(b"/etc/passwd"), r"^/etc/passwd: has an absolute name"),
        (ZipMember(b"a/../../b"), r"^a/../../b: has '..' in its name"),
        (ZipMember(b"a\0b"), r"has a NUL byte in its name"),
        (ZipMember(b""), r"^\(empty name\): has an empty name"),
        (ZipMember(b"caf\xe9"), r"^caf\\xe9: has a name that is not UTF-8"),
        (ZipMember(b"a\\b", host=DOS), r"has a backslash in its name"),
        (ZipMember(b"f", b"1", flags=1), r"^f: is encrypted"),
        (ZipMember(b"f", b"1", flags=0x40), r"^f: is encrypted"),
        (ZipMember(b"f", b"1", method=12), r"^f: is packed by bzip2 \(method 12\)"),
        (ZipMember(b"f", mode=stat.S_IFCHR | 0o666), r"^f: is a device"),
        (ZipMember(b"f", mode=stat.S_IFDIR | 0o755), r"^f: is a directory by its attributes, but not by its name"),
        (ZipMember(b"f/", mode=stat.S_IFREG), r"^f: is a regular file by its attributes, but not by its name"),
        (ZipMember(b"d/", b"1", mode=stat.S_IFDIR), r"^d: is a directory with content"),
        (ZipMember(b"l", b"", mode=stat.S_IFLNK), r"^l: has a link target that is empty"),
        (ZipMember(b"l", b"x" * 5000, mode=stat.S_IFLNK), r"^l: has a link target of more than 4095 bytes"),
        (ZipMember(b"f", b"1234", crc=1), r"^f: does not have the length and checksum"),
        (ZipMember(b"f", b"1234", size=3, crc=zlib.crc32(b"123")), r"^f: does not have the length and checksum"),
        (ZipMember(b"f", b"1234", size=3, crc=zlib.crc32(b"123"), method=0), r"^f: does not have the length"),
        (ZipMember(b"f", b"1234", size=5), r"^f: is shorter than the archive's directory has it"),
        (ZipMember(b"f", b"1234", size=5, method=0), r"^f: is shorter than the archive's directory has it"),
        (ZipMember(b"f", b"", packed=b"junk"), r"^f: does not have the length and checksum"),
        (ZipMember(b"f", b"1234", packed=b"\xff\xff"), r"^f: cannot be unpacked"),
        (ZipMember(b"f", b"1234", packed=deflated(b"1234")[:-2]), r"^f: (is shorter|does not have)"),
        (ZipMember(b"f", b"1234", packed=deflated(b"1234") + b"more"), r"^f: does not have the length"),
        (ZipMember(b"f", local_name=b"g"), r"^f: does not match the archive's directory"),
        (ZipMember(b"f", offset=1), r"^f: does not match the archive's directory"),
        (ZipMember(b"f", offset=1 << 31), r"^f: does not match the archive's directory"),
        (ZipMember(b"f", extra=b"\x01\0\xff\xff"), r"^f: has fields that cannot be read"),
    ],
)
def test_hostile_members_are_refused_by_name(member: ZipMember, problem: str) -> None:
    assert re.search(problem, complaint(zip_archive([ZipMember(b"before", b"1"), member])))


def test_times_of_the_old_field_are_those_of_other_fields_unless_these_are_better() -> None:
    old = struct.pack("<HHii", 0x5855, 8, 5, 1_351_911_600)
    extended = struct.pack("<HHBi", 0x5455, 5, 1, 1_700_000_000)
    for extra, mtime in ((old, 1_351_911_600), (old + extended, 1_700_000_000), (extended + old, 1_700_000_000)):
        ((entry, _),) = entries(zip_archive([ZipMember(b"f", extra=extra)]))
        assert entry.mtime == mtime


@pytest.mark.parametrize(("checked", "path"), [(b"caf\x82", "café"), (b"another", None)])
def test_names_in_the_field_for_utf8_are_taken(checked: bytes, path: str | None) -> None:
    field = struct.pack("<BI", 1, zlib.crc32(checked)) + "café".encode()
    data = zip_archive([ZipMember(b"caf\x82", extra=struct.pack("<HH", 0x7075, len(field)) + field)])
    if path is None:
        assert "has a name that is not UTF-8" in complaint(data)
    else:
        assert [entry.path for entry, _ in entries(data)] == [path]
        field = struct.pack("<BI", 1, zlib.crc32(b"f")) + b"../f"
        data = zip_archive([ZipMember(b"f", extra=struct.pack("<HH", 0x7075, len(field)) + field)])
        assert "'..'" in complaint(data), "judged as all names"


def test_dots_and_doubled_slashes_in_names_are_dropped() -> None:
    members = [ZipMember(b"d//./", mode=0o040755), ZipMember(b"d/.//f", b"1"), ZipMember(b"e/.", mode=0o040755)]
    assert [entry.path for entry, _ in entries(zip_archive(members))] == ["d", "d/f", "e"]


def test_members_that_share_their_bytes_are_refused() -> None:
    one = zip_archive([ZipMember(b"f", bytes(100_000))])
    many = zip_archive([ZipMember(b"f", bytes(100_000), offset=0)] * 5)
    bodies, directory = one[: one.index(b"PK\1\2")], many[many.index(b"PK\1\2") : many.index(b"PK\5\6")]
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 5, 5, len(directory), len(bodies), 0)
    assert "overlaps other members" in complaint(bodies + directory + end)


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    data = zip_archive([ZipMember(b"bomb", bytes(1 << 20), size=1 << 30)])
    limits = SourceLimits(ratio=100, ratio_from=1 << 20)
    assert "unpacks to more than 100 times its size" in complaint(data, SOURCE_LIMIT_EXCEEDED, limits=limits)


def test_an_archive_that_is_too_large_to_keep_is_refused() -> None:
    data = zip_archive([ZipMember(b"f", random.Random(1).randbytes(10_000))])
    assert "beyond the limit of 5000 bytes" in complaint(
        data, SOURCE_LIMIT_EXCEEDED, limits=SourceLimits(bytes=5000), block=100
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[:-1], "truncated"),
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda data: data + b"x", "has bytes after its end"),
        (lambda data: b"x" + data, "has bytes before its first member"),
        (lambda data: data[:-14] + b"\2\0\2\0" + data[-10:], "its directory holds other members|more members than"),
        (lambda data: data[:-14] + b"\xfe\0\xfe\0" + data[-10:], "counts more members than its directory has room for"),
        (lambda data: data[:-18] + b"\1\0" + data[-16:], "is one of several parts"),
        (lambda data: data.replace(b"PK\1\2", b"PK\1\3", 1), "entry 1 of its directory cannot be read"),
    ],
)
def test_damaged_archives_are_refused(change: object, problem: str) -> None:
    said = complaint(change(zip_archive(SAMPLE)))  # type: ignore[operator]
    assert said.startswith("x.zip: ")
    assert re.search(problem, said)


def test_a_wrong_sum_or_length_is_found_before_any_member() -> None:
    data = zip_archive(SAMPLE)
    for options in ({"sha256": "0" * 64}, {"size": len(data) + 1}):
        source = ZipSource(iter([data]), "x.zip", **options)  # type: ignore[arg-type]
        with refused(SourceError, member="x.zip"):
            next(source.entries())
    source = ZipSource(iter([data]), "x.zip", sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    assert len(list(source.entries())) == len(SAMPLE)
    assert source.sha256 == hashlib.sha256(data).hexdigest()


def test_the_first_bytes_name_the_kind_of_an_archive() -> None:
    for size in (1, 3, 1 << 20):
        for data, kind in ((zip_archive(SAMPLE), ZipSource), (zip_archive([]), ZipSource), (archive([]), TarSource)):
            blocks = (data[start : start + size] for start in range(0, len(data), size))
            source = open_artifact(blocks, "any name")
            assert type(source) is kind
            list(source.entries())
            assert source.sha256 == hashlib.sha256(data).hexdigest()
    with refused(SourceError, member="nothing"):
        list(open_artifact(iter([]), "nothing").entries())


def test_a_zip_and_a_tar_of_the_same_tree_give_the_same_catalog() -> None:
    zipped = [
        ZipMember(b"d/", mode=0o040755, extra=times(6)),
        ZipMember(b"d/f", b"content", extra=times(7)),
        ZipMember(b"l", b"d/f", mode=stat.S_IFLNK | 0o777, extra=times(1_700_000_000)),
    ]
    packed = [folder("d/", mtime=6), file("d/f", b"content", mtime=7), symlink("l", "d/f")]
    store = MemoryStore()
    roots = []
    for data in (zip_archive(zipped), archive(packed)):
        changeset = prepare(open_artifact(iter([data]), "x"), store=store, fqrn="r", destination="/sw/x", now=NOW)
        roots.append(changeset.reference)
    assert roots[0] == roots[1]
    found, _ = read_back(store, roots[0])
    assert found["/sw/x/d/f"].content == b"content"
