"""A member that an archive has twice is taken where that has one meaning, and refused by name where it has not."""

from __future__ import annotations

import random
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.errors import SourceError
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.source import TreeSource
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.zipmembers import ZipSource
from tests.fakes.archives import Member, archive, file, folder, hardlink, symlink
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused
from tests.fakes.zips import ZipMember, zip_archive

NOW = datetime(2026, 7, 1, tzinfo=UTC)
CHUNKED = random.Random(3).randbytes(1 << 20)
OPTIONS = PrepareOptions(chunking=ChunkLimits(1 << 16, 1 << 17, 1 << 18))


def prepared(source: TreeSource) -> Changeset:
    return prepare(source, store=MemoryStore(), fqrn="r", destination="/x", now=NOW, options=OPTIONS)


def of_tar(*members: Member) -> Changeset:
    return prepared(TarSource(iter([archive(members)]), "x.tar"))


@pytest.mark.parametrize(
    "again",
    [
        file("d/f", b"1"), hardlink("d/f", "d/f"), hardlink("d/./f", ".//d/f"), file("./d//f", b"1"), folder("d"),
        symlink("l", "f"), file("large", CHUNKED), hardlink("large", "large"), hardlink("g", "d/f"),
        hardlink("d/f", "g"),
    ],
    ids=lambda member: f"{member.type.decode()} {member.name.decode()}",
)  # fmt: skip
def test_a_member_again_that_is_the_same_changes_nothing(again: Member) -> None:
    members = (folder("d"), file("d/f", b"1"), symlink("l", "f"), file("large", CHUNKED), hardlink("g", "d/f"))
    once, twice = of_tar(*members), of_tar(*members, again, again)
    assert (twice.root, twice.files, twice.bytes) == (once.root, once.files, once.bytes)


def test_many_members_again_change_nothing() -> None:
    members = [file(f"d/{number}", b"%d" % number) for number in range(1200)]
    assert of_tar(*members, *members).root == of_tar(*members).root


@pytest.mark.parametrize(
    ("again", "difference"),
    [
        (file("f", b"2"), "content"),
        (file("f", b"12"), "size"),
        (file("f", b"1", mode=0o755), "kind or mode"),
        (file("f", b"1", mtime=5), "time"),
        (file("f", b"1", uid=5), "owner"),
        (folder("f"), "kind or mode"),
        (symlink("l", "g"), "target"),
        (file("large", CHUNKED[:-1] + bytes([CHUNKED[-1] ^ 1])), "content"),
        (hardlink("g", "f"), "time"),
    ],
)
def test_a_member_again_that_differs_is_refused_with_what_differs(again: Member, difference: str) -> None:
    first = [file("f", b"1"), symlink("l", "f"), file("large", CHUNKED), file("g", b"1", mtime=7)]
    name = again.name.decode()
    with refused(SourceError, member=name) as caught:
        of_tar(*first, again)
    assert re.search(f"is there twice, with another {difference};", str(caught.value))


def test_a_zip_may_name_a_directory_and_a_file_twice() -> None:
    members = [ZipMember(b"d/", mode=0o040755), ZipMember(b"d/f", b"1")]
    once, twice = (prepared(ZipSource(iter([zip_archive(parts)]), "x.zip")) for parts in (members, members * 2))
    assert once.root == twice.root


def test_the_list_of_a_folder_and_its_files_packed_by_tar_is_the_folder(tmp_path: Path) -> None:
    (tmp_path / "sw/x").mkdir(parents=True)
    (tmp_path / "sw/x/f").write_text("1")
    (tmp_path / "sw/x/g").hardlink_to(tmp_path / "sw/x/f")
    packed = tmp_path / "x.tar"
    for names in (["sw"], ["sw/x", "sw/x/f", "sw/x/g"], ["sw/."], ["sw//x/./f", "sw//x", "sw"]):
        subprocess.run(["tar", "-cf", packed, "-C", tmp_path, "-T", "-"], input="\n".join(names), text=True, check=True)
        with packed.open("rb") as stream:
            done = prepared(TarSource(stream, "x.tar"))
        assert (done.files, done.bytes) == (3, 2)  # with the marker of the destination


@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_a_graft_marker_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    name, data = ".cvmfsgraft-big", b"size=1234\nchecksum=da39a3ee5e6b4b0d3255bfef95601890afd80709\n"
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_bytes(data)
    sources: dict[str, TreeSource] = {
        "folder": DirectorySource(tmp_path),
        "tar": TarSource(iter([archive([file(f"d/{name}", data)])]), "x.tar"),
        "zip": ZipSource(iter([zip_archive([ZipMember(f"d/{name}".encode(), data)])]), "x.zip"),
    }
    with refused(SourceError, member=f"d/{name}") as caught:
        prepared(sources[kind])
    assert "graft marker" in str(caught.value)
