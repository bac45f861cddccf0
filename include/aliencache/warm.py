"""Warm a cache: fetch what a revision needs into it, before the jobs of a site ask for it all at once.

Objects first, then nested catalogs from the deepest up, the root catalog, and the breadcrumb last: where a catalog is,
all below it is, too. A file gets its object's name when it was verified and is on the disk. Several may
warm at once, on any machines: each folder is claimed by one of them, so that an object is fetched once.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from include.aliencache import contents
from include.aliencache.cache import STAGED, SUMS, AlienCache
from include.aliencache.claims import Claims
from include.aliencache.errors import NOTHING_WANTED, ORIGIN_FAILED, REVISION_GONE, refused
from include.aliencache.names import SHARDS, Breadcrumb, place_of
from include.cvmfs.errors import CatalogError, CvmfsError, ObjectMissing
from include.cvmfs.format import manifest as manifests, objects
from include.cvmfs.format.catalog import Catalog, CatalogObject, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.objects import Compression
from include.cvmfs.revision.repository import Repository
from include.errors import NightshiftError
from include.json_values import JsonValue
from include.storage.errors import NotFound, StoreError
from include.storage.store import Store

WORKERS = 8
_LOOK_EVERY_S = 0.25
_PROGRESS_EVERY_S = 0.25
_BLOCK = 1 << 20
_FAULTS = (CvmfsError, StoreError)


@dataclass(frozen=True, slots=True)
class WarmProgress:
    """Objects and bytes of content that are in the cache, of all that is wanted; bytes that came from the origins."""

    objects: int
    objects_total: int
    bytes: int
    bytes_total: int
    bytes_fetched: int


@dataclass(slots=True)
class WarmReport(JsonValue):
    """Outcome of a warm. `fetched`: objects that it brought; `present`: that were there, or came by another warm.

    Attributes:
        replaced: Objects whose files had another size, or that the group could not read.
        breadcrumb: Whether the breadcrumb is new.
    """

    cache: str
    repository: str
    revision: int
    root: str
    objects: int = 0
    bytes: int = 0
    fetched: int = 0
    bytes_fetched: int = 0
    present: int = 0
    replaced: int = 0
    catalogs: int = 0
    breadcrumb: bool = False
    seconds: float = 0.0
    dry_run: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WarmOptions:
    """`tag`: the revision of this tag instead of the newest. `renew`: note in the file's time that it was wanted."""

    choice: contents.Wanted
    tag: str | None = None
    workers: int = WORKERS
    renew: bool = False
    dry_run: bool = False


def open_origin(fqrn: str, stores: Sequence[Store], opened: Callable[[Store], Repository]) -> Repository:
    """The repository at the first origin that can be read and trusted. Raises CacheError with the reason of each."""
    reasons = []
    for store in stores:
        try:
            return opened(store)
        except _FAULTS as fault:
            reasons.append(f"{store.url}: {fault}")
    raise ORIGIN_FAILED(fqrn, f"no origin can be read; {'; '.join(reasons)}")


def warm(
    cache: AlienCache,
    repository: Repository,
    origins: Sequence[Store],
    options: WarmOptions,
    *,
    progress: Callable[[WarmProgress], object] = lambda _: None,
) -> WarmReport:
    """Fetch what is wanted, from the first origin that has it right. Run again, it goes on where it ended.

    What the origins sent wrong is never in the cache under an object's name. Raises CacheError; TagError for an unknown
    tag; what reading certificate and meta info raises.
    """
    cache.require()
    cache.require_member()
    return _Warm(cache, repository, origins, options, progress).run()


