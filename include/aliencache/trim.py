"""Trim a cache: take away what was used last longest ago, from its high mark down to its low one.

Several may trim at once, on any machines: each folder is claimed by one of them. The last use of an object is
read again right before it goes. Folders stay, links are not followed, temporary files go only when they are a day old.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from include.aliencache.cache import STAGED, AlienCache, Space
from include.aliencache.claims import Claims
from include.aliencache.contents import PinnedObjects, catalogs_in
from include.aliencache.errors import NO_MARKS, PRELOADED, refused
from include.aliencache.names import SHARDS, TXN
from include.aliencache.scan import (
    LATEST,
    MINUTE_S,
    Shard,
    ages,
    by_minute,
    in_threads,
    open_shard,
    scan,
    temporary_in_txn,
    use_of,
)
from include.json_values import JsonValue
from include.settings.caches import Marks, UseOfObjects

TEMPORARY_S = 24 * 3600.0
"""A temporary file goes when it was not written to for so long: a client that loses one ends its mount."""
REARMED = 20_000
"""So many objects near the line are re-armed by one trim."""
BY_OTHERS = "taken away by another trim"
_ROUNDS = 5
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes and objects to be taken away; nothing of it: no mark is passed."""

    bytes: int = 0
    objects: int = 0

    def __bool__(self) -> bool:
        return self.bytes > 0 or self.objects > 0


@dataclass(slots=True)
class TrimReport(JsonValue):
    """Outcome of a trim, or of a dry run, for which `removed` is what would go.

    Attributes:
        use: The way in which the last use is known.
        line: Unix s; what was used last before went. 0: nothing had to go.
        reasons: Objects by the reason for which they went or stayed.
        ages: Objects and bytes by days since their last use (`include.aliencache.scan.DAYS`).
    """

    cache: str
    dry_run: bool
    use: str
    began: str
    seconds: float = 0.0
    line: int = 0
    objects: int = 0
    bytes: int = 0
    removed: int = 0
    bytes_removed: int = 0
    catalogs_removed: int = 0
    temporary_removed: int = 0
    foreign: int = 0
    unreadable: int = 0
    rearmed: int = 0
    still_above: bool = False
    free_before: int = 0
    free_after: int = 0
    bytes_total: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    ages: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def need_of(marks: Marks, space: Space, used: int) -> Need:
    """Return what has to go, if a mark is passed. `used`: bytes of the cache."""
    size = objects = 0
    if marks.free_below is not None and marks.free_until is not None and space.bytes_free < marks.free_below:
        size = marks.free_until - space.bytes_free
    if marks.used_above is not None and marks.used_until is not None and used > marks.used_above:
        size = max(size, used - marks.used_until)
    passed = marks.inodes_below is not None and space.inodes_free is not None and space.inodes_free < marks.inodes_below
    if passed and marks.inodes_until is not None and space.inodes_free is not None:
        objects = marks.inodes_until - space.inodes_free
    return Need(size, objects)


def left_of(marks: Marks, need: Need, space: Space, used: int) -> Need:
    """Return what still has to go of a need: until the second marks, not only until the first."""
    size = objects = 0
    if need.bytes and marks.free_until is not None:
        size = max(0, marks.free_until - space.bytes_free)
    if need.bytes and marks.used_until is not None:
        size = max(size, used - marks.used_until)
    if need.objects and marks.inodes_until is not None and space.inodes_free is not None:
        objects = max(0, marks.inodes_until - space.inodes_free)
    return Need(max(0, size), objects)


@dataclass(frozen=True, slots=True)
class TrimOptions:
    """`hours`: objects that came less than so long ago stay. `catalogs_first`: of caches that are preloaded."""

    marks: Marks
    use: UseOfObjects = UseOfObjects.AUTO
    hours: float = 1.0
    catalogs_first: bool = False
    dry_run: bool = False


Progress = Callable[[str, int, int], object]


def trim(
    cache: AlienCache, options: TrimOptions, pins: PinnedObjects, *, progress: Progress = lambda *_: None
) -> TrimReport:
    """Trim if a mark is passed, and report; `progress` gets a step, what is done and the total. Raises CacheError."""
    cache.require()
    if not options.marks.any:
        raise NO_MARKS(cache, "it has no marks")
    return _Trim(cache, options, pins, progress).run()


