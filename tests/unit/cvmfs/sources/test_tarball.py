"""Tar archives are read as a stream, in every dialect and packing; what is damaged or hostile is refused by name."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import random
import re
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, strategies as st

from include.cvmfs.errors import SOURCE_LIMIT_EXCEEDED, SourceError
from include.cvmfs.sources.archive import ArchiveBytes, Reader, _inflating
from include.cvmfs.sources.source import Entry, EntryKind, SourceLimits
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import BLOCK, Member, archive, file, folder, hardlink, symlink
from tests.fakes.refused import refused

PLAIN = archive([folder("d/"), file("d/f", b"content", mode=0o640), symlink("l", "../x"), hardlink("d/g", "d/f")])
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": lambda data: data,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def blocks(data: bytes, size: int) -> Iterator[bytes]:
    return iter([data[start : start + size] for start in range(0, len(data), size)])


def entries(data: bytes, *, block: int = 1 << 20, **options: object) -> list[tuple[Entry, bytes | None]]:
    source = TarSource(blocks(data, block), "x.tar", **options)  # type: ignore[arg-type]
    return [(entry, opener().read() if opener else None) for entry, opener in source.entries()]


def paths(data: bytes, **options: object) -> list[str]:
    return [entry.path for entry, _ in entries(data, **options)]


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("block", [1, 7, 512, 1000, 1 << 20])
def test_every_packing_is_known_by_its_magic(packer: str, block: int) -> None:
    found = entries(PACKERS[packer](PLAIN), block=block)
    assert found == [
        (Entry("d", EntryKind.DIRECTORY, 0o755, 1_700_000_000), None),
        (Entry("d/f", EntryKind.FILE, 0o640, 1_700_000_000, size=7), b"content"),
        (Entry("l", EntryKind.SYMLINK, 0o777, 1_700_000_000, symlink="../x"), None),
        (Entry("d/g", EntryKind.HARDLINK, 0o644, 1_700_000_000, hardlink_to="d/f"), None),
    ]


def test_a_file_object_is_as_good_as_blocks() -> None:
    source = TarSource(io.BytesIO(PLAIN), "x.tar")
    assert [entry.path for entry, _ in source.entries()] == ["d", "d/f", "l", "d/g"]
    assert source.sha256 == hashlib.sha256(PLAIN).hexdigest()


@pytest.mark.parametrize("packer", ["gz", "xz", "zst"])
def test_several_streams_one_after_the_other_are_one_archive(packer: str) -> None:
    pack = PACKERS[packer]
    data = b"".join(pack(PLAIN[start : start + 700]) for start in range(0, len(PLAIN), 700))
    for block in (1, 100, 1 << 20):
        assert len(entries(data, block=block)) == 4
    if packer != "zst":
        assert len(entries(data + bytes(512))) == 4


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_and_targets_of_every_dialect(tmp_path: Path, format: int) -> None:  # noqa: A002
    long = "d" * 80 + "/" + ("é" * 40 if format != tarfile.USTAR_FORMAT else "e" * 80)
    deep = "/".join(["n" * 200] * 5) if format != tarfile.USTAR_FORMAT else "m" * 100
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name in (long, deep):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"123"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, deep
        tar.addfile(link)
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, deep
        tar.addfile(hard)
    found = [entry for entry, _ in entries(out.getvalue())]
    assert [entry.path for entry in found] == [long, deep, "link", "hard"]
    assert (found[2].symlink, found[3].hardlink_to) == (deep, deep)


def test_large_numbers_and_fractions_of_seconds() -> None:
    for form, mtime, seconds in ((tarfile.PAX_FORMAT, -1.5, -2), (tarfile.GNU_FORMAT, -5, -5)):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            member = tarfile.TarInfo("x")
            member.mtime, member.uid, member.gid = mtime, 3_000_000_000, 4_000_000
            tar.addfile(member)
        [(entry, _)] = entries(out.getvalue())
        assert (entry.mtime, entry.uid, entry.gid) == (seconds, 3_000_000_000, 4_000_000)


def test_global_headers_give_defaults_but_no_names() -> None:
    out = io.BytesIO()
    headers = {"comment": "a commit", "uid": "77", "path": "evil", "size": "5", "linkpath": "evil"}
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        tar.addfile(tarfile.TarInfo("x"))
        tar.addfile(tarfile.TarInfo("y"))
    assert [(entry.path, entry.uid, entry.size) for entry, _ in entries(out.getvalue())] == [("x", 77, 0), ("y", 77, 0)]


def test_old_archives_mark_directories_by_a_slash() -> None:
    [(entry, _)] = entries(archive([Member(b"d/", type=b"\0", mode=0o755)]))
    assert entry.kind is EntryKind.DIRECTORY


def test_the_root_may_be_a_member() -> None:
    assert paths(archive([folder("./"), file("./a")])) == ["", "a"]
    assert paths(archive([folder("."), file("./a")])) == ["", "a"]


def test_an_archive_without_members_is_an_empty_tree() -> None:
    assert entries(bytes(10240)) == []


def test_content_may_be_left_unread_or_read_in_parts() -> None:
    data = random.Random(1).randbytes(100_000)
    source = TarSource(blocks(archive([file("a", data), file("b", data), file("c", b"end")]), 999), "x.tar")
    parts = []
    for entry, opener in source.entries():
        assert opener is not None
        if entry.path == "b":
            content = opener()
            while part := content.read(7001):
                parts.append(part)
        if entry.path == "c":
            assert opener().read() == b"end"
    assert b"".join(parts) == data


def test_devices_have_their_kind() -> None:
    members = [Member(b"c", type=b"3", device=(1, 3)), Member(b"b", type=b"4"), Member(b"p", type=b"6")]
    found = [entry for entry, _ in entries(archive(members))]
    assert [entry.kind for entry in found] == [EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE, EntryKind.FIFO]
    assert found[0].device == 0x103


BAD_MEMBERS = [
    ([Member(b"/etc/passwd")], "/etc/passwd"),
    ([Member(b"../x")], "../x"),
    ([Member(b"")], "(empty name)"),
    ([Member(b"passwd", prefix=b"/etc")], "/etc/passwd"),
    ([Member(b"caf\xe9")], r"caf\xe9"),
    ([Member(b"x", type=b"S")], "x"),
    ([Member(b"x", type=b"V")], "x"),
    ([Member(b"x/", type=b"0")], "x/"),
    ([Member(b"l", type=b"2", target=b"")], "l"),
    ([Member(b"l", type=b"2", target=b"\xff")], "l"),
    ([file("a"), Member(b"l", type=b"1", target=b"../a")], "l"),
    ([file("a"), Member(b"l", type=b"1", target=b"/etc/shadow")], "l"),
    ([Member(b"L", b"n" * 300 + b"\0", type=b"L"), Member(b"n")], "n" * 300),
    ([Member(b"x", b"16 path=../../a\n", type=b"x"), Member(b"a")], "../../a"),
    ([Member(b"x", b"12 path=a\0b\n", type=b"x"), Member(b"a")], r"a\x00b"),
    ([Member(b"x", b"22 GNU.sparse.major=1\n", type=b"x"), Member(b"a")], "a"),
    ([Member(b"x", b"11 uid=-77\n", type=b"x"), Member(b"a")], "a"),
    ([Member(b"x", b"", type=b"L", size=1 << 30)], "x"),
]


@pytest.mark.parametrize(("members", "member"), BAD_MEMBERS)
def test_hostile_members_are_refused_by_name(members: list[Member], member: str) -> None:
    data = archive(members)
    with refused(SourceError, member=member):
        entries(data)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is empty"),
        (b"hello", "is not a tar archive"),
        (b"PK\x03\x04" + bytes(2000), "is not a tar archive"),
        (gzip.compress(b"hello", mtime=0), "is not a tar archive"),
        (random.Random(5).randbytes(5000), "is not a tar archive"),
        (PLAIN[:-1024], "is truncated"),
        (PLAIN[:700], "is truncated"),
        (PLAIN[: BLOCK * 2 + 3], "is truncated"),
        (archive([file("a"), Member(b"b", checksum=1)]), "header 2 has a wrong checksum"),
        (PLAIN + b"garbage", "has bytes after the end"),
        (PLAIN + bytes(5000) + PLAIN, "has bytes after the end"),
        (gzip.compress(PLAIN, mtime=0) + b"garbage", "has bytes after its end"),
        (lzma.compress(PLAIN) + b"garbage", "has bytes after its end"),
        (zstandard.compress(PLAIN) + b"garbage", "is damaged after|bytes after its end"),
        (gzip.compress(PLAIN, mtime=0)[:-5], "is truncated"),
        (lzma.compress(PLAIN)[:-5], "is truncated"),
        (zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)[:-3], "is truncated"),
        (gzip.compress(PLAIN, mtime=0)[:-8] + bytes(8), "is damaged"),
        (archive([Member(b"x", b"99 path=a\n", type=b"x"), file("a")]), "extended header cannot be read"),
        (archive([Member(b"x", b"no length\n", type=b"x"), file("a")]), "extended header cannot be read"),
        (archive([Member(b"x", b"11 uid=abc\n", type=b"x"), file("a")]), "invalid extended header uid=abc"),
        (archive([Member(b"x", b"n", type=b"L")]), "is truncated"),
    ],
)
def test_the_message_says_what_is_wrong_with_a_damaged_archive(data: bytes, complaint: str) -> None:
    with pytest.raises(SourceError, match=rf"^x\.tar: .*({complaint}).*; (fetch or pack .* again|pack the tree)"):
        entries(data)


@pytest.mark.parametrize(
    ("type", "words"),
    [
        (b"V", "is a volume label; .* without --label"),
        (b"D", "is an incremental dump directory; .* without --listed-incremental"),
        (b"M", "is the rest of a file that begins in another volume"),
        (b"S", "is a sparse file"),
        (b"A", "is an access control list of Solaris"),
        (b"Q", "is of the unknown type 'Q'"),
    ],
)
def test_members_that_are_not_read_are_called_by_their_name(type: bytes, words: str) -> None:  # noqa: A002
    with refused(SourceError, member="x") as caught:
        entries(archive([Member(b"x", type=type)]))
    assert re.match(f"x: {words}", str(caught.value))


def test_header_sums_of_signed_bytes_are_called_so() -> None:
    name = "é".encode()
    signed = Member(name, checksum=sum(Member(name).to_bytes()[:148] + b" " * 8 + Member(name).to_bytes()[156:]) - 512)
    for members in ([signed], [file("a"), signed]):
        with refused(SourceError, member="x.tar") as caught:
            entries(archive(members))
        assert "sums of its headers are of signed bytes" in str(caught.value)
        assert "damaged" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"BZh91AY&SY" + bytes(600), "a bzip2 file"),
        (b"\x1f\x9d\x90" + bytes(600), r"a file of compress \(\.Z\)"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(600), "a 7-Zip archive"),
        (b"#!/usr/bin/env python3\nPK\x03\x04", "a program"),
        (b"\x7fELF" + bytes(600), "a program"),
    ],
)
def test_other_formats_are_called_by_their_name(data: bytes, kind: str) -> None:
    with refused(SourceError, member="x.tar") as caught:
        entries(data)
    words = rf"x\.tar: is {kind}.*, not a tar archive, .*; pack the tree as one of these"
    assert re.match(words, str(caught.value))


def zstd_frame(window_log: int, data: bytes) -> bytes:
    block = (len(data) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\0" + bytes([window_log - 10 << 3]) + block + data


def xz_stream(dictionary: int, data: bytes) -> bytes:
    """``dictionary``: the byte of its size."""
    stream = bytearray(lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]))
    end = 12 + (stream[12] + 1) * 4
    assert stream[14:16] == b"\x21\x01"
    stream[16] = dictionary
    stream[end - 4 : end] = zlib.crc32(stream[12 : end - 4]).to_bytes(4, "little")
    return bytes(stream)


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zstd_frame(29, PLAIN), "a window of 512 MiB .*at most 128 MiB are allowed; .* zstd --long=27"),
        (zstandard.compress(PLAIN) + zstd_frame(28, PLAIN), "a window of 256 MiB"),
        (xz_stream(34, PLAIN), "a dictionary of 512 MiB .*at most 256 MiB are allowed; .* xz --lzma2="),
        (lzma.compress(PLAIN) + xz_stream(33, PLAIN), "a dictionary of 384 MiB"),
        (xz_stream(40, PLAIN), "a dictionary of 4096 MiB"),
    ],
)
def test_a_sound_archive_that_needs_too_much_memory_is_not_called_damaged(block: int, data: bytes, words: str) -> None:
    with refused(SOURCE_LIMIT_EXCEEDED, member="x.tar") as caught:
        entries(data, block=block)
    assert re.search(f"needs {words}", str(caught.value))
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("data", [zstd_frame(27, PLAIN), xz_stream(32, PLAIN)], ids=["zst", "xz"])
def test_windows_and_dictionaries_of_the_largest_allowed_size_are_read(data: bytes) -> None:
    assert len(entries(data)) == 4


@pytest.mark.parametrize("after", [b"x" * 8, b"1" * 8, b"\0", b"=" * 20])
def test_an_extended_header_that_does_not_go_on_is_refused(after: bytes) -> None:
    header = Member(b"PaxHeaders/x", b"11 mtime=1\n" + after, type=b"x")
    with refused(SourceError, member="x.tar"):
        entries(archive([header, file("x")]))


@pytest.mark.parametrize("packer", PACKERS)
def test_every_truncation_is_noticed(packer: str) -> None:
    data = PACKERS[packer](PLAIN)
    for length in range(0, len(data) - BLOCK if packer == "tar" else len(data), 97 if packer == "tar" else 1):
        with refused(SourceError, member="x.tar"):
            entries(data[:length])


def test_entries_that_are_left_are_closed_without_joining_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may close them where the thread that it runs in holds a lock that a join takes."""
    joined: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout=None: joined.append(self))
    left = TarSource(iter([PLAIN[:BLOCK], PLAIN[BLOCK:]]), "x.tar").entries()
    next(left)
    del left
    assert joined == []


