"""Objects as files below a folder, on any POSIX file system: whole or not at all, and replaced under a lock.

Plain system calls: a client library writes 4 kB objects no faster, and reads and looks them up over six times slower.
What is flushed when: docs/decisions, 6.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote

from include.storage.errors import BadKey, Conflict, NotFound, StoreError, Unsupported, os_failure
from include.storage.kinds import FILE, Credentials, Fsync, StoreOptions, Traits
from include.storage.objects import in_batches, merged
from include.storage.store import (
    ContentVersion,
    Counters,
    ObjectMeta,
    Store,
    Unfinished,
    Version,
    check_key,
    check_prefix,
    is_content_addressed,
)

OLD = timedelta(days=1)
"""No write takes so long."""


def abandoned(store: Store, now: datetime) -> list[Unfinished]:
    """The unfinished writes of a store that are older than a day, the oldest first. ``now``: aware."""
    return sorted(
        (write for write in store.unfinished() if now - write.since > OLD), key=lambda write: (write.since, write.name)
    )


def remove_abandoned(store: Store, now: datetime, *, dry_run: bool = False) -> list[Unfinished]:
    """Remove them where the store is a folder; what was removed, or would be. Nothing of other stores is removed."""
    if not isinstance(store, FileStore):
        return []
    if dry_run:
        return abandoned(store, now)
    return sorted(store.remove_unfinished(now - OLD), key=lambda write: (write.since, write.name))


def described(found: Sequence[Unfinished], store: Store) -> str:
    """The message about them, with the hint. ``found`` is not empty, and the oldest comes first."""
    what, hint = "multipart upload", "let a lifecycle rule of the bucket abort them (AbortIncompleteMultipartUpload)"
    if isinstance(store, FileStore):
        what, hint = "unfinished file", "remove them with `nightshift repo repair FQRN --unfinished`"
    plural = "" if len(found) == 1 else "s"
    sizes = [write.size for write in found if write.size is not None]
    size = f" of {sum(sizes) / 1e6:,.1f} MB" if sizes else ""
    return f"{len(found)} {what}{plural}{size} of killed writers, the oldest of {found[0].since:%Y-%m-%d}; {hint}"


F = TypeVar("F", bound=Callable[..., Any])

FILE_TRAITS = Traits(put_if_absent=True, replace=True, bulk_delete=True, anonymous_read=None, etag_quotes=True)
DELETE_BATCH = 250
_REPLACED = 4  # whose content is kept
DELETES_AT_ONCE = 8  # a network file system takes as many at the same time; a local one is busy with two


def _in_our_words(method: F) -> F:
    """Let a method on a key raise leaves of our tree instead of OSError."""

    @wraps(method)
    def checked(self: FileStore, key: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, key, *args, **kwargs)
        except OSError as error:
            raise os_failure(error, key, self.url, reading=method.__name__.startswith("get")) from error

    return cast("F", checked)


def open_url(url: str, credentials: Credentials | None, options: StoreOptions) -> FileStore:  # noqa: ARG001
    """The store at a URL of this kind, see ``open_store``."""
    host, slash, path = url.partition("://")[2].partition("/")
    if not slash or host not in ("", "localhost"):
        raise StoreError(f"store URL {url!r}: write file:///absolute/folder, with three slashes", key="")
    folder = "/" + unquote(path).strip("/")
    if "\0" in folder or ".." in folder.split("/"):
        raise StoreError(f'store URL {url!r}: the folder may not contain ".." or a NUL', key="")
    return FileStore(Path(folder), fsync=options.fsync)


class FileStore(Store):
    """Objects below ``root``. Names that start with ``.~`` and folders called ``.lock`` are its own."""

    kind = FILE
    traits = FILE_TRAITS

    def __init__(
        self, root: Path, *, fsync: Fsync = "switch", counters: Counters | None = None, home: _Home | None = None
    ) -> None:
        self.root = root
        self._home = home or _Home(str(root))
        self.url = root.as_uri()
        self.counters = counters or Counters()
        self._base = str(root).rstrip("/") + "/"
        self.fsync = fsync
        self._replaced: dict[str, ContentVersion] = {}  # the last few, by path

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the same folder."""
        return partial(FileStore, fsync=self.fsync), (self.root,)

    def free_bytes(self) -> int:
        """Space of its file system, which others may use as well."""
        try:
            space = os.statvfs(self.root)
        except OSError as error:
            raise os_failure(error, "", self.url, reading=True) from error
        return space.f_bavail * space.f_frsize

    def child(self, prefix: str) -> FileStore:
        prefix = check_prefix(prefix)
        if not prefix:
            return self
        return FileStore(Path(self._path(prefix)), fsync=self.fsync, counters=self.counters, home=self._home)

    def remove_folder(self) -> None:
        locks = self.root / _LOCK_FOLDER
        with contextlib.suppress(OSError):
            for lock in list(locks.iterdir()):
                lock.unlink()
            locks.rmdir()
        with contextlib.suppress(OSError):
            self.root.rmdir()

    @_in_our_words
    def get(self, key: str) -> bytes:
        data = _read(self._path(key))
        self.counters.add(gets=1, bytes_got=len(data))
        return data

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        data = self.get(key)
        return data, ContentVersion(data)

    @_in_our_words
    def get_range(self, key: str, start: int, length: int) -> bytes:
        with open(self._path(key), "rb", buffering=0) as file:  # noqa: PTH123 - strings are faster on the hot path
            data = _pread(file.fileno(), start, length)
        self.counters.add(gets=1, bytes_got=len(data))
        return data

    def stream(self, key: str, *, block: int = 1 << 20) -> Iterator[bytes]:
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                self.counters.add(gets=1)
                while data := file.read(block):
                    self.counters.add(bytes_got=len(data))
                    yield data
        except OSError as error:
            raise os_failure(error, key, self.url, reading=True) from error

    @_in_our_words
    def head(self, key: str) -> ObjectMeta | None:
        """Its version is of the file, not of the bytes: ``replace`` takes only one from ``get_versioned``."""
        try:
            status = os.stat(self._path(key))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            status = None
        self.counters.add(heads=1)
        return _meta(key, status) if status is not None and stat.S_ISREG(status.st_mode) else None

    @_in_our_words
    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        temporary = self._stage(path, data)
        try:
            os.rename(temporary, path)  # noqa: PTH104
        except BaseException:
            _discard(temporary)
            raise
        self._written(path, data)

    @_in_our_words
    def put_if_absent(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        if os.path.lexists(path):
            return False
        temporary = self._stage(path, data)
        try:
            os.link(temporary, path)  # a rename would replace
        except FileExistsError:
            return False
        finally:
            _discard(temporary)
        self._written(path, data)
        return True

    @_in_our_words
    def replace(self, key: str, data: bytes, *, expected: Version | None) -> Version:
        self.flush()  # what the new content names must not be younger on the disk than the name
        if expected is None:
            if not self.put_if_absent(key, data):
                raise Conflict(f"{key}: expected to be absent from {self.url}, but it is there; read it again", key=key)
            return ContentVersion(data)
        if not isinstance(expected, ContentVersion) and expected.etag.startswith(_WEAK):
            raise Unsupported(f"{key}: a version of head() or list() cannot be replaced; use get_versioned()", key=key)
        path = self._path(key)
        if not os.path.exists(path):  # noqa: PTH110
            raise Conflict(f"{key}: expected in {self.url}, but it is gone; read it again", key=key)
        with self._locked(path):
            try:
                # Who goes on from what was written here last hands back this very version, and nothing is hashed.
                before = self._replaced.get(path)
                ours = before is not None and _holds(path, before.data)
                current = before if ours else ContentVersion(_read(path))
            except FileNotFoundError:
                raise Conflict(f"{key}: expected in {self.url}, but it is gone; read it again", key=key) from None
            if current is not expected and current != expected:
                raise Conflict(f"{key}: another writer replaced it in {self.url}; read it again", key=key)
            self.put(key, data)
        version = self._replaced[path] = ContentVersion(data)
        while len(self._replaced) > _REPLACED:
            self._replaced.pop(next(iter(self._replaced)), None)
        return version

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        prefix = check_prefix(prefix)
        folder = self._path(prefix) if prefix else str(self.root)
        try:
            for relative, status in _walk(folder, prefix + "/" if prefix else ""):
                yield _meta(relative, status)
        except OSError as error:
            raise os_failure(error, prefix, self.url) from error
        self.counters.add(lists=1)

    def delete(self, keys: Iterable[str]) -> int:
        paths = {key: self._path(key) for key in keys}  # refuses bad ones before any is deleted
        for refusal in self._delete_batch(list(paths)).values():
            raise refusal
        return len(paths)

    def delete_each(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        return merged(in_batches(keys, self._delete_batch, size=DELETE_BATCH, at_once=DELETES_AT_ONCE))

    def _delete_batch(self, keys: Sequence[str]) -> dict[str, StoreError]:
        refused: dict[str, StoreError] = {}
        for key in keys:
            try:
                os.unlink(self._path(key))  # noqa: PTH108
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                refused[key] = os_failure(error, key, self.url)
            except BadKey as error:
                refused[key] = error
        self.counters.add(deletes=len(keys) - len(refused))
        return refused

    def flush(self) -> None:
        if self.fsync != "switch":
            return
        try:
            _sync_file_system(self.root)
        except FileNotFoundError:
            return  # nothing was written yet
        except OSError as error:
            raise os_failure(error, "", self.url) from error

    def unfinished(self) -> Iterator[Unfinished]:
        try:
            yield from _walk_staged(str(self.root), "")
        except OSError as error:
            raise os_failure(error, "", self.url) from error

    def remove_unfinished(self, older_than: datetime) -> Sequence[Unfinished]:
        old = [write for write in self.unfinished() if write.since < older_than]
        for write in old:
            self.discard(write)
        return old

    def discard(self, unfinished: Unfinished) -> None:
        """Remove what a killed writer left; one that is gone already is no error."""
        folder, _, name = check_key(unfinished.name).rpartition("/")
        if not name.startswith(_STAGED):
            raise BadKey(f"{unfinished.name!r} is an object, not an unfinished write", key=unfinished.name)
        try:
            os.unlink(f"{self._base}{folder}/{name}")  # noqa: PTH108
        except FileNotFoundError:
            return
        except OSError as error:
            raise os_failure(error, unfinished.name, self.url) from error

    def _path(self, key: str) -> str:
        check_key(key)
        if "/." in key or key.startswith("."):
            for part in key.split("/"):
                if part == _LOCK_FOLDER or part.startswith(_STAGED):
                    raise BadKey(f"key {key!r} is refused: {part!r} is a name of the file store's own", key=key)
        return self._base + key

    def _stage(self, path: str, data: bytes) -> str:
        """A complete temporary file beside ``path``, for the caller to move or remove."""
        folder = path.rpartition("/")[0]
        temporary = f"{folder}/{_STAGED}{os.urandom(12).hex()}"  # containers share folders, and process ids
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            self._home.make(folder, path.removeprefix(self._base), lasting=self._lasting(path))
            descriptor = os.open(temporary, flags, 0o666)
        try:
            try:
                written = os.write(descriptor, data)
                while written < len(data):
                    written += os.write(descriptor, memoryview(data)[written:])
                if self._lasting(path):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            _discard(temporary)
            raise
        return temporary

    def _written(self, path: str, data: bytes) -> None:
        if self._lasting(path):
            _sync_folder(path.rpartition("/")[0])
        self.counters.add(puts=1, bytes_put=len(data))

    def _lasting(self, path: str) -> bool:
        """Tell whether a write is acknowledged only when it would survive a power failure; else :meth:`flush` sees to
        it."""
        if self.fsync == "switch":
            return not is_content_addressed(path.removeprefix(self._base))
        return self.fsync == "always"

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        """Excludes every other ``replace`` of this object, in any process on any machine with this file system."""
        folder, _, name = path.rpartition("/")
        os.makedirs(f"{folder}/{_LOCK_FOLDER}", exist_ok=True)  # noqa: PTH103
        descriptor = os.open(f"{folder}/{_LOCK_FOLDER}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class _Home:
    """The folder that a store and its children are in. Made when first written to, but not again once it was there.

    It may be a mount point: what is written where a file system was is lost when that comes back.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = os.path.isdir(path)  # noqa: PTH112

    def make(self, folder: str, key: str, *, lasting: bool) -> None:
        """Make the folder of an object; ``lasting``: such that it survives a power failure."""
        if self._seen and not os.path.isdir(self._path):  # noqa: PTH112
            cure = "mount its file system, or create the folder and what was in it"
            raise NotFound(f"{key} in {self._path}: the store's folder is gone; {cure}", key=key)
        absent = [folder]
        while not os.path.isdir(above := absent[-1].rpartition("/")[0] or "/"):  # noqa: PTH112
            absent.append(above)
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        if _OF_OBJECTS.search(folder):
            _make_all(folder.rpartition("/")[0])
        self._seen = True
        if lasting:
            for made in absent:
                _sync_folder(made.rpartition("/")[0] or "/")


def _make_all(data: str) -> None:
    """All folders of objects: a stock receiver moves objects into them, makes none, and dies where one is missing."""
    descriptor = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number in range(256):
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{number:02x}", dir_fd=descriptor)
    finally:
        os.close(descriptor)


_OF_OBJECTS = re.compile(r"/data/[0-9a-f]{2}$")
_STAGED = ".~"
_LOCK_FOLDER = ".lock"
_WEAK = "W/"


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file_system(folder: Path) -> None:
    """All that this machine wrote to the folder's file system, by whichever process, is on the disk afterwards."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc().syncfs(descriptor) != 0:
            raise OSError(number := ctypes.get_errno(), os.strerror(number))
    finally:
        os.close(descriptor)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # Python's os has no syncfs


def _discard(temporary: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(temporary)  # noqa: PTH108


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    weak = f"{_WEAK}{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return ObjectMeta(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC), Version(weak))


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data
        pieces = [data]
        while piece := os.read(descriptor, 1 << 20):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def _holds(path: str, data: bytes) -> bool:
    """Tell whether a file has these bytes: in pieces, which cost no new memory."""
    at = 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while piece := file.read(1 << 16):
            if not data.startswith(piece, at):
                return False
            at += len(piece)
    return at == len(data)


def _pread(descriptor: int, start: int, length: int) -> bytes:
    pieces = []
    while length > 0 and (piece := os.pread(descriptor, length, start)):
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith(_STAGED) or entry.name == _LOCK_FOLDER:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{prefix}{entry.name}/")
        elif entry.is_file():
            try:
                yield prefix + entry.name, entry.stat()
            except FileNotFoundError:  # deleted while we looked
                continue


def _walk_staged(folder: str, prefix: str) -> Iterator[Unfinished]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_staged(entry.path, f"{prefix}{entry.name}/")
        elif entry.name.startswith(_STAGED):
            with contextlib.suppress(FileNotFoundError):  # finished while we looked
                status = entry.stat(follow_symlinks=False)
                yield Unfinished(prefix + entry.name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