class _Warm:
    def __init__(
        self,
        cache: AlienCache,
        repository: Repository,
        origins: Sequence[Store],
        options: WarmOptions,
        progress: Callable[[WarmProgress], object],
    ) -> None:
        self.cache, self.repository, self.origins, self.options = cache, repository, origins, options
        self.progress = progress
        manifest = repository.manifest
        self.root = NestedRef("", manifest.root, manifest.root_size)
        self.crumb: Breadcrumb | None = Breadcrumb.of(manifest)
        revision = manifest.revision
        if options.tag is not None:
            tag = repository.tag(options.tag)
            self.root, revision, self.crumb = NestedRef("", tag.hash, tag.size), tag.revision, None
        self.report = WarmReport(str(cache), repository.fqrn, revision, str(self.root.hash), dry_run=options.dry_run)
        self.contents = contents.CacheContents()
        self.lock = threading.Lock()
        self.sums: list[str] = []
        self.done_bytes = 0
        self.next_report = 0.0

    def run(self) -> WarmReport:
        began = time.monotonic()
        if self.options.dry_run:
            self._plan(None)
            for number in range(256):
                for item in self.contents.in_shard(number):
                    self._count(item, present=not self._is_missing(item))
        else:
            self.cache.complete()
            with Claims(self.cache, "warm") as claims:
                try:
                    self._plan(claims)
                    self._fetch_all(claims)
                    self._place_catalogs(claims)
                finally:
                    self._write_sums()  # also of what a warm brought that fails: a next one finds it present
        self._tell(last=True)
        self.report.seconds = round(time.monotonic() - began, 3)
        return self.report

    # -- the plan

    def _plan(self, claims: Claims | None) -> None:
        chosen = contents.take_contents(
            self.contents, self.root, self.options.choice, lambda item: self._catalog(item, claims)
        )
        if not chosen:
            raise NOTHING_WANTED(self.cache, f"{self.report.repository} has nothing of what is asked for")
        self.report.objects, self.report.bytes = self.contents.objects, self.contents.bytes

    def _catalog(self, reference: NestedRef, claims: Claims | None) -> Catalog:
        """A catalog from the cache, from what a warm staged in it, or from an origin, into the staging folder."""
        for catalog in (self._staged(reference), self._cached(reference)):
            if catalog is not None:
                return catalog
        if claims is None:
            return Catalog.load(self._database(reference))
        name = f"catalog.{reference.hash}"
        while not claims.take(name):
            time.sleep(_LOOK_EVERY_S)  # another warm fetches it, perhaps on another machine: no event comes
            if (catalog := self._staged(reference)) is not None:
                return catalog
        try:
            if (catalog := self._staged(reference)) is not None:
                return catalog
            database = self._database(reference)
            with self.cache.writing() as (file, temporary):
                file.write(database)
                file.finish()
                temporary.replace(self._stage(reference))
        finally:
            claims.release(name)
        return _of_place(Catalog.load(database), reference)

    def _stage(self, reference: NestedRef) -> Path:
        return self.cache.path / STAGED / str(reference.hash)

    def _staged(self, reference: NestedRef) -> Catalog | None:
        try:
            return _of_place(Catalog.load(self._stage(reference).read_bytes()), reference)
        except (OSError, CvmfsError):
            return None

    def _cached(self, reference: NestedRef) -> Catalog | None:
        status = self.cache.status(reference.hash)
        if status is None or not reference.size or status.st_size != reference.size:
            return None
        catalog = contents.catalog_in(self.cache, reference.hash)
        try:
            return None if catalog is None else _of_place(catalog, reference)
        except CatalogError:
            return None

    def _database(self, reference: NestedRef) -> bytes:
        faults = []
        for store in self.origins:
            try:
                return CatalogCache(store, budget=0).database(reference.hash)
            except _FAULTS as fault:
                faults.append((store, fault))
        raise self._origin_failed(contents.catalog_name(reference), faults)

    # -- objects

    def _fetch_all(self, claims: Claims) -> None:
        """Fetch folder by folder, several at once; those that others have claimed come last."""
        numbers = [number for number in range(256) if self.contents.rows[number]]
        random.shuffle(numbers)
        claimed: list[int] = []
        asked_again = time.monotonic()
        with ThreadPoolExecutor(self.options.workers, "warm") as pool:
            running: dict[Future[bool], int] = {}
            try:
                while numbers or claimed or running:
                    if claimed and time.monotonic() - asked_again >= _LOOK_EVERY_S:
                        numbers, claimed, asked_again = claimed + numbers, [], time.monotonic()
                    while numbers and len(running) < self.options.workers:
                        number = numbers.pop()
                        running[pool.submit(self._fetch_shard, number, claims)] = number
                    if not running:
                        time.sleep(_LOOK_EVERY_S)  # all that is left is claimed by others: no event comes from there
                        continue
                    done, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
                    claimed += [running[future] for future in done if not future.result()]
                    for future in done:
                        del running[future]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _fetch_shard(self, number: int, claims: Claims) -> bool:
        missing = [item for item in self.contents.in_shard(number) if self._is_missing(item)]
        if missing and not claims.take(SHARDS[number]):
            return False
        try:
            fresh = {item.name.digest for item in missing if self._is_missing(item)}
            for item in self.contents.in_shard(number):
                if item.name.digest in fresh:
                    self._fetch(item)
                self._count(item, present=item.name.digest not in fresh)
                if self.options.renew and item.name.digest not in fresh:
                    self._renew(item.name)
            if fresh:
                self.cache.flush_folder(self.cache.path / SHARDS[number])
        except OSError as fault:
            raise refused(self.cache.path, fault) from fault
        finally:
            if missing:
                claims.release(SHARDS[number])
        return True

    def _is_missing(self, item: CatalogObject) -> bool:
        status = self.cache.status(item.name)
        if status is None:
            return True
        return (item.size is not None and status.st_size != item.size) or not self.cache.is_readable(status)

    def _fetch(self, item: CatalogObject) -> None:
        faults: list[tuple[Store, Exception]] = []
        for store in self.origins:
            try:
                self._fetch_from(store, item)
            except _FAULTS as fault:
                faults.append((store, fault))
            else:
                return
        raise self._origin_failed(item.name, faults)

    def _fetch_from(self, store: Store, item: CatalogObject) -> None:
        summed = hashlib.sha256() if item.compression is not Compression.NONE else None
        with self.cache.writing() as (file, temporary):
            for piece in objects.stream(store, item.name, item.compression, size=item.size or 0, block=_BLOCK):
                file.write(piece)
                if summed is not None:
                    summed.update(piece)
            file.finish()
            bad = self.cache.status(item.name) is not None and self._is_missing(item)
            self.cache.place(temporary, item.name, replaces=bad)
        with self.lock:
            self.report.replaced += bad
            if summed is not None:
                self.sums.append(f"{item.name} {summed.hexdigest()} {item.size}\n")

    def _renew(self, name: ObjectHash) -> None:
        try:
            os.utime(self.cache.path / place_of(name))
        except FileNotFoundError:
            return
        except PermissionError:
            with self.lock:
                note = "objects of other users could not be marked as wanted: warm as their owner"
                if note not in self.report.notes:
                    self.report.notes.append(note)

    def _count(self, item: CatalogObject, *, present: bool) -> None:
        size = item.size or 0
        with self.lock:
            self.report.present += present
            self.report.fetched += not present
            self.report.bytes_fetched += 0 if present else size
            self.done_bytes += size
        self._tell()

    def _tell(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if last or now >= self.next_report:
            self.next_report = now + _PROGRESS_EVERY_S
            report = self.report
            self.progress(WarmProgress(
                report.present + report.fetched, report.objects, self.done_bytes, report.bytes, report.bytes_fetched
            ))  # fmt: skip

    # -- the end

    def _place_catalogs(self, claims: Claims) -> None:
        """Give catalogs their names, the deepest first, then certificate and meta info, then the breadcrumb."""
        preloaded = self.report.repository in self.cache.preloaded()
        for item in reversed(self.contents.catalogs):
            if preloaded and not item.whole:
                self.crumb = None  # cvmfs_preload relies on what is below a catalog that is there
                continue
            self._place_catalog(item)
        if self.crumb is not None:
            self._place_breadcrumb(self.crumb, claims)
        for item in self.contents.catalogs:
            self._stage(item.reference).unlink(missing_ok=True)

    def _place_breadcrumb(self, crumb: Breadcrumb, claims: Claims) -> None:
        manifest = self.repository.manifest
        for name in (manifest.certificate, manifest.meta):
            # a client of 2.12 or 2.13 may have left one of 0 bytes
            if name is not None and not ((status := self.cache.status(name)) and status.st_size):
                content = objects.load(self.repository.store, name)
                with self.cache.writing() as (file, temporary):
                    file.write(content)
                    file.finish()
                    self.cache.place(temporary, name, replaces=True)
        claim = f"breadcrumb.{self.report.repository}"
        while not claims.take(claim):
            time.sleep(_LOOK_EVERY_S)  # another warm writes it
        try:
            self.report.breadcrumb = self.cache.leave_breadcrumb(self.report.repository, crumb)
        finally:
            claims.release(claim)

    def _place_catalog(self, item: contents.CatalogOfRevision) -> None:
        reference = item.reference
        status = self.cache.status(reference.hash)
        if status is not None and self._cached(reference) is not None and self.cache.is_readable(status):
            return
        try:
            database = self._stage(reference).read_bytes()
        except FileNotFoundError:
            database = self._database(reference)
        with self.cache.writing() as (file, temporary):
            file.write(database)
            file.finish()
            self.cache.place(temporary, reference.hash, replaces=True)
        self.cache.flush_folder(self.cache.path / place_of(reference.hash)[:2])
        self.sums.append(f"{reference.hash} {hashlib.sha256(database).hexdigest()} {len(database)}\n")
        self.report.catalogs += 1

    def _write_sums(self) -> None:
        if not self.sums:
            return
        place = self.cache.path / SUMS / f"{int(self.cache.now())}.{secrets.token_hex(8)}"
        with self.cache.writing() as (file, temporary):
            file.write("".join(self.sums).encode())
            file.finish()
            temporary.replace(place)

    def _origin_failed(self, name: ObjectHash, faults: Sequence[tuple[Store, Exception]]) -> NightshiftError:
        reasons = "; ".join(f"{store.url}: {fault}" for store, fault in faults)
        if all(isinstance(fault, NotFound | ObjectMissing) for _, fault in faults) and self._is_superseded():
            return REVISION_GONE(self.cache, f"no origin has {name.key} of revision {self.report.revision} any more")
        return ORIGIN_FAILED(self.cache, f"no origin sent {name.key} right ({reasons})")

    def _is_superseded(self) -> bool:
        try:
            newest = Manifest.parse(self.repository.store.get(manifests.KEY)).manifest
        except _FAULTS:
            return False
        return newest.root != self.root.hash


def _of_place(catalog: Catalog, reference: NestedRef) -> Catalog:
    if catalog.path != reference.path:
        raise CatalogError(reference.path, f"the catalog {reference.hash} mounted here was made for another place")
    return catalog