def test_closed_entries_read_no_more() -> None:
    read: list[str] = []
    asked, go_on = threading.Event(), threading.Event()

    def two() -> Iterator[bytes]:
        yield PLAIN
        asked.set()
        go_on.wait()
        read.append("ahead")

    entries = TarSource(two(), "x.tar").entries()
    next(entries)
    assert asked.wait(30)
    threading.Timer(0.05, go_on.set).start()
    entries.close()  # type: ignore[attr-defined]
    assert read == ["ahead"]


def test_the_announced_sum_and_size_must_hold() -> None:
    data = gzip.compress(PLAIN, mtime=0)
    digest = hashlib.sha256(data).hexdigest()
    assert len(entries(data, sha256=digest.upper(), size=len(data))) == 4
    with refused(SourceError, member="x.tar"):
        entries(data, sha256="0" * 64)
    with refused(SourceError, member="x.tar"):
        entries(data, size=len(data) + 1)
    with refused(SourceError, member="x.tar"):
        entries(data, size=len(data) - 1)
    with refused(SourceError, member="x.tar"):
        entries(data[:50], size=len(data))


def test_a_gzipped_archive_is_unpacked_without_the_faster_library_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    _inflating.cache_clear()
    assert paths(gzip.compress(PLAIN)) == paths(PLAIN)
    with refused(SourceError, member="x.tar"):
        entries(gzip.compress(PLAIN)[:-8] + bytes(8))
    _inflating.cache_clear()


