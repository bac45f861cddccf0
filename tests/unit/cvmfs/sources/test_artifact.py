"""A directory on disk is read as it is: links are not followed, and what changes meanwhile is refused."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.cvmfs.errors import SourceError
from include.cvmfs.ingest.prepare import prepare
from include.cvmfs.sources.artifact import DirectorySource
from include.cvmfs.sources.source import Entry, EntryKind
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

NOW = datetime(2026, 7, 1, tzinfo=UTC)


def entries(path: Path) -> dict[str, tuple[Entry, bytes | None]]:
    found: dict[str, tuple[Entry, bytes | None]] = {}
    for entry, opener in DirectorySource(path).entries():
        content = opener() if opener else None
        found[entry.path] = entry, content.read() if content else None
        if content:
            content.close()
    return found


def test_everything_in_the_tree_is_found_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "f").write_bytes(b"content")
    (tmp_path / "a" / "b" / "f").chmod(0o640)
    os.utime(tmp_path / "a" / "b" / "f", (5, 1234.9))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "l").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(".")
    found = entries(tmp_path)
    assert sorted(found) == ["", "a", "a/b", "a/b/f", "empty", "l", "loop"]
    entry, data = found["a/b/f"]
    assert (entry.kind, entry.mode, entry.mtime, entry.size, data) == (EntryKind.FILE, 0o640, 1234, 7, b"content")
    assert (found["l"][0].kind, found["l"][0].symlink) == (EntryKind.SYMLINK, "/etc/passwd")
    assert found["empty"][1] == b""


def test_names_of_one_file_are_hard_links(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"1")
    os.link(tmp_path / "b", tmp_path / "a")
    found = entries(tmp_path)
    assert found["a"][0].kind is EntryKind.FILE
    assert (found["b"][0].kind, found["b"][0].hardlink_to) == (EntryKind.HARDLINK, "a")


def test_special_files_have_their_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    os.mkfifo(tmp_path / "pipe")
    with suppress(PermissionError):  # root's alone
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        found = entries(tmp_path)
    assert found["pipe"][0].kind is EntryKind.FIFO
    assert found["sock"][0].kind is EntryKind.SOCKET
    if "null" in found:
        assert (found["null"][0].kind, found["null"][0].device) == (EntryKind.CHARACTER_DEVICE, os.makedev(1, 3))


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).touch()
    with refused(SourceError, member=r"caf\xe9"):
        entries(tmp_path)


@pytest.mark.parametrize("name", ["absent", "file"])
def test_a_source_that_is_no_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with refused(SourceError, member=str(tmp_path / name)):
        entries(tmp_path / name)


def test_a_file_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "f").write_bytes(b"")
    for entry, opener in DirectorySource(tree).entries():
        if entry.path == "f":
            (tree / "f").unlink()
            (tree / "f").symlink_to(tmp_path / "secret")
            assert opener is not None
            with refused(SourceError, member="f"):
                opener()


@pytest.fixture
def swapped(tmp_path: Path) -> tuple[Path, Callable[[], None]]:
    """A tree with ``a/sub/secret``, and what puts a link to a folder elsewhere in the place of ``a/sub``."""
    tree = tmp_path / "tree"
    (tree / "a/sub/below").mkdir(parents=True)
    (tree / "a/sub/secret").write_bytes(b"public")
    (tmp_path / "elsewhere/below").mkdir(parents=True)
    (tmp_path / "elsewhere/secret").write_bytes(b"s3cr3t")
    os.setxattr(tmp_path / "elsewhere/secret", "user.key", b"s3cr3t")

    def swap() -> None:
        (tree / "a/sub").rename(tmp_path / "away")
        (tree / "a/sub").symlink_to(tmp_path / "elsewhere")

    return tree, swap


@pytest.mark.parametrize("above", [False, True], ids=["itself", "one above it"])
def test_a_directory_that_became_a_link_is_not_followed(
    swapped: tuple[Path, Callable[[], None]], tmp_path: Path, above: bool
) -> None:
    tree, swap = swapped
    walk = DirectorySource(tree).entries()
    assert [next(walk)[0].path for _ in range(3)] == ["", "a", "a/sub"]
    if above:
        (tree / "a").rename(tmp_path / "away")
        (tmp_path / "elsewhere/sub").mkdir()
        (tree / "a").symlink_to(tmp_path / "elsewhere")
    else:
        swap()
    with refused(SourceError, member="a/sub"):
        next(walk)


def test_an_open_directory_is_read_whatever_replaces_it(swapped: tuple[Path, Callable[[], None]]) -> None:
    tree, swap = swapped
    source = DirectorySource(tree)
    for entry, opener in source.entries():
        if entry.path == "a/sub/secret":
            swap()
            assert opener is not None
            content = opener()
            assert content.read() == b"public"
            content.close()
            with refused(SourceError, member="a/sub"):
                source.xattrs(entry, (b"user.",))
            break


def test_a_survey_does_not_count_what_a_link_leads_to(swapped: tuple[Path, Callable[[], None]]) -> None:
    tree, swap = swapped
    outline = DirectorySource(tree).outline(sizes=True)
    assert next(outline) == ("a", 0)
    assert next(outline) == ("a/sub", 0)
    swap()
    with refused(SourceError, member="a/sub"):
        list(outline)


def test_no_handle_is_left_behind(swapped: tuple[Path, Callable[[], None]]) -> None:
    tree, _ = swapped
    before = len(list(Path("/proc/self/fd").iterdir()))
    entries(tree)
    walk = DirectorySource(tree).entries()
    while next(walk)[0].path != "a/sub/secret":
        pass
    walk.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("size", [10, 100_000, 6_000_000])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_that_changes_its_size_while_it_is_read_is_refused(tmp_path: Path, size: int, change: int) -> None:
    (tmp_path / "f").write_bytes(bytes(size))

    class Changing(DirectorySource):
        def entries(self):  # type: ignore[no-untyped-def]
            for entry, opener in super().entries():
                if entry.path == "f":
                    os.truncate(tmp_path / "f", size + change)
                yield entry, opener

    with refused(SourceError, member="f"):
        prepare(Changing(tmp_path), store=MemoryStore(), fqrn="r", destination="/x", now=NOW)
