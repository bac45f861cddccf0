"""A shared cache as a folder: its marks, its layout, its group, its file system.

Several machines work in one cache at once and share nothing else. Times are compared by the clock of the file system,
never by that of a machine.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from include.aliencache import errors
from include.aliencache.names import (
    BREADCRUMB,
    DIRTAB,
    OWN,
    QUARANTINE,
    SHARDS,
    TXN,
    Breadcrumb,
    is_ours_in_root,
    place_of,
)
from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import ObjectHash
from include.settings.caches import UseOfObjects

FOLDER_MODE, OBJECT_MODE = 0o2770, 0o660
CLAIMS, SUMS, STAGED, CLOCK = f"{OWN}/claims", f"{OWN}/sums", f"{OWN}/catalogs", f"{OWN}/clock"
_MOUNTED = "lost+found"
"""The folder of a new file system of its own."""
_MARKS = (".cvmfscache", OWN)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes and inodes of a file system, as those who are not root may use them. `inodes` None: it counts none."""

    bytes_free: int
    bytes_total: int
    inodes_free: int | None


@dataclass(frozen=True, slots=True)
class CacheFaults:
    """Faults of a cache's folders, each a path below the root: those that are missing, and those of other groups."""

    missing: tuple[str, ...]
    other_group: tuple[str, ...]
    foreign: tuple[str, ...]


