"""The mark and the condemned: roots that are kept and why, and the objects that go, of all that nothing needs.

They go by age, by careful mode, and only if it is not suspiciously much.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from include.cvmfs import errors
from include.cvmfs.collect.report import (
    LISTING_EVERY,
    SEVENTHS,
    TWICE,
    CollectionRecord,
    CollectionReport,
    CollectionRules,
    LostObject,
)
from include.cvmfs.collect.scan import CatalogNames, ScanCache, Shards, joined, line_of, split, walk
from include.cvmfs.collect.sweep import Named
from include.cvmfs.coordination.condemned import SHARDS, Index, hashes_in, read_index, read_shard, records_of
from include.cvmfs.coordination.generation import ORPHAN_GRACE
from include.cvmfs.format.database import Ref, RefType
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, META, ObjectHash, hash_of_key
from include.storage.store import ObjectMeta, Store


@dataclass(frozen=True, slots=True)
class RootDecision:
    """Decision on a root catalog. ``superseded``: Unix s; None for the current revision and for tags.

    ``tagged``: a tag names it. ``held``: only that protects it. ``published``: it is or was a revision, and not the
    root of a commit that is under way, was stopped or died.
    """

    root: ObjectHash
    keep: bool
    reason: str
    superseded: int | None = None
    tagged: bool = False
    held: bool = False
    published: bool = True


@dataclass(frozen=True, slots=True)
class RootPlan:
    """The decisions of one collection. ``histories``: those that go."""

    decisions: tuple[RootDecision, ...]
    histories: tuple[ObjectHash, ...]

    @property
    def kept(self) -> tuple[ObjectHash, ...]:
        return tuple(decision.root for decision in self.decisions if decision.keep)

    @property
    def revisions(self) -> tuple[ObjectHash, ...]:
        """Return those of :attr:`kept` that readers were given; a stopped commit takes others out of the reflog
        again."""
        return tuple(decision.root for decision in self.decisions if decision.keep and decision.published)

    @property
    def condemned(self) -> tuple[ObjectHash, ...]:
        return tuple(decision.root for decision in self.decisions if not decision.keep)

    def after(self, earlier: RootPlan, history: ObjectHash | None) -> RootPlan:
        """This plan, made later in the same collection: only what was condemned then can go.

        What was condemned by its age stays condemned, unless it is the current revision or a tag names it by now. What
        came since, or lost its tag since, was not marked as condemned and is left for the next time. ``history``: the
        current one.
        """
        condemned = {root.digest for root in earlier.condemned}
        decisions = []
        for decision in self.decisions:
            if decision.root.digest not in condemned:
                decisions.append(replace(decision, keep=True))
            elif decision.keep and (decision.tagged or decision.superseded is None):
                decisions.append(decision)
            else:
                decisions.append(replace(decision, keep=False))
        return RootPlan(
            tuple(decisions), tuple(kept_history for kept_history in earlier.histories if kept_history != history)
        )

    @property
    def next_superseded(self) -> int | None:
        """When the first of the kept roots was superseded that only their age protects (Unix s)."""
        aging = [
            decision.superseded
            for decision in self.decisions
            if decision.keep and not decision.tagged and decision.superseded is not None
        ]
        return min(aging, default=None)


def decide_roots(
    refs: Sequence[Ref], *, current: ObjectHash, tags: Mapping[ObjectHash, Collection[str]], history: ObjectHash | None,
    cutoff: int, published: Mapping[bytes, bytes | None],
) -> RootPlan:  # fmt: skip
    """Decide for all roots of a reflog.

    A root stays if it is the current one, if a tag names it, or if it was superseded after ``cutoff`` (Unix s): a
    reader may be on a revision until the next one was published, however old the revision itself is. ``tags``: root to
    names. ``history``: the current one. A tagged root that the reflog lacks stays as well. ``published``: the roots
    that were revisions, digest to that of the next one: a commit that died leaves others in the reflog, which supersede
    nothing. What is decided of a root does not change when others are added, but for tags: it may be gone by then.
    """
    written_at = {ref.hash.digest: ref.timestamp for ref in refs if ref.type is RefType.CATALOG}
    times = sorted(written_at[root] for root in published if root in written_at)
    decisions = [RootDecision(current, True, "the current revision")]
    decided = {current.digest}

    def superseded(root: ObjectHash) -> int:
        after = published.get(root.digest)
        return max(written_at.get(root.digest, 0), written_at.get(after, 0) if after is not None else 0)

    for root, names in tags.items():
        if root.digest not in decided:
            held = superseded(root) <= cutoff
            decisions.append(RootDecision(root, True, f"named by tag {min(names)}", tagged=True, held=held))
            decided.add(root.digest)
    for ref in refs:
        if ref.type is not RefType.CATALOG or ref.hash.digest in decided:
            continue
        decided.add(ref.hash.digest)
        since, was_revision = superseded(ref.hash), ref.hash.digest in published
        keep, when = (True, "within") if since > cutoff else (False, "before")
        reason = f"superseded {when} the grace"
        decisions.append(RootDecision(ref.hash, keep, reason, since, published=was_revision))
    # A client reads the history that its manifest names. An old one is needed as long as the revision that was the
    # current one before the next was written, since that one may have been written by a commit that died.
    written = sorted({ref.timestamp for ref in refs if ref.type is RefType.HISTORY})
    gone = [
        ref.hash for ref in refs
        if ref.type is RefType.HISTORY and (history is None or ref.hash.digest != history.digest)
        and _superseded(written, times, ref.timestamp, cutoff)
    ]  # fmt: skip
    return RootPlan(tuple(decisions), tuple(gone))


def _superseded(written: Sequence[int], times: Sequence[int], timestamp: int, cutoff: int) -> bool:
    """Tell whether by ``cutoff`` a later history was written, and then a revision published."""
    place = bisect_right(written, timestamp)
    if place == len(written):
        return False
    after = bisect_left(times, written[place])
    return after < len(times) and max(times[after], written[place]) <= cutoff


def plan_roots(cache: ScanCache, named: Named, cutoff: int, on_step: Callable[[], None] = lambda: None) -> RootPlan:
    """Return what becomes of each root; ``cutoff``: Unix s. Raises StoreError."""
    tags: dict[ObjectHash, list[str]] = {}
    for tag in named.tags:
        tags.setdefault(tag.hash.with_suffix(CATALOG), []).append(tag.name)
    manifest = named.manifest
    roots = [ref.hash for ref in named.refs if ref.type is RefType.CATALOG]
    published = line_of(cache, [manifest.root, *tags], roots, on_step)
    return decide_roots(
        named.refs, current=manifest.root, tags=tags, history=manifest.history, cutoff=cutoff, published=published
    )


class Marking:
    """Objects that roots name: ``gone`` the condemned ones, ``held`` those that only tags protect, ``kept`` all others.

    ``copies``: of files that lie elsewhere; they may be absent, and are no orphans.
    ``seen``: digests of preserved catalogs.
    """

    def __init__(self, cache: ScanCache, folder: Path, report: CollectionReport, on_step: Callable[[], None]) -> None:
        self._cache = cache
        self._folder = folder
        self._report = report
        self._on_step = on_step
        names = ("kept", "held", "gone", "copies")
        self.kept, self.held, self.gone, self.copies = (Shards(folder, name) for name in names)
        self.seen = set[bytes]()

    def mark(self, named: Named, plan: RootPlan) -> None:
        """Read what every root names. Raises CollectionRefused for a catalog that must stay and cannot be read."""
        self._keep(named, plan, [decision for decision in plan.decisions if not decision.held], self.kept)
        self._keep(named, plan, [decision for decision in plan.decisions if decision.held], self.held)
        walk(
            self._cache, plan.condemned, set(self.seen),
            lambda name, names: _take(self.gone, name, names), absent=self._unread, on_step=self._on_step,
        )  # fmt: skip
        self.gone.add_records(split(records_of(plan.histories)))
        self._report.catalogs, self._report.catalogs_fetched = len(self.seen), self._cache.fetched
        self._report.entries = self.kept.added + self.held.added + self.gone.added

    def newer(self, named: Named, plan: RootPlan) -> Shards:
        """Return what roots name that came after :meth:`mark`. Raises CollectionRefused."""
        extra = Shards(self._folder, "newer")
        self._keep(named, plan, plan.decisions, extra)
        for number in range(SHARDS):
            extra.put(number, self.copies.raw(number))
        return extra

    def _keep(self, named: Named, plan: RootPlan, decisions: Iterable[RootDecision], into: Shards) -> None:
        kept = [decision for decision in decisions if decision.keep]

        def take(name: ObjectHash, names: CatalogNames) -> None:
            _take(into, name, names)
            self.copies.add_records(split(bytes(names.elsewhere)))

        revisions = (decision.root for decision in kept if decision.published)
        try:
            walk(self._cache, revisions, self.seen, take, on_step=self._on_step)
        except errors.CollectionBusy:
            raise
        except errors.CvmfsError as fault:
            raise _unreadable(fault, named) from fault
        # Readers never get the others. A commit that is stopped is stopped because its objects may be gone.
        others = (decision.root for decision in kept if not decision.published)
        walk(self._cache, others, self.seen, take, absent=lambda *_: None, on_step=self._on_step)
        into.add_records(split(records_of(_beside_catalogs(named, plan))))

    def _unread(self, name: ObjectHash, fault: Exception) -> None:
        """A missing catalog was collected before; what else cannot be read goes, and what it names becomes orphans."""
        if not isinstance(fault, errors.ObjectMissing):
            self._report.notes.append(f"condemned catalog {name} cannot be read: {fault}")
            self.gone.add_records(split(records_of([name.with_suffix(CATALOG)])))


def _beside_catalogs(named: Named, plan: RootPlan) -> Iterable[ObjectHash]:
    """Certificates and meta infos are few, and always stay; histories as long as they are read."""
    manifest, gone = named.manifest, {history.digest for history in plan.histories}
    yield from (hash_ for hash_ in (manifest.certificate, manifest.history, manifest.meta) if hash_ is not None)
    for ref in named.refs:
        if ref.type is not RefType.CATALOG and ref.hash.digest not in gone:
            yield ref.hash


def _take(into: Shards, name: ObjectHash, names: CatalogNames) -> None:
    into.add(names.records, names.offsets)
    into.add_records([records_of([name.with_suffix(CATALOG)])])


def _unreadable(fault: errors.CvmfsError, named: Named) -> errors.CollectionRefused:
    fqrn = named.manifest.fqrn
    hint = f"run: nightshift repo check {fqrn}"
    if isinstance(fault, errors.ObjectError):
        names = [tag.name for tag in named.tags if tag.hash.with_suffix(CATALOG).key == fault.key]
        if names:
            hint = f"tag {names[0]!r} names it: restore the object, or remove the tag"
    return errors.CollectionRefused(fqrn, f"a catalog that must stay cannot be read ({fault})", hint=hint)


SMALL = 1000  # objects; the brake is for more
_NEVER = {CERTIFICATE.encode(), META.encode()}
_SUFFIX = slice(20, 21)
_UNREADABLE = (errors.ObjectMissing, errors.ObjectDamaged, errors.FormatError)


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
        except errors.FormatError:
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
        """Return what was condemned once. A list that is lost only delays what is on it: its waiting time begins
        again."""
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
        listed = _listed(self._store, number)
        self._report.names_listed += len(listed.objects)
        old = listed.older_than(now - ORPHAN_GRACE)
        orphans = {
            record for record in old - keep - gone - marking.copies.shard(number) if record[_SUFFIX] not in _NEVER
        }
        self._report.orphans += len(orphans)
        self._report.bytes_held += sum(listed.objects[record].size for record in held & listed.objects.keys())
        self._note_lost(listed, keep)
        goes = (gone & listed.objects.keys()) | orphans
        self._report.bytes_known += len(goes)
        self._report.bytes_deleted += sum(listed.objects[record].size for record in goes)
        return goes

    def _note_lost(self, listed: Listed, keep: set[bytes]) -> None:
        lost = self._report.lost
        for name in hashes_in(joined(keep - listed.objects.keys())):
            if (stored := self._store.head(name.key)) is None:  # it may have come since the listing
                lost.append(LostObject(name.key, None))
            elif stored.size == 0:
                lost.append(LostObject(name.key, 0))
        for name in hashes_in(
            joined(record for record in keep & listed.objects.keys() if not listed.objects[record].size)
        ):
            lost.append(LostObject(name.key, 0))

    def _require_preserved(self) -> None:
        last, kept = self._record.last, self._report.objects_kept
        if last is None or last.objects < SMALL or kept >= last.objects * (1 - self._rules.largest_loss):
            return
        what = f"{kept} objects would stay, {last.objects} stayed at the last collection"
        if not self._rules.accept:
            raise errors.CollectionRefused(
                self._report.fqrn, f"{what}: {1 - kept / last.objects:.0%} less",
                hint="if that is right, accept it by --accept REASON",
            )  # fmt: skip
        self._report.notes.append(f"{what}; accepted: {self._rules.accept}")