class _Trim:
    def __init__(self, cache: AlienCache, options: TrimOptions, pins: PinnedObjects, progress: Progress) -> None:
        self.cache, self.options, self.pins, self.progress = cache, options, pins, progress
        self.use = cache.use_known_by(options.use)
        self.report = TrimReport(str(cache), options.dry_run, self.use.value, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
        self.report.notes += pins.notes
        self.reasons = Counter[str]()
        self.lock = threading.Lock()
        # what is no longer in the cache, and how much of that another trim took
        self.freed = self.gone = 0
        self.freed_by_others = self.gone_by_others = 0
        self.last_digest = b""

    def run(self) -> TrimReport:
        began, report, cache = time.monotonic(), self.report, self.cache
        now = cache.now()
        shards = scan(cache, self.use, young_after=now - self.options.hours * 3600)
        before = cache.space()  # after the scan: what others freed meanwhile need not go again
        report.free_before, report.bytes_total = before.bytes_free, before.bytes_total
        used = sum(sum(shard.sizes) for shard in shards)
        report.objects, report.bytes = sum(map(len, shards)), used
        report.foreign = sum(len(shard.foreign) for shard in shards)
        report.unreadable = sum(shard.unreadable for shard in shards)
        report.ages = ages(shards, now)
        need = need_of(self.options.marks, before, used)
        with nullcontext() if self.options.dry_run else Claims(cache, "trim") as claims:
            if need:
                self._make_room(shards, need, claims, used)
            self._remove_temporary(shards, now)
        after = cache.space()
        report.free_after = after.bytes_free
        if not self.options.dry_run:
            report.still_above = bool(need) and bool(need_of(self.options.marks, after, used - self.freed))
        else:
            report.still_above = bool(need) and (self.freed < need.bytes or self.gone < need.objects)
        report.removed, report.bytes_removed = self.gone - self.gone_by_others, self.freed - self.freed_by_others
        self.reasons["younger than the minimum age"] = sum(shard.young for shard in shards)
        report.reasons = {reason: count for reason, count in self.reasons.items() if count}
        report.seconds = round(time.monotonic() - began, 3)
        return report

    def _make_room(self, shards: list[Shard], need: Need, claims: Claims | None, used: int) -> None:
        if preloaded := self.cache.preloaded():
            if not self.options.catalogs_first:
                raise PRELOADED(self.cache, f"cvmfs_preload fills it with {', '.join(preloaded)}")
            if self.pins.origins_away:
                raise PRELOADED(
                    self.cache, f"cvmfs_preload fills it, and no origin of {self.pins.origins_away[0]} answers"
                )
            self._remove_catalogs(preloaded)
        left = need
        for _ in range(_ROUNDS):
            line, self.last_digest = line_of(shards, left, self.pins)
            if not line:
                break
            self.report.line = max(self.report.line, line)
            self._remove_up_to(shards, line, claims)
            if self.options.dry_run:
                return
            left = self._left(need, used)
            if not left:
                break
        if self.use is UseOfObjects.RELATIME:
            self._rearm(shards, need)

    def _left(self, need: Need, used: int) -> Need:
        """Return what still has to go. Others may have freed space; that of files that are open comes back later."""
        left = left_of(self.options.marks, need, self.cache.space(), used - self.freed)
        return Need(
            max(0, min(left.bytes, need.bytes - self.freed)), max(0, min(left.objects, need.objects - self.gone))
        )

    def _remove_up_to(self, shards: list[Shard], line: int, claims: Claims | None) -> None:
        """Take away what was used last before a time. Folders that another trim has claimed are waited for."""
        waiting = [shard for shard in shards if len(shard)]
        while waiting:
            outcome = in_threads(lambda shard: self._remove_in(shard, line, claims), waiting)
            waiting = [shard for shard, done in zip(waiting, outcome, strict=True) if not done]
            if waiting:
                time.sleep(_LOOK_EVERY_S)  # another machine holds them, from which no event comes

    def _remove_in(self, shard: Shard, line: int, claims: Claims | None) -> bool:
        if claims is None:
            self._choose_in(shard, line, -1)
            return True
        name = SHARDS[shard.number]
        if not claims.take(name):
            return False
        try:
            descriptor = open_shard(self.cache, name)
        except FileNotFoundError:
            claims.release(name)
            return True
        try:
            self._choose_in(shard, line, descriptor)
        except OSError as fault:
            raise refused(self.cache.path, fault) from fault
        finally:
            os.close(descriptor)
            claims.release(name)
        return True

    def _choose_in(self, shard: Shard, line: int, descriptor: int) -> None:
        reasons, pins, gone = Counter[str](), self.pins or (), 0
        for place, used in enumerate(shard.times):
            if not used or used > line:
                continue
            if pins and shard.digest(place) in pins:
                reasons["pinned"] += 1
                continue
            if used > line - MINUTE_S and shard.digest(place) > self.last_digest:
                continue
            self._count(shard.sizes[place])
            if descriptor >= 0 and (reason := self._remove(shard, place, descriptor)):
                self._count_back(shard.sizes[place], by_others=reason == BY_OTHERS)
                reasons[reason] += 1
                continue
            shard.times[place] = 0
            gone += 1
        reasons[f"not used since {datetime.fromtimestamp(line, UTC):%Y-%m-%d %H:%M} UTC"] += gone
        with self.lock:
            self.reasons += reasons
            self.progress("objects removed", self.gone, 0)

    def _count(self, size: int) -> None:
        with self.lock:
            self.freed += size
            self.gone += 1

    def _count_back(self, size: int, *, by_others: bool) -> None:
        with self.lock:
            if by_others:
                self.freed_by_others += size
                self.gone_by_others += 1
            else:
                self.freed -= size
                self.gone -= 1

    def _remove(self, shard: Shard, place: int, descriptor: int) -> str:
        """Take one object away; else the reason why it stays."""
        name = shard.file_name(place)
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return "no regular file"
            if use_of(status, self.use) > shard.times[place]:
                shard.times[place] = min(use_of(status, self.use), LATEST)
                return "used meanwhile"
            os.unlink(name, dir_fd=descriptor)
        except FileNotFoundError:
            shard.times[place] = 0
            return BY_OTHERS
        return ""

    def _remove_catalogs(self, preloaded: list[str]) -> None:
        """Take all catalogs of preloaded revisions away, also pinned ones, before any object below them."""
        crumbs = self.cache.breadcrumbs()
        roots = [crumb.root for fqrn in preloaded if (crumb := crumbs.get(fqrn)) is not None]
        for name in list(catalogs_in(self.cache, roots)):
            self.report.catalogs_removed += 1
            if not self.options.dry_run:
                self.cache.remove(name)

    def _remove_temporary(self, shards: list[Shard], now: float) -> None:
        before = now - TEMPORARY_S
        old = [f"{SHARDS[shard.number]}/{name}" for shard in shards for name, time in shard.temporary if time < before]
        old += [f"{TXN}/{name}" for name, time in temporary_in_txn(self.cache) if time < before]
        self.report.temporary_removed = len(old)
        if self.options.dry_run:
            return
        for name in old:
            self.cache.remove_file(name)
        for left in (self.cache.path / STAGED).glob("*"):
            with suppress(OSError):
                if left.stat().st_mtime < before:
                    left.unlink()

    def _rearm(self, shards: list[Shard], need: Need) -> None:
        """Have the next read of objects near the line seen: relatime moves an access time only after a change."""
        line, _ = line_of(shards, need, self.pins)
        near = [(shard, place) for shard in shards for place, used in enumerate(shard.times) if used and used <= line]
        refusals = 0
        for shard, place in near[:REARMED]:
            path = self.cache.path / SHARDS[shard.number] / shard.file_name(place)
            try:
                status = path.lstat()
                if status.st_atime_ns > status.st_ctime_ns:
                    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
                    self.report.rearmed += 1
            except FileNotFoundError:
                continue
            except PermissionError:
                refusals += 1
            except OSError as fault:
                raise refused(self.cache.path, fault) from fault
        if refusals:
            self.report.notes.append(
                f"{refusals} objects of other users could not be re-armed: a use within a day of the one before is not "
                "seen; run the trim as their owner"
            )


def line_of(shards: list[Shard], need: Need, pins: PinnedObjects) -> tuple[int, bytes]:
    """Unix s such that enough was used last then or before, and the digest up to which objects of the last minute go.

    The minutes are sorted, not the objects. All who trim at once choose the same ones of the last minute.
    """
    if not need:
        return 0, b""
    counts, sizes = by_minute(shards, pins)
    counts.pop(-1, None)
    minute = 0
    for minute in sorted(counts):
        if sizes[minute] >= need.bytes and counts[minute] >= need.objects:
            break
        need = Need(need.bytes - sizes[minute], need.objects - counts[minute])
    if not counts:
        return 0, b""
    last = b""
    for shard in shards:
        places = [place for place, used in enumerate(shard.times) if used and used // MINUTE_S == minute]
        for digest, size in sorted((shard.digest(place), shard.sizes[place]) for place in places):
            if digest in pins:
                continue
            if not need:
                return (minute + 1) * MINUTE_S - 1, last
            last, need = digest, Need(need.bytes - size, need.objects - 1)
    return (minute + 1) * MINUTE_S - 1, last
