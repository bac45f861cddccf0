"""Special files, nanoseconds and external files come into catalogs as they were asked for, and are counted."""

from __future__ import annotations

import contextlib
import io
import os
import random
import stat
import tarfile
from pathlib import Path

import pytest

from include.cvmfs.errors import SourceError
from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.schema import Counts
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions
from include.cvmfs.ingest.spool import Specials
from include.cvmfs.sources.directory import DirectorySource
from include.cvmfs.sources.source import Entry, EntryKind
from include.cvmfs.sources.tarball import TarSource
from tests.fakes.archives import Member, archive, packed
from tests.fakes.refused import refused
from tests.fakes.trees import a_file, a_folder, a_hard_link, prepared

CHUNKS = ChunkLimits(1 << 16, 1 << 17, 1 << 18)
KEPT = PrepareOptions(specials=Specials.KEEP)


def a_special(path: str, kind: EntryKind = EntryKind.FIFO, device: int = 0) -> tuple[Entry, None]:
    return Entry(path, kind, 0o640, 1000, device=device), None


def test_special_files_are_kept_with_their_numbers() -> None:
    number = os.makedev(8, 1)
    changeset, found, _ = prepared(
        [
            a_special("pipe"),
            a_special("socket", EntryKind.SOCKET),
            a_special("tty", EntryKind.CHARACTER_DEVICE, os.makedev(5, 0)),
            a_special("d/disk", EntryKind.BLOCK_DEVICE, number),
            a_hard_link("also", "pipe"),
        ],
        KEPT,
    )
    disk = found["/d/disk"].entry
    assert (disk.mode, disk.size, disk.flags, disk.linkcount) == (stat.S_IFBLK | 0o640, number, 20, 1)
    assert (found["/pipe"].entry.mode, found["/pipe"].entry.size) == (stat.S_IFIFO | 0o640, 0)
    assert (found["/also"].entry.mode, found["/also"].entry.linkcount) == (stat.S_IFIFO | 0o640, 1)
    assert changeset.statistics.total == Counts(regular=1, special=5, dir=2)


def test_special_files_can_be_left_out() -> None:
    members = [a_special("pipe"), a_hard_link("also", "pipe"), a_file("f", b"1")]
    changeset, found, _ = prepared(members, PrepareOptions(specials=Specials.SKIP))
    assert sorted(found) == ["", "/.cvmfscatalog", "/f"]
    assert changeset.notes == ("2 special files left out",)


def test_special_files_are_refused_unless_they_are_asked_for() -> None:
    with refused(SourceError, member="pipe"):
        prepared([a_special("pipe")], PrepareOptions())


def test_device_numbers_that_cannot_be_are_refused() -> None:
    data = archive([Member(b"dev", type=b"3", device=(1 << 13, 0))])
    with refused(SourceError, member="dev"):
        prepared(data, KEPT)


def test_special_files_are_the_same_from_a_directory_and_its_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.link(tmp_path / "pipe", tmp_path / "second")
    with contextlib.suppress(PermissionError):  # only root may; the pipe is there
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for path in (*tmp_path.iterdir(), tmp_path):
        os.utime(path, (5, 5))
    from_disk, found, _ = prepared(DirectorySource(tmp_path), KEPT)
    assert prepared(packed(tmp_path), KEPT)[0].root == from_disk.root
    if "/null" in found:
        assert found["/null"].entry.size == os.makedev(1, 3)


def test_nanoseconds_are_kept_if_this_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    (tmp_path / "l").symlink_to("f")
    os.utime(tmp_path / "f", ns=(1, 7_000_000_009))
    os.utime(tmp_path / "l", ns=(1, -1), follow_symlinks=False)
    os.utime(tmp_path, ns=(1, 8_500_000_000))
    changeset, found, _ = prepared(DirectorySource(tmp_path), PrepareOptions(layout=Layout.MTIME_NS, mtime_ns=True))
    times = {path: (one.entry.mtime, one.entry.mtime_ns) for path, one in found.items()}
    assert times == {"": (8, 500_000_000), "/f": (7, 9), "/l": (-1, 999_999_999), "/.cvmfscatalog": (8, 0)}
    assert changeset.root_entry.mtime_ns == 500_000_000
    _, found, _ = prepared(DirectorySource(tmp_path), PrepareOptions())
    assert {one.entry.mtime_ns for one in found.values()} == {None}
    _, found, _ = prepared(DirectorySource(tmp_path), PrepareOptions(layout=Layout.MTIME_NS, mtime_ns=True, mtime=77))
    assert {(one.entry.mtime, one.entry.mtime_ns) for one in found.values()} == {(77, 0)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", (12, 0)), ("12.5", (12, 500_000_000)), ("12.0000000019", (12, 1)), ("-1.25", (-2, 750_000_000)),
        ("-1.0", (-1, 0)), ("-0.5", (-1, 500_000_000)), ("-0.0000000001", (-1, 999_999_999)),
        ("-3.9999999999", (-4, 0)),
    ],
)  # fmt: skip
def test_fractions_of_seconds_in_archives(text: str, expected: tuple[int, int]) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("f")
        member.pax_headers = {"mtime": text}
        tar.addfile(member)
    [(entry, _)] = list(TarSource(iter([out.getvalue()]), "x.tar").entries())
    assert (entry.mtime, entry.mtime_ns) == expected


def test_external_files_are_listed_but_not_stored() -> None:
    big = random.Random(1).randbytes(700_000)
    members = [
        a_folder("d"),
        a_file("d/.cvmfscatalog"),
        a_file("d/small", b"content"),
        a_hard_link("d/other", "d/small"),
        a_file("big", big),
        a_file("empty"),
    ]
    changeset, found, store = prepared(members, PrepareOptions(external=True, chunking=CHUNKS))
    small, large = found["/d/small"].entry, found["/big"]
    assert (small.external, small.compression, small.size) == (True, Compression.NONE, 7)
    assert small.hash == hash_bytes(b"content")
    assert found["/d/other"].entry.changed(name="small") == small
    assert large.entry.external
    assert [one.hash.digest for one in large.chunks] == [
        hash_bytes(big[one.offset : one.offset + one.size]).digest for one in large.chunks
    ]
    assert sum(one.size for one in large.chunks) == len(big)
    total = changeset.statistics.total
    assert (total.regular, total.external) == (6, 4)
    assert (total.external_file_size, total.file_size) == (len(big) + 14, len(big) + 14)
    assert not found["/d/.cvmfscatalog"].entry.external
    # Nothing but the markers' empty file and two catalogs.
    assert len(store.objects) == 3
    assert changeset.root == prepared(members, PrepareOptions(external=True, chunking=CHUNKS))[0].root


def test_a_marker_that_is_an_external_file_by_another_name_is_refused() -> None:
    with refused(SourceError, member="d/.cvmfscatalog"):
        prepared([a_file("f"), a_hard_link("d/.cvmfscatalog", "f")], PrepareOptions(external=True))
