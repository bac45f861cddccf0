"""Verify a cache, whose clients serve what they find in it, whatever it is; and repair its folders and rights.

A verification has four levels, each with those before it. `size`: against the catalogs. `name`: objects without
compression have the hash of their content as name. `sum`: against the SHA-256 that a warm noted. `fetch`: what could
not be judged, and what differs, is fetched and compared. What a level cannot judge is counted as that, and condemned by
none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from include.aliencache.cache import OBJECT_MODE, SUMS, AlienCache
from include.aliencache.contents import CacheContents, Wanted, take_contents
from include.aliencache.errors import refused
from include.aliencache.names import SHARDS, NameKind, kind_in_shard, place_of
from include.aliencache.scan import Shard, in_threads, open_shard, scan_shard
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, META, PARTIAL, ObjectHash, hash_bytes
from include.cvmfs.format.objects import Compression, Compressor, Hasher, compress
from include.cvmfs.revision.repository import Repository
from include.json_values import JsonValue
from include.settings.caches import UseOfObjects
from include.storage.errors import StoreError
from include.storage.store import Store

_BLOCK = 1 << 20
_LISTED = 1000


class Level(IntEnum):
    """Depth of a verification."""

    SIZE = 1
    NAME = 2
    SUM = 3
    FETCH = 4


@dataclass(slots=True)
class VerifyReport(JsonValue):
    """Outcome. `not_judged`: objects that the level could not judge; `damaged`: names, 1,000 of them at most."""

    cache: str
    level: str
    objects: int = 0
    bytes: int = 0
    good: int = 0
    not_judged: int = 0
    damaged_count: int = 0
    unreadable: int = 0
    deleted: bool = False
    seconds: float = 0.0
    dry_run: bool = False
    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`share`, `part`: only the folders whose number leaves `part` when divided by `share`. `delete`: do not keep
    damaged objects for a look; they are fetched again either way."""

    level: Level = Level.SIZE
    share: int = 1
    part: int = 0
    delete: bool = False
    dry_run: bool = False


class Expected:
    """Sizes and forms of the objects of some revisions."""

    def __init__(self) -> None:
        self.contents = CacheContents()

    def add(self, repository: Repository, root: NestedRef) -> None:
        """Take a revision. Raises what reading catalogs raises."""
        take_contents(self.contents, root, Wanted(), lambda item: repository.catalogs.open_nested(item.path, item.hash))

    def of_shard(self, number: int) -> dict[bytes, tuple[int | None, Compression]]:
        """Size (None: unknown) and form of each object of a folder, by its digest."""
        sizes = {item.name.digest: (item.size, item.compression) for item in self.contents.in_shard(number)}
        for item in self.contents.catalogs:
            if item.reference.hash.digest[0] == number:
                sizes[item.reference.hash.digest] = (item.reference.size or None, Compression.ZLIB)
        return sizes


def expected_of(repositories: Mapping[str, Repository | None], notes: list[str]) -> Expected:
    """Objects of the newest revisions of some repositories; ``None``: no origin answers, which is noted."""
    expected = Expected()
    for fqrn, repository in repositories.items():
        if repository is None:
            notes.append(f"no origin of {fqrn} answers: sizes and forms of its objects are not known")
            continue
        manifest = repository.manifest
        try:
            expected.add(repository, NestedRef("", manifest.root, manifest.root_size))
        except (CvmfsError, StoreError) as fault:
            notes.append(f"the catalogs of {fqrn} cannot be read ({fault}): not all sizes are known")
    return expected


