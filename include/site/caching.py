"""Shared caches of the configuration: their state, warms, trims and verifications; each run is noted in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from include.aliencache.cache import AlienCache
from include.aliencache.contents import pinned_objects
from include.aliencache.errors import ORIGIN_BEHIND, ORIGIN_FAILED, CacheError
from include.aliencache.records import CacheRun, CacheRunKind, note_cache_run
from include.aliencache.scan import ages, scan
from include.aliencache.trim import TrimOptions, TrimReport, need_of, trim
from include.aliencache.verify import VerifyOptions, VerifyReport, expected_of, verify
from include.aliencache.warm import WarmOptions, WarmProgress, WarmReport, open_origin, warm
from include.cvmfs.revision.repository import Repository
from include.settings.caches import CacheSettings, UseOfObjects
from include.site.site import Site
from include.storage.open import open_store
from include.storage.store import Store

Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class CacheLook:
    """The state of a cache.

    Attributes:
        use: The way in which the last use is known; empty where the mount does not tell.
        above: Whether a mark is passed, so that a trim would begin.
        ages: Objects and bytes by days since their last use (`include.aliencache.scan.DAYS`).
    """

    cache: str
    objects: int
    bytes: int
    bytes_free: int
    bytes_total: int
    inodes_free: int | None
    use: str
    above: bool
    unreadable: int
    temporary: int
    foreign: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    other_group: tuple[str, ...] = ()
    breadcrumbs: dict[str, str | None] = field(default_factory=dict)
    preloaded: tuple[str, ...] = ()
    ages: list[tuple[int, int]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The state as a document."""
        return asdict(self)


def cache_of(settings: CacheSettings) -> AlienCache:
    """The cache of some settings."""
    return AlienCache(settings.path, settings.group)


def origins_of(site: Site, settings: CacheSettings, fqrn: str) -> list[Store]:
    """The servers that a cache's objects come from, in the order in which they are tried."""
    urls = [url.replace("@fqrn@", fqrn) for url in settings.origins]
    return [open_store(url) for url in urls or [site.settings.repository(fqrn).public_url]]


def repository_of(site: Site, settings: CacheSettings, fqrn: str) -> Repository:
    """A repository at the first of a cache's origins that can be trusted. Raises CacheError."""
    keys = [site.settings.repository(fqrn).public_key.read_bytes()]
    opened = partial(Repository.open, fqrn=fqrn, public_keys=keys)
    return open_origin(fqrn, origins_of(site, settings, fqrn), opened)


def look_at_cache(site: Site, name: str) -> CacheLook:
    """Look at a cache, and note it in the ledger. Raises CacheError."""
    settings = site.settings.cache(name)
    cache = cache_of(settings)
    cache.require()
    notes, use = [], UseOfObjects.AGE
    try:
        use = cache.use_known_by(settings.use)
        use_text = use.value
    except CacheError as fault:
        use_text = ""
        notes.append(str(fault))
    now = datetime.now(UTC).timestamp()
    shards = scan(cache, use, young_after=float("inf"))
    layout, space, used = cache.layout(), cache.space(), sum(sum(shard.sizes) for shard in shards)
    look = CacheLook(
        name, sum(map(len, shards)), used, space.bytes_free, space.bytes_total, space.inodes_free, use_text,
        bool(need_of(settings.marks, space, used)), sum(shard.unreadable for shard in shards),
        sum(len(shard.temporary) for shard in shards), (*layout.foreign, *_foreign(shards)), layout.missing,
        layout.other_group, {fqrn: str(crumb) if crumb else None for fqrn, crumb in cache.breadcrumbs().items()},
        tuple(cache.preloaded()), ages(shards, now), tuple(notes),
    )  # fmt: skip
    _note(site, name, CacheRunKind.LOOK, look.to_json())
    return look


def _foreign(shards: Sequence[Any]) -> list[str]:
    return [f"{shard.number:02x}/{name}" for shard in shards for name in shard.foreign]


def warm_cache(
    site: Site,
    name: str,
    fqrn: str,
    options: WarmOptions,
    *,
    progress: Callable[[WarmProgress], object] = lambda _: None,
) -> WarmReport:
    """Warm a cache with a revision of a repository, and note it in the ledger. Raises CacheError."""
    settings = site.settings.cache(name)
    _require_repository(settings, fqrn)
    options = replace(options, renew=settings.use is UseOfObjects.RECORD)
    repository = repository_of(site, settings, fqrn)
    if settings.origins:
        newest = site.repository(fqrn).manifest.revision
        if repository.manifest.revision < newest:
            what = f"{repository.store.url} has revision {repository.manifest.revision}, the repository {newest}"
            raise ORIGIN_BEHIND(settings.name, what)
    report = warm(cache_of(settings), repository, origins_of(site, settings, fqrn), options, progress=progress)
    _note(site, name, CacheRunKind.WARM, report.to_json())
    return report


def trim_cache(site: Site, name: str, *, dry_run: bool, progress: Progress = lambda *_: None) -> TrimReport:
    """Trim a cache if a mark is passed, and note it in the ledger. Raises CacheError."""
    settings = site.settings.cache(name)
    cache = cache_of(settings)
    cache.require()
    pins = pinned_objects(
        cache, settings.repositories, partial(repository_of, site, settings), settings.pins, dry_run=dry_run
    )
    options = TrimOptions(
        settings.marks, settings.use, settings.pins.hours, settings.preloaded == "catalogs-first", dry_run
    )
    report = trim(cache, options, pins, progress=progress)
    _note(site, name, CacheRunKind.TRIM, report.to_json())
    return report


def verify_cache(
    site: Site, name: str, options: VerifyOptions, *, progress: Progress = lambda *_: None
) -> VerifyReport:
    """Verify a cache, and note it in the ledger. Raises CacheError."""
    settings = site.settings.cache(name)
    cache, notes = cache_of(settings), list[str]()
    cache.require()
    repositories: dict[str, Repository | None] = {}
    for fqrn in settings.repositories:
        try:
            repositories[fqrn] = repository_of(site, settings, fqrn)
        except CacheError as fault:
            notes.append(str(fault))
            repositories[fqrn] = None
    expected = expected_of(repositories, notes)
    origins = [store for fqrn in settings.repositories for store in origins_of(site, settings, fqrn)]
    report = verify(cache, expected, origins, options, progress=progress)
    report.notes += notes
    _note(site, name, CacheRunKind.VERIFY, report.to_json())
    return report


def _require_repository(settings: CacheSettings, fqrn: str) -> None:
    if fqrn not in settings.repositories:
        listed = ", ".join(settings.repositories)
        raise ORIGIN_FAILED(settings.name, f"{fqrn} is not one of its repositories ({listed})")


def _note(site: Site, name: str, kind: CacheRunKind, report: dict[str, Any]) -> None:
    run = CacheRun(name, kind, datetime.now(UTC), bool(report.get("dry_run")), report)
    note_cache_run(site.ledger, run)