@pytest.mark.parametrize("packer", ["gz", "xz", "zst"])
def test_archive_bombs_are_stopped(packer: str) -> None:
    bomb = PACKERS[packer](archive([file("zeros", bytes(8 << 20))]))
    limits = SourceLimits(ratio=100, ratio_from=1 << 20)
    with refused(SOURCE_LIMIT_EXCEEDED, member="x.tar"):
        entries(bomb, limits=limits)
    assert paths(bomb) == ["zeros"]


def test_long_runs_of_zeros_unpack_in_bounded_pieces() -> None:
    for packer in ("gz", "xz", "zst"):
        pieces = [len(piece) for piece in ArchiveBytes(iter([PACKERS[packer](bytes(40 << 20))]), "x")]
        assert sum(pieces) == 40 << 20
        assert max(pieces) <= 33 << 20


@given(st.lists(st.binary(max_size=20), max_size=10), st.lists(st.integers(0, 30), max_size=10))
def test_a_reader_gives_what_it_was_fed(fed: list[bytes], counts: list[int]) -> None:
    reader = Reader(iter(fed))
    whole, place = b"".join(fed), 0
    for turn, count in enumerate(counts):
        if turn % 3 == 2:
            assert reader.skip(count) == (place + count <= len(whole))
            place = min(place + count, len(whole))
            continue
        taken = reader.take(count) if turn % 3 else reader.some(count)
        assert whole[place:].startswith(taken)
        assert len(taken) == min(count, len(whole) - place) or not turn % 3
        place += len(taken)
