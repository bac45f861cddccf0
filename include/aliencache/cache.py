"""A shared cache as a folder: its marks, its layout, its group, its file system, and claims of those who work in it.

Several machines work in one cache at once and share nothing else. A claim is a file made atomically, whose holder
renews its time; who dies is followed. Times are compared by the clock of the file system, never by that of a machine.
"""

from __future__ import annotations

import contextlib
import grp
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType

from include.aliencache.errors import CACHE_READ_ONLY, NOT_A_CACHE, OUTSIDE_GROUP, USE_UNKNOWN, refused
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
CLAIMS, SUMS = f"{OWN}/claims", f"{OWN}/sums"
_MARKS = (".cvmfscache", OWN)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
STALE_S = 90.0
"""A claim that its holder has not renewed for so long may be taken; that of a process here that died, at once."""
_RENEW_EVERY = 6  # times within that


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes and inodes of a file system, as those who are not root may use them. `inodes` None: it counts none."""

    bytes_free: int
    bytes_total: int
    inodes_free: int | None
    inodes_total: int | None


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
            raise NOT_A_CACHE(self.path, "no such folder") from None
        except OSError as fault:
            raise refused(self.path, fault) from fault
        if not any(name in _MARKS or name.startswith(BREADCRUMB) for name in names):
            raise NOT_A_CACHE(self.path, "the folder has no mark of a cache (.cvmfscache or a breadcrumb)")

    def initialise(self) -> bool:
        """Make a cache of an empty folder, or what is missing of one; False if nothing was missing.

        Raises CacheError for a folder that holds something else, and outside the group.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            names = [path.name for path in self.path.iterdir()]
        except OSError as fault:
            raise refused(self.path, fault) from fault
        if names:
            self.require()
        self.require_member()
        return self.complete()

    def complete(self) -> bool:
        """Make the folders that are missing; False if none was."""
        made = False
        for name in (*SHARDS, TXN, QUARANTINE, OWN, CLAIMS, SUMS):
            made |= self._make_folder(self.path / name)
        return made

    def layout(self) -> CacheFaults:
        """Faults of the folders."""
        missing, other, foreign = [], [], []
        try:
            present = {entry.name: entry for entry in os.scandir(self.path)}
            for name in (*SHARDS, TXN, QUARANTINE):
                entry = present.get(name)
                if entry is None or not entry.is_dir(follow_symlinks=False):
                    missing.append(name)
                elif entry.stat(follow_symlinks=False).st_gid != self.gid:
                    other.append(name)
            foreign = sorted(name for name in present if not is_ours_in_root(name))
        except OSError as fault:
            raise refused(self.path, fault) from fault
        return CacheFaults(tuple(missing), tuple(other), tuple(foreign))

    def _make_folder(self, folder: Path) -> bool:
        try:
            folder.mkdir()
        except FileExistsError:
            return False
        except OSError as fault:
            raise refused(self.path, fault) from fault
        with contextlib.suppress(PermissionError):
            os.chown(folder, -1, self.gid)
        folder.chmod(FOLDER_MODE)
        return True

    # -- its group

    @cached_property
    def gid(self) -> int:
        """The number of the group."""
        if self._group is None:
            return self.path.stat().st_gid
        if self._group.isdecimal():
            return int(self._group)
        try:
            return grp.getgrnam(self._group).gr_gid
        except KeyError:
            raise OUTSIDE_GROUP(self.path, f"this machine has no group {self._group!r}") from None

    def require_member(self) -> None:
        """Raises CacheError for a process whose files the clients could not read."""
        if os.geteuid() != 0 and self.gid not in (os.getegid(), *os.getgroups()):
            raise OUTSIDE_GROUP(self.path, f"uid {os.geteuid()} is not in the group {self.gid} of the cache")

    def is_readable(self, status: os.stat_result) -> bool:
        """Tell whether members of the group may read a file; what they may not read, they fetch again."""
        return bool(status.st_mode & (stat.S_IRGRP if status.st_gid == self.gid else stat.S_IROTH))

    # -- its file system

    def space(self) -> Space:
        """Free and total bytes and inodes. Raises CacheError."""
        try:
            status = os.statvfs(self.path)
        except OSError as fault:
            raise refused(self.path, fault) from fault
        counts = status.f_files > 0
        return Space(
            status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize,
            status.f_favail if counts else None, status.f_files if counts else None,
        )  # fmt: skip

    def now(self) -> float:
        """Unix s by the clock of the file system. Raises CacheError where nothing can be written."""
        return self._clock_offset + time.monotonic()

    @cached_property
    def _clock_offset(self) -> float:
        self._make_folder(self.path / OWN)
        probe = self.path / OWN / f"clock.{secrets.token_hex(8)}"
        try:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, b"-")
                written = os.fstat(descriptor).st_mtime
            finally:
                os.close(descriptor)
                probe.unlink(missing_ok=True)
        except OSError as fault:
            raise refused(self.path, fault) from fault
        return written - time.monotonic()

    def use_known_by(self, setting: UseOfObjects) -> UseOfObjects:
        """The way in which the last use of an object is known. Raises CacheError where the mount does not tell.

        That of this mount: on the server of an NFS export, the server's mount decides.
        """
        flags = os.statvfs(self.path).f_flag
        if flags & os.ST_RDONLY:
            raise CACHE_READ_ONLY(self.path, "it is mounted read-only")
        if setting in (UseOfObjects.RECORD, UseOfObjects.AGE):
            return setting
        if flags & os.ST_NOATIME:
            raise USE_UNKNOWN(self.path, "it is mounted with noatime: the time of the last use is not known")
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
            temporary.replace(place)
        self.flush_folder(self.path)
        return True

    # -- objects

    def open(self, name: ObjectHash) -> int:
        """A descriptor of a cached object; a link is not followed. Raises OSError."""
        return os.open(self.path / place_of(name), _READ)

    def status(self, name: ObjectHash) -> os.stat_result | None:
        """The state of an object's file; None: there is none."""
        try:
            return (self.path / place_of(name)).lstat()
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise refused(self.path, fault) from fault

    def remove(self, name: ObjectHash) -> None:
        """Take an object away; clients that have it open go on reading it. Raises CacheError."""
        try:
            (self.path / place_of(name)).unlink(missing_ok=True)
        except OSError as fault:
            raise refused(self.path, fault) from fault

    def condemn(self, name: ObjectHash) -> None:
        """Move an object into the folder for damaged ones, from which clients read nothing. Raises CacheError."""
        try:
            (self.path / place_of(name)).rename(self.path / QUARANTINE / str(name))
        except FileNotFoundError:
            return
        except OSError as fault:
            raise refused(self.path, fault) from fault

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
            raise refused(self.path, fault) from fault

    def place(self, temporary: Path, name: ObjectHash) -> None:
        """Give a file that is whole and on the disk the name of its object. Raises OSError."""
        place = self.path / place_of(name)
        if not self._is_nfs:
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

    def claims(self, purpose: str, *, stale_s: float = STALE_S) -> Claims:
        """Claims of folders for a purpose, by this process."""
        return Claims(self, purpose, stale_s)


