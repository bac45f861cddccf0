"""A directory on disk as a source of a tree. Symbolic links are kept, never followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from include.cvmfs.errors import SourceError
from include.cvmfs.source import Content, Entry, Kind, Opener, checked_path, checked_target, printable, refused

_KINDS = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.SYMLINK,
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFSOCK: Kind.SOCKET,
    stat.S_IFCHR: Kind.CHARACTER_DEVICE,
    stat.S_IFBLK: Kind.BLOCK_DEVICE,
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
        seen: dict[tuple[int, int], str] = {}
        yield self._entry("", self._root, self._stat(self._root), seen), None
        waiting = [("", self._root)]
        while waiting:
            above, folder = waiting.pop()
            below = []
            for name in self._names(folder, above):
                place = folder + b"/" + name
                path = checked_path(above.encode() + b"/" + name if above else name, self.name)
                entry = self._entry(path, place, self._stat(place), seen)
                yield entry, partial(self._open, place, entry) if entry.kind is Kind.FILE else None
                if entry.kind is Kind.DIRECTORY:
                    below.append((path, place))
            waiting += reversed(below)

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:
        place = self._root + b"/" + entry.path.encode() if entry.path else self._root
        try:
            names = [os.fsencode(name) for name in os.listxattr(place, follow_symlinks=False)]
            return {
                name: os.getxattr(place, name, follow_symlinks=False) for name in names if name.startswith(namespaces)
            }
        except OSError as fault:
            if fault.errno in (errno.ENOTSUP, errno.ENOSYS):  # a file system without any
                return {}
            raise _unreadable(self.name, entry.path, fault) from fault

    def outline(self, *, sizes: bool) -> Iterator[tuple[str, int]]:
        waiting = [("", self._root)]
        while waiting:
            above, folder = waiting.pop()
            try:
                with os.scandir(folder) as found:
                    for one in found:
                        name = os.fsdecode(one.name)
                        path = f"{above}/{name}" if above else name
                        if one.is_dir(follow_symlinks=False):
                            waiting.append((path, one.path))
                            yield path, 0
                        else:
                            whole = sizes and one.is_file(follow_symlinks=False)
                            yield path, one.stat(follow_symlinks=False).st_size if whole else 0
            except OSError as fault:
                raise _unreadable(self.name, above, fault) from fault

    def _names(self, folder: bytes, path: str) -> list[bytes]:
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - names as bytes
        except OSError as fault:
            raise _unreadable(self.name, path, fault) from fault

    def _stat(self, place: bytes) -> os.stat_result:
        try:
            found = os.lstat(place)
        except OSError as fault:
            raise _unreadable(self.name, os.fsdecode(place), fault) from fault
        if place == self._root and not stat.S_ISDIR(found.st_mode):
            raise SourceError(printable(self.name), "is not a directory; give a directory or an archive")
        return found

    def _entry(self, path: str, place: bytes, found: os.stat_result, seen: dict[tuple[int, int], str]) -> Entry:
        kind = _KINDS[stat.S_IFMT(found.st_mode)]
        symlink = hardlink_to = ""
        if kind is Kind.SYMLINK:
            symlink = checked_target(self._link_at(place, path), path, self.name)
        elif kind is Kind.FILE and found.st_nlink > 1:
            first = seen.setdefault((found.st_dev, found.st_ino), path)
            if first != path:
                kind, hardlink_to = Kind.HARDLINK, first
        seconds, nanoseconds = divmod(found.st_mtime_ns, 1_000_000_000)
        return Entry(
            path=path,
            kind=kind,
            mode=stat.S_IMODE(found.st_mode),
            mtime=seconds,
            uid=found.st_uid,
            gid=found.st_gid,
            size=found.st_size if kind is Kind.FILE else 0,
            symlink=symlink,
            hardlink_to=hardlink_to,
            device=found.st_rdev,
            mtime_ns=nanoseconds,
        )

    def _open(self, place: bytes, entry: Entry) -> Content:
        try:
            # A file that was replaced by a link since it was listed must not lead elsewhere; a fifo must not block.
            handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as fault:
            raise _unreadable(self.name, entry.path, fault) from fault
        return _File(handle, entry, self.name)

    def _link_at(self, place: bytes, path: str) -> bytes:
        try:
            return os.readlink(place)  # noqa: PTH115 - as bytes
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