def verify(
    cache: AlienCache,
    expected: Expected,
    origins: Sequence[Store],
    options: VerifyOptions,
    *,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> VerifyReport:
    """Judge objects, and take damaged ones away (out of the clients' sight, or for good). Raises CacheError."""
    cache.require()
    return _Verify(cache, expected, origins, options, progress).run()


class _Verify:
    def __init__(
        self,
        cache: AlienCache,
        expected: Expected,
        origins: Sequence[Store],
        options: VerifyOptions,
        progress: Callable[[str, int, int], object],
    ) -> None:
        self.cache, self.expected, self.origins, self.options = cache, expected, origins, options
        self.progress = progress
        self.report = VerifyReport(str(cache), options.level.name.lower(), dry_run=options.dry_run)
        self.report.deleted = options.delete
        self.sums = dict(_noted_sums(cache)) if options.level >= Level.SUM else {}
        self.lock = threading.Lock()

    def run(self) -> VerifyReport:
        began = time.monotonic()
        numbers = [number for number in range(256) if number % self.options.share == self.options.part]
        in_threads(self._shard, numbers, computes=self.options.level > Level.SIZE)
        self.report.damaged.sort()
        self.report.seconds = round(time.monotonic() - began, 3)
        return self.report

    def _shard(self, number: int) -> None:
        shard = scan_shard(self.cache, number, UseOfObjects.AGE, young_after=float("inf"))
        expected = self.expected.of_shard(number)
        for place in range(len(shard)):
            self._object(shard, place, expected)
        with self.lock:
            self.report.unreadable += shard.unreadable
            self.progress("objects", self.report.objects, 0)

    def _object(self, shard: Shard, place: int, expected: Mapping[bytes, tuple[int | None, Compression]]) -> None:
        name = shard.name(place)
        size, form = expected.get(name.digest, (None, None))
        try:
            verdict, read = self._judged(name, size, form)
            if verdict is False and self._judged(name, size, form)[0] is not False:
                verdict = None  # it was replaced while it was read
        except FileNotFoundError:
            return
        except PermissionError:
            verdict, read = None, 0  # of another user: counted as unreadable, and not judged
        except OSError as fault:
            raise refused(self.cache.path, fault) from fault
        if verdict is False and not self.options.dry_run:
            if self.options.delete:
                self.cache.remove(name)
            else:
                self.cache.condemn(name)
        with self.lock:
            self.report.objects += 1
            self.report.bytes += read
            self.report.good += verdict is True
            self.report.not_judged += verdict is None
            if verdict is False:
                self.report.damaged_count += 1
                if len(self.report.damaged) < _LISTED:
                    self.report.damaged.append(f"{SHARDS[shard.number]}/{shard.file_name(place)}")

    def _judged(self, name: ObjectHash, size: int | None, form: Compression | None) -> tuple[bool | None, int]:
        """True: good, False: damaged, None: not judged; and the bytes of its file."""
        level = self.options.level
        if level is Level.SIZE:
            length = (self.cache.path / place_of(name)).lstat().st_size
            if not length:
                return size in (None, 0) and _is_empty_file(name), 0
            return (None if size is None else length == size), length
        descriptor = self._open(name)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            length = status.st_size
            if size is not None and length != size:
                return False, length
            if not length:
                return (size is None or size == 0) and _is_empty_file(name), 0
            own, sha256 = Hasher(name.algorithm), hashlib.sha256()
            noted = self.sums.get(name.digest)
            need_sum = noted is not None or level is Level.FETCH
            while block := file.read(_BLOCK):
                own.update(block)
                if need_sum:
                    sha256.update(block)
        if own.finish() == name.digest:
            return True, length
        if form is Compression.NONE:
            return False, length  # its name is the hash of the file itself
        if noted is not None and noted == sha256.digest():
            return True, length
        if level is Level.FETCH:
            return self._fetched(name, sha256.digest()), length
        return (False if noted is not None else None), length

    def _open(self, name: ObjectHash) -> int:
        """A descriptor; a look does not count as a use where this process may prevent that."""
        place = self.cache.path / place_of(name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(place, flags | os.O_NOATIME)
        except PermissionError:
            return os.open(place, flags)

    def _fetched(self, name: ObjectHash, sha256: bytes) -> bool | None:
        """Compare with an origin: a file, a piece of one, a catalog or other metadata, with or without compression."""
        for store in self.origins:
            for suffix in ("", PARTIAL, CATALOG, CERTIFICATE, META):
                try:
                    sums = _content_sums(store, name.with_suffix(suffix))
                except (CvmfsError, StoreError):
                    continue
                if sums is not None:
                    return sha256 in sums
        return None


def _is_empty_file(name: ObjectHash) -> bool:
    """Tell whether an object is that of an empty file: of no other are 0 bytes right."""
    return name.digest in {hash_bytes(compress(b"", how), name.algorithm).digest for how in Compressor}


def _content_sums(store: Store, name: ObjectHash) -> tuple[bytes, ...] | None:
    """SHA-256 of an object as it is stored, and decompressed; None if the origin's bytes are wrong themselves."""
    own, stored, unpacked = Hasher(name.algorithm), hashlib.sha256(), hashlib.sha256()
    inflate, sound = zlib.decompressobj(), True
    for block in store.stream(name.key, block=_BLOCK):
        own.update(block)
        stored.update(block)
        pending = block
        while sound and pending and not inflate.eof:
            try:
                unpacked.update(inflate.decompress(pending, _BLOCK))
                pending = inflate.unconsumed_tail
            except zlib.error:
                sound = False
    if own.finish() != name.digest:
        return None
    return (stored.digest(), unpacked.digest()) if sound and inflate.eof else (stored.digest(),)


def _noted_sums(cache: AlienCache) -> Iterator[tuple[bytes, bytes]]:
    """SHA-256 of content that warms noted, by the object's digest; the newest last."""
    for file in sorted((cache.path / SUMS).glob("*")):
        try:
            lines = file.read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            name, _, rest = line.partition(" ")
            try:
                yield ObjectHash.parse(name).digest, bytes.fromhex(rest.partition(" ")[0])
            except (ValueError, CvmfsError):
                continue


@dataclass(slots=True)
class Repaired:
    """Folders that were missing; objects that were given to the group, and that had to be deleted."""

    folders: int = 0
    given: int = 0
    deleted: int = 0


def repair_cache(cache: AlienCache, *, dry_run: bool = False) -> Repaired:
    """Make a cache whole for its group. An object that a client may not read is one that it fetches again.

    Raises CacheError, also outside the group.
    """
    cache.require()
    cache.require_member()
    done = Repaired(folders=len(cache.layout().missing))
    if not dry_run:
        cache.complete()
    for shard in SHARDS:
        try:
            descriptor = open_shard(cache, shard)
        except FileNotFoundError:
            continue
        try:
            _repair_shard(cache, descriptor, done, dry_run=dry_run)
        except OSError as fault:
            raise refused(cache.path, fault) from fault
        finally:
            os.close(descriptor)
    return done


def _repair_shard(cache: AlienCache, descriptor: int, done: Repaired, *, dry_run: bool) -> None:
    for name in os.listdir(descriptor):
        if kind_in_shard(name) is not NameKind.OBJECT:
            continue
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or cache.is_readable(status):
                continue
            given = os.geteuid() in (0, status.st_uid) if dry_run else _give(cache, descriptor, name)
            done.given += given
            done.deleted += not given
            if not given and not dry_run:
                os.unlink(name, dir_fd=descriptor)
        except FileNotFoundError:
            continue


def _give(cache: AlienCache, descriptor: int, name: str) -> bool:
    with contextlib.suppress(PermissionError):
        os.chown(name, -1, cache.gid, dir_fd=descriptor, follow_symlinks=False)
    with contextlib.suppress(PermissionError):
        os.chmod(name, OBJECT_MODE, dir_fd=descriptor)
    return cache.is_readable(os.stat(name, dir_fd=descriptor, follow_symlinks=False))