class _Temporary:
    """A file that is being written, for its owner alone until it is whole."""

    def __init__(self, path: Path, gid: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if os.fstat(self._descriptor).st_gid != gid:
            with contextlib.suppress(PermissionError):
                os.fchown(self._descriptor, -1, gid)
        self.size = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            self.size += written
            view = view[written:]

    def finish(self) -> None:
        """Have it on the disk, and readable for the group."""
        os.fsync(self._descriptor)
        os.fchmod(self._descriptor, OBJECT_MODE)

    def close(self) -> None:
        os.close(self._descriptor)


class Claims:
    """Claims that one process holds; a thread renews them. Use as a context: leaving it gives all back."""

    def __init__(self, cache: AlienCache, purpose: str, stale_s: float) -> None:
        self._cache = cache
        self._folder = cache.path / CLAIMS
        self._purpose = purpose
        self._stale_s = stale_s
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name=f"claims of {cache}")

    def __enter__(self) -> Claims:
        self._cache.complete()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        for shard in list(self._held):
            self.release(shard)

    def take(self, shard: str) -> bool:
        """Claim a folder; False: another process that lives has it. Raises CacheError."""
        place = self._place(shard)
        for _ in range(2):
            try:
                descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OBJECT_MODE)
            except FileExistsError:
                if not self._left_behind(place):
                    return False
                continue
            except OSError as fault:
                raise refused(self._cache.path, fault) from fault
            try:
                os.write(descriptor, _holder().encode())
            except OSError as fault:
                place.unlink(missing_ok=True)
                raise refused(self._cache.path, fault) from fault
            finally:
                os.close(descriptor)
            with self._lock:
                self._held.add(shard)
            return True
        return False

    def release(self, shard: str) -> None:
        """Give a claim back."""
        with self._lock:
            self._held.discard(shard)
        self._place(shard).unlink(missing_ok=True)

    def _place(self, shard: str) -> Path:
        return self._folder / f"{self._purpose}.{shard}"

    def _left_behind(self, place: Path) -> bool:
        """Take the claim of a process that died away; False if its holder lives, or another one was faster."""
        try:
            status = place.stat()
            holder = place.read_text("ascii", "replace")
        except FileNotFoundError:
            return True
        except OSError as fault:
            raise refused(self._cache.path, fault) from fault
        if not _died(holder) and self._cache.now() - status.st_mtime < self._stale_s:
            return False
        aside = place.with_name(f"{place.name}.{secrets.token_hex(8)}")
        try:
            place.rename(aside)
        except FileNotFoundError:
            return True
        taken = aside.stat()
        ours = (taken.st_ino, taken.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
        if not ours:
            with contextlib.suppress(FileExistsError):
                place.hardlink_to(aside)  # of another one, who was faster: back with it
        aside.unlink(missing_ok=True)
        return ours

    def _renew(self) -> None:
        while not self._end.wait(self._stale_s / _RENEW_EVERY):
            with self._lock:
                held = list(self._held)
            for shard in held:
                with contextlib.suppress(OSError):
                    os.utime(self._place(shard))


def _holder() -> str:
    """This process, such that others of the same machine can see whether it lives."""
    return f"{_MACHINE} {os.getpid()} {_begun(os.getpid())}"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return secrets.token_hex(8)  # a machine that knows nobody


_MACHINE = _machine()


def _begun(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _died(holder: str) -> bool:
    """Tell whether the holder was a process of this machine that is no more."""
    machine, _, process = holder.partition(" ")
    pid, _, begun = process.partition(" ")
    return machine == _MACHINE and pid.isdecimal() and _begun(int(pid)) != begun
