"""What goes, of all that nothing needs: by age, by careful mode, and only if it is not suspiciously much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.cvmfs.collect.mark import Marking
from include.cvmfs.collect.record import SEVENTHS, CollectionRecord
from include.cvmfs.collect.report import CollectionReport, LostObject
from include.cvmfs.collect.rules import LISTING_EVERY, TWICE, CollectionRules
from include.cvmfs.collect.shards import Shards, joined, split
from include.cvmfs.coordination.condemned import SHARDS, Index, hashes_in, read_index, read_shard, records_of
from include.cvmfs.coordination.generation import ORPHAN_GRACE
from include.cvmfs.errors import CollectionRefused, FormatError, ObjectDamaged, ObjectMissing
from include.cvmfs.format.digests import hash_of_key
from include.cvmfs.format.hashes import CERTIFICATE, META
from include.storage.store import ObjectMeta, Store

SMALL = 1000  # objects; the brake is for more
_NEVER = {CERTIFICATE.encode(), META.encode()}
_SUFFIX = slice(20, 21)
_UNREADABLE = (ObjectMissing, ObjectDamaged, FormatError)


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects by record. ``others``: keys there that name no object; they are left alone."""

    objects: Mapping[bytes, ObjectMeta]
    others: int

    def older_than(self, limit: datetime) -> set[bytes]:
        return {record for record, meta in self.objects.items() if meta.modified < limit}


def _listed(store: Store, number: int) -> Listed:
    """List one of the 256 folders below ``data``. Raises StoreError."""
    objects, others = dict[bytes, ObjectMeta](), 0
    for meta in store.list(f"data/{number:02x}"):
        try:
            objects[records_of([hash_of_key(meta.key)])] = meta
        except FormatError:
            others += 1
    return Listed(objects, others)


class Weighing:
    """``doomed``: what goes now. ``once``: what careful mode lets go at a later collection, if condemned again."""

    def __init__(
        self, store: Store, folder: Path, record: CollectionRecord, rules: CollectionRules, report: CollectionReport
    ) -> None:
        self._store = store
        self._record = record
        self._rules = rules
        self._report = report
        self.doomed, self.once = Shards(folder, "doomed"), Shards(folder, "once")
        self.once_since: datetime | None = None
        self.listed: frozenset[int] = frozenset()
        """The shards that were looked through for orphans by their turn."""

    def weigh(self, marking: Marking, now: datetime, on_step: Callable[[int], None]) -> None:
        """Decide shard by shard. Raises CollectionRefused where too much would go, StoreError."""
        record, rules, report = self._record, self._rules, self._report
        if rules.all_orphans:
            self.listed = frozenset(range(SHARDS))
        elif record.listed is None or now - record.listed >= LISTING_EVERY:
            self.listed = frozenset(range(record.seventh, SHARDS, SEVENTHS))
        report.careful = rules.is_careful(record.total)
        once = self._once() if report.careful else None
        again = once is not None and record.once_since is not None and now - record.once_since >= TWICE
        self.once_since = now if once is None or again else record.once_since
        for number in range(SHARDS):
            before = self._before(once, number) if once is not None else set()
            goes = condemned = self._condemned(number, marking, before, now)
            if report.careful:
                goes = condemned & before if again else set()
                later = condemned - goes if again or once is None else condemned & before
                self.once.put(number, joined(later))
            self.doomed.put(number, joined(goes))
            on_step(number)
        report.condemned, report.once = self.doomed.added, self.once.added
        self._require_preserved()

    def _once(self) -> Index | None:
        """What was condemned once. A list that is lost only delays what is on it: its waiting time begins again."""
        if self._record.once is None:
            return None
        try:
            return read_index(self._store, self._record.once)
        except _UNREADABLE as fault:
            self._report.notes.append(f"objects that were condemned once wait from the start again: {fault}")
            return None

    def _before(self, once: Index, number: int) -> set[bytes]:
        try:
            return split(read_shard(self._store, once, number))
        except _UNREADABLE as fault:
            self._report.notes.append(f"objects that were condemned once wait from the start again: {fault}")
            return set()

    def spare(self, newer: Shards, folder: Path) -> int:
        """Take off what is needed after all; how many objects that are."""
        left, spared = Shards(folder, "left"), 0
        for number in range(SHARDS):
            doomed = split(self.doomed.raw(number))
            stay = doomed & newer.shard(number)
            spared += len(stay)
            left.put(number, joined(doomed - stay))
        self.doomed = left
        return spared

    def _condemned(self, number: int, marking: Marking, before: set[bytes], now: datetime) -> set[bytes]:
        keep = marking.kept.shard(number)
        held = marking.held.shard(number) - keep
        keep |= held
        gone = marking.gone.shard(number) - keep
        self._report.held += len(held)
        self._report.objects_kept += len(keep)
        # An orphan that was condemned once is condemned again only if it is still old: it may have been sent again.
        if number not in self.listed and not before - keep - gone:
            return gone
        found = _listed(self._store, number)
        self._report.names_listed += len(found.objects)
        old = found.older_than(now - ORPHAN_GRACE)
        orphans = {
            record for record in old - keep - gone - marking.copies.shard(number) if record[_SUFFIX] not in _NEVER
        }
        self._report.orphans += len(orphans)
        self._report.bytes_held += sum(found.objects[record].size for record in held & found.objects.keys())
        self._note_lost(found, keep)
        goes = (gone & found.objects.keys()) | orphans
        self._report.bytes_known += len(goes)
        self._report.bytes_deleted += sum(found.objects[record].size for record in goes)
        return goes

    def _note_lost(self, found: Listed, keep: set[bytes]) -> None:
        lost = self._report.lost
        for name in hashes_in(joined(keep - found.objects.keys())):
            if (there := self._store.head(name.key)) is None:  # it may have come since the listing
                lost.append(LostObject(name.key, None))
            elif there.size == 0:
                lost.append(LostObject(name.key, 0))
        for name in hashes_in(
            joined(record for record in keep & found.objects.keys() if not found.objects[record].size)
        ):
            lost.append(LostObject(name.key, 0))

    def _require_preserved(self) -> None:
        last, kept = self._record.last, self._report.objects_kept
        if last is None or last.objects < SMALL or kept >= last.objects * (1 - self._rules.largest_loss):
            return
        what = f"{kept} objects would stay, {last.objects} stayed at the last collection"
        if not self._rules.accept:
            raise CollectionRefused(
                self._report.fqrn, f"{what}: {1 - kept / last.objects:.0%} less",
                hint="if that is right, accept it by --accept REASON",
            )  # fmt: skip
        self._report.notes.append(f"{what}; accepted: {self._rules.accept}")


def next_listing(record: CollectionRecord) -> datetime | None:
    """When a seventh of the names is to be looked through again; None: at once."""
    return None if record.listed is None else record.listed + LISTING_EVERY


def next_second(record: CollectionRecord) -> datetime | None:
    """When what was condemned once may go; None if nothing was."""
    return None if record.once is None or record.once_since is None else record.once_since + TWICE
