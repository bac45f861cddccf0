"""A tree of a repository written to disk: in parallel, every object verified, nothing outside the target.

Each file is written beside its place and moved there when it is whole, so that a run that died can be repeated: what
is there already is recognised by its content and not fetched again. Formats: docs/formats.md, catalogs.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from include.cvmfs.errors import CatalogError, CvmfsError
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash, hash_bytes, path_hash
from include.cvmfs.format.objects import Compression, Compressor, Hasher, compress
from include.cvmfs.format.paths import clean_path, name_fault, parent_of
from include.cvmfs.revision.revision import Revision
from include.cvmfs.sources.source import printable, unpack_xattrs

_BLOCK = 1 << 20
_MOST_IN_MEMORY = 64 << 20  # larger objects are made by stock tools that do not cut files
_AHEAD = 4  # files waiting per worker
_PROGRESS_EVERY_S = 0.25
_SET_ID_BITS = stat.S_ISUID | stat.S_ISGID
_NO_XATTRS = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.E2BIG, errno.ERANGE)


@dataclass(frozen=True, slots=True)
class GetOptions:
    """``workers``: files at once. ``owners``: give everything its uid and gid, make devices, keep set-uid bits (needs
    privileges). ``trust_times``: a file of the right size and time is taken for the right one without being read."""

    workers: int = 16
    owners: bool = False
    trust_times: bool = False


@dataclass(frozen=True, slots=True)
class GetProgress:
    """Regular files and bytes that are in place; the totals are 0 where the catalogs do not hold them ready."""

    files: int
    bytes: int
    files_total: int = 0
    bytes_total: int = 0


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """Outcome. ``kept``: files that were there already; ``skipped``: entries that could not be made, see ``notes``."""

    files: int
    bytes: int
    kept: int
    directories: int
    symlinks: int
    hardlinks: int
    specials: int
    skipped: int
    notes: tuple[str, ...]


def get(
    tree: Revision,
    path: str,
    target: Path,
    *,
    options: GetOptions = GetOptions(),
    progress: Callable[[GetProgress], object] = lambda _: None,
) -> DownloadResult:
    """Write what is at ``path`` to ``target``: a directory's content into it, a single file as it.

    What else is in ``target`` stays. Raises CvmfsError when something there is in the way, above all a symlink where
    a directory belongs; CatalogError for names that lead elsewhere; and what reading a tree raises.
    """
    path = clean_path(path)
    return _Getting(tree, path, target, options, progress).run()


@dataclass
class _Getting:
    tree: Revision
    path: str
    target: Path
    options: GetOptions
    progress: Callable[[GetProgress], object]
    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._compressors = [each for each in Compressor if each.is_there]
        self._top = os.path.realpath(os.fsencode(self.target))
        self._directories: list[tuple[bytes, Dirent]] = []
        self._links: list[tuple[bytes, bytes]] = []
        self._pending: deque[Future[tuple[int, bool]]] = deque()
        self._next_report = 0.0
        self._totals = (0, 0)

    def run(self) -> DownloadResult:
        entry = self.tree.entry(self.path)
        if entry.is_directory:
            self._make_target()
        if not self.path or entry.mountpoint:
            total = self.tree.catalog_at(self.path).statistics.total
            self._totals = (total.regular, total.file_size)
        first_of: dict[tuple[str, int], bytes] = {}
        with ThreadPoolExecutor(self.options.workers, thread_name_prefix="get") as pool:
            try:
                for here, child in self.tree.walk(self.path):
                    self._place(pool, here, child, first_of)
                    self._settle(self.options.workers * _AHEAD)
                self._settle(0)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        for place, first in self._links:
            self._hardlink(place, first)
        for place, directory in reversed(self._directories):
            self._finish(place, directory)
        self._report()
        made = self.counts
        notes = tuple(f"{why}: {', '.join(paths)}" for why, paths in sorted(self.notes.items()))
        return DownloadResult(
            made["files"], made["bytes"], made["kept"], made["directories"], made["symlinks"], made["hardlinks"],
            made["specials"], made["skipped"], notes,
        )  # fmt: skip

    # -- one entry after the other

    def _make_target(self) -> None:
        try:
            os.makedirs(self._top, exist_ok=True)  # noqa: PTH103 - as bytes
        except OSError as fault:
            raise _trouble(self._top, fault) from fault

    def _place(
        self, pool: ThreadPoolExecutor, path: str, entry: Dirent, first_of: dict[tuple[str, int], bytes]
    ) -> None:
        if path != self.path and (fault := name_fault(entry.name)) is not None:
            raise CatalogError(path, f"{fault} and is not written to disk; remove it from the repository")
        place = self._top + os.fsencode(path[len(self.path) :])
        if entry.is_directory:
            self._directory(place, entry)
        elif entry.is_symlink:
            self._symlink(place, entry)
        elif entry.is_special:
            self._special(place, path, entry)
        elif entry.external:
            self._skip("external files, whose content is in no store of the repository", path)
        else:
            if entry.hardlink_group:
                key = (parent_of(path), entry.hardlink_group)
                if (first := first_of.setdefault(key, place)) != place:
                    self._links.append((place, first))
                    return
            self._pending.append(pool.submit(self._file, path, place, entry))

    def _settle(self, left: int) -> None:
        """Wait until at most so many files are under way; the first error ends everything."""
        while len(self._pending) > left or (self._pending and self._pending[0].done()):
            size, kept = self._pending.popleft().result()
            self.counts.update(files=1, bytes=size, kept=kept)
            if time.monotonic() >= self._next_report:
                self._report()

    def _report(self) -> None:
        self.progress(GetProgress(self.counts["files"], self.counts["bytes"], *self._totals))
        self._next_report = time.monotonic() + _PROGRESS_EVERY_S

    def _directory(self, place: bytes, entry: Dirent) -> None:
        try:
            status = _lstat(place)
            if status is None:
                os.mkdir(place, 0o700)  # noqa: PTH102
            elif not stat.S_ISDIR(status.st_mode):
                kind = "symlink, which could lead out of the target," if stat.S_ISLNK(status.st_mode) else "file"
                raise CvmfsError(f"{os.fsdecode(place)}: a {kind} is where a directory belongs; remove it")
            elif status.st_mode & 0o700 != 0o700:
                os.chmod(place, 0o700)  # noqa: PTH101 - of an earlier run; its own mode comes last
        except OSError as fault:
            raise _trouble(place, fault) from fault
        self._directories.append((place, entry))
        self.counts["directories"] += 1

    def _symlink(self, place: bytes, entry: Dirent) -> None:
        target = os.fsencode(entry.symlink)
        try:
            status = _only(place, stat.S_IFLNK)
            if status and os.readlink(place) != target:  # noqa: PTH115
                status = _only(place, 0)
            if status is None:
                os.symlink(target, place)  # noqa: PTH211
        except OSError as fault:
            raise _trouble(place, fault) from fault
        if entry.xattr is not None:
            self._note("extended attributes of symlinks are left out", os.fsdecode(place))
        self._finish(place, entry)
        self.counts["symlinks"] += 1

    def _special(self, place: bytes, path: str, entry: Dirent) -> None:
        device = stat.S_ISCHR(entry.mode) or stat.S_ISBLK(entry.mode)
        if device and not self.options.owners:
            self._skip("devices, which are made with --owners only", path)
            return
        try:
            if _only(place, stat.S_IFMT(entry.mode)) is None:
                os.mknod(place, stat.S_IFMT(entry.mode) | 0o600, entry.size if device else 0)
        except PermissionError:
            self._skip("special files that this user may not make", path)
            return
        except OSError as fault:
            raise _trouble(place, fault) from fault
        self._finish(place, entry)
        self.counts["specials"] += 1

    def _hardlink(self, place: bytes, first: bytes) -> None:
        try:
            status = _only(place, stat.S_IFREG)
            if status is None or not os.path.samestat(status, os.lstat(first)):
                _only(place, 0)
                os.link(first, place, follow_symlinks=False)
        except OSError as fault:
            raise _trouble(place, fault) from fault
        self.counts["hardlinks"] += 1

    def _skip(self, why: str, path: str) -> None:
        self.counts["skipped"] += 1
        self._note(why, path)

    def _note(self, why: str, path: str) -> None:
        named = self.notes.setdefault(why, [])
        if len(named) < 3:
            named.append(printable(path))
        elif len(named) == 3:
            named.append("…")

    # -- files, in the workers

    def _file(self, path: str, place: bytes, entry: Dirent) -> tuple[int, bool]:
        """Return its size, and whether it was there already."""
        try:
            kept = self._is_there(path, place, entry)
            if kept:
                self._finish(place, entry)
            else:
                self._fetch(path, place, entry)
        except OSError as fault:
            raise _trouble(place, fault) from fault
        return entry.size, kept

    def _fetch(self, path: str, place: bytes, entry: Dirent) -> None:
        folder, _, name = place.rpartition(b"/")
        part = folder + b"/.nightshift-part-%016x" % (path_hash(os.fsdecode(name))[0] & (1 << 64) - 1)
        _only(place, stat.S_IFREG)
        _only(part, 0)  # of a run that died
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                for piece in self.tree.stream(path):
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(handle, view) :]
            finally:
                os.close(handle)
            self._finish(part, entry)
            os.replace(part, place)  # noqa: PTH105
        except BaseException:
            os.unlink(part)  # noqa: PTH108
            raise

    def _is_there(self, path: str, place: bytes, entry: Dirent) -> bool:
        """Tell whether the file is in place already; by its content, unless its times are to be trusted."""
        status = _lstat(place)
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            return False
        if status.st_nlink != entry.linkcount:  # links from elsewhere, or fewer than belong together
            return False
        if self.options.trust_times:
            return status.st_mtime_ns == _time_ns(entry)
        handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not entry.chunked:
                return entry.hash is not None and self._holds(handle, entry.size, entry.hash, entry.compression)
            pieces = self.tree.chunks(path)
            return all(self._holds(handle, piece.size, piece.hash, entry.compression) for piece in pieces)
        finally:
            os.close(handle)

    def _holds(self, handle: int, size: int, name: ObjectHash, how: Compression) -> bool:
        """Tell whether the next ``size`` bytes of an open file are the content of an object. Where another version of a
        compressor made the object, equal content is not recognised, and is fetched again."""
        if size > _MOST_IN_MEMORY:
            return _digest(handle, size, name, how) == name.digest
        content = os.read(handle, size)
        for compressor in self._compressors:
            made = hash_bytes(compress(content, compressor), name.algorithm) if compressor.compression is how else None
            if made is not None and made.digest == name.digest:
                # most of a tree was made in one way, which comes first from now on
                self._compressors = sorted(self._compressors, key=lambda each: each is not compressor)
                return True
        return False

    # -- attributes

    def _finish(self, place: bytes, entry: Dirent) -> None:
        """Owner, mode, attributes and time, in the order in which none undoes another."""
        try:
            if self.options.owners:
                os.chown(place, entry.uid, entry.gid, follow_symlinks=False)
            if not entry.is_symlink:
                mode = stat.S_IMODE(entry.mode)
                for key, value in unpack_xattrs(entry.xattr).items():
                    self._xattr(place, key, value)
                os.chmod(place, mode if self.options.owners else mode & ~_SET_ID_BITS)  # noqa: PTH101
            os.utime(place, ns=(_time_ns(entry), _time_ns(entry)), follow_symlinks=False)
        except OverflowError as fault:
            owner = f"uid {entry.uid}, gid {entry.gid}, mtime {entry.mtime}"
            what = f"has an owner or time that this system cannot hold ({owner}); publish it again with sound ones"
            raise CvmfsError(f"{os.fsdecode(place)}: {what}") from fault
        except OSError as fault:
            raise _trouble(place, fault) from fault

    def _xattr(self, place: bytes, key: bytes, value: bytes) -> None:
        try:
            os.setxattr(place, key, value, follow_symlinks=False)
        except OSError as fault:
            if fault.errno not in _NO_XATTRS:
                raise
            self._note(f"extended attribute {printable(key)} cannot be set here by this user", os.fsdecode(place))


def _lstat(place: bytes) -> os.stat_result | None:
    try:
        return os.lstat(place)
    except FileNotFoundError:
        return None


def _only(place: bytes, kind: int) -> os.stat_result | None:
    """Return what is there of this kind; anything else is taken away, but a directory never. Raises CvmfsError,
    OSError."""
    status = _lstat(place)
    if status is None or stat.S_IFMT(status.st_mode) == kind:
        return status
    if stat.S_ISDIR(status.st_mode):
        raise CvmfsError(f"{os.fsdecode(place)}: a directory is where something else belongs; remove it")
    os.unlink(place)  # noqa: PTH108
    return None


def _digest(handle: int, size: int, name: ObjectHash, how: Compression) -> bytes | None:
    """The digest of the object of the next ``size`` bytes of an open file, as stock tools make it; None if it ends."""
    digest = Hasher(name.algorithm)
    packer = zlib.compressobj() if how is Compression.ZLIB else None
    while size:
        block = os.read(handle, min(size, _BLOCK))
        if not block:
            return None
        size -= len(block)
        digest.update(packer.compress(block) if packer else block)
    if packer:
        digest.update(packer.flush())
    return digest.finish()


def _time_ns(entry: Dirent) -> int:
    return entry.mtime * 1_000_000_000 + (entry.mtime_ns or 0)


def _trouble(place: bytes, fault: OSError) -> CvmfsError:
    cure = {
        errno.ENOSPC: "free some space and run it again: it goes on where it stopped",
        errno.EACCES: "choose a target that you may write to",
        errno.EPERM: "choose a target that you own, or leave out --owners",
    }.get(fault.errno or 0, "correct that and run it again: it goes on where it stopped")
    return CvmfsError(f"{os.fsdecode(place)}: cannot be written ({fault.strerror}); {cure}")