class AlienCache:
    """A shared cache at `path`, for the members of `group` (name or number; None: the group that the folder has)."""

    def __init__(self, path: Path, group: str | None = None) -> None:
        self.path = path
        self._group = group

    def __str__(self) -> str:
        return str(self.path)

    # -- what it is

    def require(self) -> None:
        """Raises CacheError unless the folder is there and a client, `cvmfs_preload` or `init` has marked it."""
        try:
            names = [path.name for path in self.path.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            raise errors.NOT_A_CACHE(self.path, "no such folder") from None
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault
        if not any(map(_is_mark, names)):
            raise errors.NOT_A_CACHE(self.path, "the folder has no mark of a cache (.cvmfscache or a breadcrumb)")

    def initialise(self) -> bool:
        """Make a cache of an empty folder, or what is missing of one; False if nothing was missing.

        Raises CacheError for a folder that holds something else, and outside the group.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = {path.name for path in self.path.iterdir()} - {_MOUNTED}
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault
        if names and not any(_is_mark(name) for name in names):
            raise errors.IN_THE_WAY(self.path, "the folder is not empty, and has no mark of a cache")
        self.require_member()
        if not names:
            self._give(self.path)
        return self.complete()

    def complete(self) -> bool:
        """Make the folders that are missing; False if none was."""
        made = False
        for name in (*SHARDS, TXN, QUARANTINE, OWN, CLAIMS, SUMS, STAGED):
            made |= self._make_folder(self.path / name)
        with contextlib.suppress(OSError):
            os.close(os.open(self.path / CLOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OBJECT_MODE))
            (self.path / CLOCK).chmod(OBJECT_MODE)
        return made

    def layout(self) -> CacheFaults:
        """Faults of the folders."""
        missing, other, foreign = [], [], []
        try:
            present = {entry.name: entry for entry in os.scandir(self.path) if entry.name != _MOUNTED}
            root = self.path.stat()
            if root.st_gid != self.gid or root.st_mode & 0o070 != 0o070:
                other.append(".")
            for name in (*SHARDS, TXN, QUARANTINE):
                entry = present.get(name)
                if entry is None or not entry.is_dir(follow_symlinks=False):
                    missing.append(name)
                elif entry.stat(follow_symlinks=False).st_gid != self.gid:
                    other.append(name)
            foreign = sorted(name for name in present if not is_ours_in_root(name))
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault
        return CacheFaults(tuple(missing), tuple(other), tuple(foreign))

    def _make_folder(self, folder: Path) -> bool:
        try:
            folder.mkdir()
        except FileExistsError:
            return False
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault
        self._give(folder)
        return True

    def _give(self, folder: Path) -> None:
        """Let the group enter a folder, and have what comes into it."""
        with contextlib.suppress(PermissionError):
            os.chown(folder, -1, self.gid)
        with contextlib.suppress(PermissionError):
            folder.chmod(FOLDER_MODE)

    # -- its group

    @cached_property
    def gid(self) -> int:
        """The number of the group."""
        if self._group is None:
            return self.path.stat().st_gid
        if self._group.isdecimal() and int(self._group) < 1 << 32:
            return int(self._group)
        try:
            return grp.getgrnam(self._group).gr_gid
        except KeyError:
            raise errors.OUTSIDE_GROUP(self.path, f"this machine has no group {self._group!r}") from None

    def require_member(self) -> None:
        """Raises CacheError for a process whose files the clients could not read."""
        if os.geteuid() != 0 and self.gid not in (os.getegid(), *os.getgroups()):
            raise errors.OUTSIDE_GROUP(self.path, f"uid {os.geteuid()} is not in the group {self.gid} of the cache")

    def is_readable(self, status: os.stat_result) -> bool:
        """Tell whether members of the group may read a file; what they may not read, they fetch again."""
        return bool(status.st_mode & (stat.S_IRGRP if status.st_gid == self.gid else stat.S_IROTH))

    # -- its file system

    def space(self) -> Space:
        """Free and total bytes and inodes. Raises CacheError."""
        status = self._file_system()
        inodes = status.f_favail if status.f_files else None
        return Space(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize, inodes)

    def _file_system(self) -> os.statvfs_result:
        try:
            return os.statvfs(self.path)
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault

    def now(self) -> float:
        """Unix s by the clock of the file system. Raises CacheError where nothing can be written."""
        return self._clock_offset + time.monotonic()

    @cached_property
    def _clock_offset(self) -> float:
        monotonic = time.monotonic()
        try:
            os.utime(self.path / CLOCK)
            return (self.path / CLOCK).stat().st_mtime - monotonic
        except OSError:
            pass  # a client made the cache, or another user the file
        probe = self.path / TXN / f"fetch{secrets.token_hex(8)}"
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            written = probe.stat().st_mtime
            probe.unlink()
        except OSError as fault:
            if fault.errno in errors.FULL or fault.errno == errno.ENOENT:
                return time.time() - monotonic  # a full cache is trimmed all the same
            raise errors.refused(self.path, fault) from fault
        return written - monotonic

    def use_known_by(self, setting: UseOfObjects) -> UseOfObjects:
        """The way in which the last use of an object is known. Raises CacheError where the mount does not tell.

        That of this mount: on the server of an NFS export, the server's mount decides.
        """
        flags = self._file_system().f_flag
        if flags & os.ST_RDONLY:
            raise errors.CACHE_READ_ONLY(self.path, "it is mounted read-only")
        if setting in (UseOfObjects.RECORD, UseOfObjects.AGE):
            return setting
        if flags & os.ST_NOATIME:
            raise errors.USE_UNKNOWN(self.path, "it is mounted with noatime: the time of the last use is not known")
        if setting is UseOfObjects.AUTO:
            return UseOfObjects.RELATIME if flags & os.ST_RELATIME else UseOfObjects.ATIME
        return setting

    # -- what its clients mount with

    def breadcrumbs(self) -> dict[str, Breadcrumb | None]:
        """The breadcrumb of each repository, by its name; None: it cannot be read."""
        crumbs: dict[str, Breadcrumb | None] = {}
        for file in sorted(self.path.glob(f"{BREADCRUMB}*")):
            try:
                crumbs[file.name.removeprefix(BREADCRUMB)] = Breadcrumb.parse(file.read_text("ascii"))
            except (OSError, UnicodeDecodeError, FormatError):
                crumbs[file.name.removeprefix(BREADCRUMB)] = None
        return crumbs

    def preloaded(self) -> list[str]:
        """The repositories that `cvmfs_preload` fills it with."""
        return sorted(file.name.removeprefix(DIRTAB) for file in self.path.glob(f"{DIRTAB}*"))

    def leave_breadcrumb(self, fqrn: str, newer: Breadcrumb) -> bool:
        """Write a breadcrumb if the one there is older; False where it stays. One that cannot be read stays."""
        place = self.path / f"{BREADCRUMB}{fqrn}"
        if place.exists():
            present = self.breadcrumbs().get(fqrn)
            if present is None or present.timestamp >= newer.timestamp:
                return False
        with self.writing() as (file, temporary):
            file.write(str(newer).encode())
            file.finish()
            present = self.breadcrumbs().get(fqrn)  # again: to flush takes its time
            if present is not None and present.timestamp >= newer.timestamp:
                return False
            temporary.replace(place)
        self.flush_folder(self.path)
        return True

    # -- objects

    def open(self, name: ObjectHash) -> int:
        """A descriptor of a cached object; a link is not followed. Raises OSError."""
        return os.open(self.path / place_of(name), _READ)

    def status(self, name: ObjectHash) -> os.stat_result | None:
        """The state of an object's file; None: it is not in the cache."""
        try:
            return (self.path / place_of(name)).lstat()
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault

    def remove(self, name: ObjectHash) -> None:
        """Take an object away; clients that have it open go on reading it. Raises CacheError."""
        self.remove_file(place_of(name))

    def remove_file(self, name: str) -> None:
        """Take a file away, by its path below the root. Raises CacheError."""
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault

    def condemn(self, name: ObjectHash) -> None:
        """Move an object into the folder for damaged ones, from which clients read nothing. Raises CacheError."""
        self._make_folder(self.path / QUARANTINE)
        try:
            (self.path / place_of(name)).rename(self.path / QUARANTINE / str(name))
        except FileNotFoundError:
            return  # another one took it away
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault

    @contextlib.contextmanager
    def writing(self) -> Iterator[tuple[_Temporary, Path]]:
        """A temporary file, as clients name theirs; it is gone at the end unless it was moved. Raises CacheError."""
        path = self.path / TXN / f"fetch{secrets.token_hex(8)}"
        try:
            file = _Temporary(path, self.gid)
            try:
                yield file, path
            finally:
                file.close()
                path.unlink(missing_ok=True)
        except OSError as fault:
            raise errors.refused(self.path, fault) from fault

    def place(self, temporary: Path, name: ObjectHash, *, replaces: bool = False) -> None:
        """Give a file that is whole and on the disk the name of its object. Raises OSError.

        `replaces`: what is there is known to be damaged.
        """
        place = self.path / place_of(name)
        if replaces or not self._is_nfs:
            temporary.replace(place)
            return
        try:
            place.hardlink_to(temporary)  # as clients do there: a rename over an open file makes stale handles
        except FileExistsError:
            present = place.stat()
            if present.st_size != temporary.stat().st_size or not self.is_readable(present):
                temporary.replace(place)

    @cached_property
    def _is_nfs(self) -> bool:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
        device = self.path.stat().st_dev
        mine = f"{os.major(device)}:{os.minor(device)}"
        kinds = {line.split(" - ")[1].split()[0] for line in mounts if line.split()[2] == mine and " - " in line}
        return any(kind.startswith("nfs") for kind in kinds)

    def flush_folder(self, folder: Path) -> None:
        """Have the names in a folder on the disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_mark(name: str) -> bool:
    return name in _MARKS or name.startswith(BREADCRUMB)


class _Temporary:
    """A file that is being written, for its owner alone until it is whole."""

    def __init__(self, path: Path, gid: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if os.fstat(self._descriptor).st_gid != gid:
            with contextlib.suppress(PermissionError):
                os.fchown(self._descriptor, -1, gid)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def finish(self) -> None:
        """Have it on the disk, and readable for the group."""
        os.fsync(self._descriptor)
        os.fchmod(self._descriptor, OBJECT_MODE)

    def close(self) -> None:
        os.close(self._descriptor)
