"""Sources of a tree on disk: a directory, or an artifact, recognized by its first bytes, never by its name.

Symbolic links of a directory are kept, never followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from include.cvmfs.errors import SourceError
from include.cvmfs.sources.archive import blocks_of
from include.cvmfs.sources.source import (
    Content,
    Entry,
    EntryKind,
    Opener,
    SourceLimits,
    TreeSource,
    checked_member,
    checked_target,
    printable,
    refused,
)
from include.cvmfs.sources.tarball import TarSource
from include.cvmfs.sources.zipmembers import MAGIC, ZipSource

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFLNK: EntryKind.SYMLINK,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
    stat.S_IFCHR: EntryKind.CHARACTER_DEVICE,
    stat.S_IFBLK: EntryKind.BLOCK_DEVICE,
}


class DirectorySource:
    """The tree below ``path``, in name order. A file that changes while it is read is refused."""

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        self._root = os.fsencode(path)
        self.name = name or os.fspath(path)

    @property
    def sha256(self) -> str | None:
        return None

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        first_names: dict[tuple[int, int], str] = {}
        with self._opened("") as root:
            yield self._entry("", b".", root, self._stat(b".", root, ""), first_names), None
        waiting = [""]
        while waiting:
            above = waiting.pop()
            below = []
            with self._opened(above) as folder:
                for name in self._names(folder, above):
                    path = checked_member(above.encode() + b"/" + name if above else name, self.name)
                    entry = self._entry(path, name, folder, self._stat(name, folder, path), first_names)
                    yield entry, partial(self._open, name, folder, entry) if entry.kind is EntryKind.FILE else None
                    if entry.kind is EntryKind.DIRECTORY:
                        below.append(path)
            waiting += reversed(below)

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        above, _, name = entry.path.rpartition("/")
        with self._opened(above) as folder:
            place = b"/proc/self/fd/%d/%s" % (folder, name.encode() or b".")  # these calls take no directory
            try:
                names = [os.fsencode(name) for name in os.listxattr(place, follow_symlinks=False)]
                return {
                    name: os.getxattr(place, name, follow_symlinks=False)
                    for name in names
                    if name.startswith(namespaces)
                }
            except OSError as fault:
                if fault.errno in (errno.ENOTSUP, errno.ENOSYS):  # a file system without any
                    return {}
                raise _unreadable(self.name, entry.path, fault) from fault

    def outline(self, *, sizes: bool) -> Iterator[tuple[str, int]]:
        waiting = [""]
        while waiting:
            above = waiting.pop()
            try:
                with self._opened(above) as folder, os.scandir(folder) as children:
                    for entry in children:
                        path = f"{above}/{entry.name}" if above else entry.name
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(path)
                            yield path, 0
                        else:
                            whole = sizes and entry.is_file(follow_symlinks=False)
                            yield path, entry.stat(follow_symlinks=False).st_size if whole else 0
            except OSError as fault:
                raise _unreadable(self.name, above, fault) from fault

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """A directory of the tree, component by component: one that was replaced by a link must not lead elsewhere."""
        try:
            handle = os.open(self._root, _DIRECTORY)
        except NotADirectoryError:
            raise SourceError(printable(self.name), "is not a directory; give a directory or an archive") from None
        except OSError as fault:
            raise _unreadable(self.name, "", fault) from fault
        try:
            for name in os.fsencode(path).split(b"/") if path else ():
                try:
                    inner = os.open(name, _DIRECTORY, dir_fd=handle)
                except NotADirectoryError:
                    problem = "is no directory any more; wait until the tree does not change, then try again"
                    raise refused(self.name, path, problem) from None
                except OSError as fault:
                    raise _unreadable(self.name, path, fault) from fault
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    def _names(self, folder: int, path: str) -> list[bytes]:
        try:
            return sorted(map(os.fsencode, os.listdir(folder)))
        except OSError as fault:
            raise _unreadable(self.name, path, fault) from fault

    def _stat(self, name: bytes, folder: int, path: str) -> os.stat_result:
        try:
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as fault:
            raise _unreadable(self.name, path, fault) from fault

    def _entry(
        self, path: str, name: bytes, folder: int, status: os.stat_result, first_names: dict[tuple[int, int], str]
    ) -> Entry:
        kind = _KINDS[stat.S_IFMT(status.st_mode)]
        symlink = hardlink_to = ""
        if kind is EntryKind.SYMLINK:
            symlink = checked_target(self._link_at(name, folder, path), path, self.name)
        elif kind is EntryKind.FILE and status.st_nlink > 1:
            first = first_names.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                kind, hardlink_to = EntryKind.HARDLINK, first
        seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
        return Entry(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(status.st_mode),
            mtime=seconds,
            uid=status.st_uid,
            gid=status.st_gid,
            size=status.st_size if kind is EntryKind.FILE else 0,
            symlink=symlink,
            hardlink_to=hardlink_to,
            device=status.st_rdev,
            mtime_ns=nanoseconds,
        )

    def _open(self, name: bytes, folder: int, entry: Entry) -> Content:
        try:
            # A file that was replaced by a link since it was listed must not lead elsewhere; a fifo must not block.
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as fault:
            raise _unreadable(self.name, entry.path, fault) from fault
        return _File(handle, entry, self.name)

    def _link_at(self, name: bytes, folder: int, path: str) -> bytes:
        try:
            return os.readlink(name, dir_fd=folder)
        except OSError as fault:
            raise _unreadable(self.name, path, fault) from fault


class _File:
    """A file without the costs of a buffer; most files are read at one go."""

    def __init__(self, handle: int, entry: Entry, source: str) -> None:
        self._handle = handle
        self._entry = entry
        self._source = source

    def read(self, size: int = -1, /) -> bytes:
        try:
            if size >= 0:
                return os.read(self._handle, size)
            # One byte more than there should be: if it does not come, this was the end.
            data = os.read(self._handle, self._entry.size + 1)
            if len(data) != self._entry.size:
                while more := os.read(self._handle, 1 << 20):
                    data += more
            return data
        except OSError as fault:
            raise _unreadable(self._source, self._entry.path, fault) from fault

    def close(self) -> None:
        os.close(self._handle)


def _unreadable(source: str, path: str, fault: OSError) -> SourceError:
    return refused(source, path or source, f"cannot be read ({fault.strerror}); make it readable and try again")


_MAGIC_BYTES = max(len(magic) for magic in MAGIC)


def open_artifact(
    stream: BinaryIO | Iterable[bytes],
    name: str,
    *,
    sha256: str | None = None,
    size: int | None = None,
    limits: SourceLimits | None = None,
) -> TreeSource:
    """A tar archive (plain, .gz, .xz, .zst) or a zip. Reads the first block at once; parameters as in ``TarSource``."""
    blocks = blocks_of(stream)
    first = b""
    for block in blocks:
        first += block
        if len(first) >= _MAGIC_BYTES:
            break
    whole: Iterator[bytes] = chain((first,), blocks) if first else iter(())
    kind = ZipSource if first.startswith(MAGIC) else TarSource
    return kind(whole, name, sha256=sha256, size=size, limits=limits)


def open_path(path: Path, *, sha256: str | None = None, limits: SourceLimits | None = None) -> TreeSource:
    """A folder or an archive of this machine. ``sha256``: what the archive's must be; a folder has none.

    Raises SourceError for what is not there or cannot be read.
    """
    if path.is_dir():
        if sha256 is not None:
            raise SourceError(printable(str(path)), "is a folder and has no SHA-256; give an archive, or no sum")
        return DirectorySource(path)
    try:
        return open_artifact(_content(path), path.name, sha256=sha256, size=path.stat().st_size, limits=limits)
    except OSError as fault:
        raise SourceError(printable(str(path)), f"{fault.strerror}; give a folder or an archive") from None


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from blocks_of(file)
