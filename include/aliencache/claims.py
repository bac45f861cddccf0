"""Claims of those who work in one cache: a file made atomically, whose holder renews its time; who dies is followed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from pathlib import Path
from types import TracebackType

from include.aliencache.cache import CLAIMS, OBJECT_MODE, AlienCache
from include.aliencache.errors import FULL, refused
from include.aliencache.names import TXN

STALE_S = 90.0
"""A claim that its holder has not renewed for so long may be taken; that of a process here that died, at once."""
_RENEW_EVERY = 6  # times within that
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.ENOENT})
"""Errors of a file system that has no hard links, and of a file that another trim took for a forgotten one."""


class Claims:
    """Claims that one process holds; a thread renews them. Use as a context: leaving it gives all back."""

    def __init__(self, cache: AlienCache, purpose: str, *, stale_s: float = STALE_S) -> None:
        self._cache = cache
        self._folder = cache.path / CLAIMS
        self._purpose = purpose
        self._stale_s = stale_s
        self._mark = f"{_holder()} {secrets.token_hex(8)}"
        # linked into the place of a claim, which has its content then from its first moment on
        self._own = cache.path / TXN / f"fetch{secrets.token_hex(8)}"
        self._held: dict[str, str] = {}  # with the content of the file, by which ours is known
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name=f"claims of {cache}")

    def __enter__(self) -> Claims:
        self._cache.complete()
        with contextlib.suppress(OSError):  # a full cache is trimmed all the same
            self._create(self._own)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        for shard in list(self._held):
            self.release(shard)
        self._own.unlink(missing_ok=True)

    def take(self, shard: str) -> bool:
        """Claim a folder; False: another process that lives has it. Raises CacheError."""
        place = self._place(shard)
        for _ in range(2):
            try:
                self._link(place)
            except FileExistsError:
                if not self._left_behind(place):
                    return False
                continue
            except OSError as fault:
                if fault.errno in FULL:
                    return True  # without a claim: others get none either, and a trim has to go on
                raise refused(self._cache.path, fault) from fault
            with self._lock:
                self._held[shard] = self._mark if _content(place) == self._mark else ""
            return True
        return False

    def release(self, shard: str) -> None:
        """Give a claim back."""
        with self._lock:
            mark = self._held.pop(shard, None)
        if mark is not None and _content(self._place(shard)) == mark:  # another one takes it from who stands still
            self._place(shard).unlink(missing_ok=True)

    def _link(self, place: Path) -> None:
        try:
            os.link(self._own, place)
        except OSError as fault:
            if fault.errno not in _NO_LINKS:
                raise
            self._create(place)
        else:
            os.utime(place)  # an own file that was not renewed for long makes no stale claim

    def _create(self, place: Path) -> None:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OBJECT_MODE)
        try:
            with contextlib.suppress(OSError):  # an empty claim is judged by its time alone
                os.fchmod(descriptor, OBJECT_MODE)
                os.write(descriptor, self._mark.encode())
        finally:
            os.close(descriptor)

    def _place(self, shard: str) -> Path:
        return self._folder / f"{self._purpose}.{shard}"

    def _left_behind(self, place: Path) -> bool:
        """Take the claim of a process that died away; False if its holder lives, or another one was faster."""
        holder = ""
        try:
            status = place.stat()
            with contextlib.suppress(PermissionError):
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
            with contextlib.suppress(OSError):
                os.utime(self._own)
            with self._lock:
                held = list(self._held.items())
            for shard, mark in held:
                if _content(self._place(shard)) == mark:
                    with contextlib.suppress(OSError):
                        os.utime(self._place(shard))


def _content(claim: Path) -> str | None:
    try:
        return claim.read_text("ascii", "replace")
    except OSError:
        return None


def _holder() -> str:
    """This process, such that others of the same machine can see whether it lives."""
    return f"{_MACHINE} {os.getpid()} {_begun(os.getpid())}"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return secrets.token_hex(8)  # holders of this machine cannot be told from others


_MACHINE = _machine()


def _begun(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _died(holder: str) -> bool:
    """Tell whether the holder was a process of this machine that is no more."""
    machine, _, process = holder.partition(" ")
    pid, _, rest = process.partition(" ")
    begun = rest.partition(" ")[0]
    return machine == _MACHINE and pid.isdecimal() and _begun(int(pid)) != begun
