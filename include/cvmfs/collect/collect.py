"""A garbage collection of one repository, step by step (docs/decisions, 9).

``begin``, ``mark``, ``condemn``, ``spare``, ``sweep``, ``end``. Until the sweep nothing is deleted, and one that dies
is begun again by another process after the takeover time. A sweep is only ever finished, by its own list.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

from include.cvmfs import errors
from include.cvmfs.collect.report import (
    KEY as RECORD_KEY,
    LISTING_EVERY,
    SEVENTHS,
    TWICE,
    CollectionReport,
    CollectionRules,
    Ended,
    LostObject,
    NotDue,
    read_record,
)
from include.cvmfs.collect.scan import ScanCache, WorkingFolder, joined
from include.cvmfs.collect.sweep import OVERTAKEN, Claim, Named, SwitchingSide, note_collection, sweep
from include.cvmfs.collect.weigh import Marking, RootPlan, Weighing, plan_roots
from include.cvmfs.coordination import generation as generations
from include.cvmfs.coordination.condemned import PREFIX, SHARDS, hashes_in, key_of, read_index, records_of, store_shards
from include.cvmfs.coordination.generation import CLOCK_SKEW, ORPHAN_GRACE, CollectionPhase, CollectionStep, look
from include.cvmfs.format.hashes import CATALOG, HISTORY, ObjectHash
from include.cvmfs.format.manifest import alternative_key
from include.cvmfs.format.objects import Hasher
from include.storage.errors import Conflict, NotFound, StoreError
from include.storage.store import Store

_LOG_TIME = "%a %b %d %H:%M:%S %Y"
_AUDITED_SHARDS = 8
_FENCES = 20  # each makes several attempts


class GarbageCollection:
    """``store``: the repository's, by the collector's key. ``folder``: keeps what catalogs name, for the next time.

    ``progress`` is called with a step's name, how much is done, and of how much. A ``dry_run`` writes nothing: of it,
    call ``mark`` and ``condemn`` only. Not for several threads at once. Use it as a context: its working files go at
    the end.
    """

    def __init__(
        self,
        store: Store,
        side: SwitchingSide,
        *,
        folder: Path,
        rules: CollectionRules | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        progress: Callable[[str, int, int], None] = lambda *_: None,
        dry_run: bool = False,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.fqrn = side.fqrn
        self.report = CollectionReport(self.fqrn, started=now(), dry_run=dry_run)
        self._store = store
        self._side = side
        self._rules = rules or CollectionRules()
        self._now = now
        self._progress = progress
        self._cache = ScanCache(store, folder / "scans")
        self._working = WorkingFolder(folder)
        self._claim = Claim(store, self.fqrn, now)
        self._marking = Marking(self._cache, self._work, self.report, self._claim.keep)
        self._read_record()
        self._plan = RootPlan((), ())
        self._named: Named | None = None
        self._cutoff = 0

    def __enter__(self) -> GarbageCollection:
        return self

    def __exit__(self, *_: object) -> None:
        self._working.close()

    # -- the steps

    def not_due(self) -> NotDue | None:
        """Return why there is nothing to do; None if a root, an orphan or what was condemned once can be deleted by
        now.

        Raises ReflogError, StoreError.
        """
        now, record, generation = self._now(), self._record, look(self._store).generation
        if generation is None or generation.phase is not CollectionPhase.IDLE:
            return None
        if record.listed is None or self._rules.all_orphans:
            return None
        try:
            plan = plan_roots(self._cache, self._side.read(), self._cut(now))
        except errors.ReflogError:
            return None
        due = [record.listed + LISTING_EVERY]  # when another part of the names is looked through
        if record.once is not None and record.once_since is not None:
            due.append(record.once_since + TWICE)
        if plan.next_superseded is not None:
            due.append(datetime.fromtimestamp(plan.next_superseded, UTC) + self._rules.grace)
        if plan.condemned or plan.histories or min(due) <= now:
            return None
        return NotDue("no revision left its grace and no orphan became deletable since the last collection", min(due))

    def begin(self) -> bool:
        """Claim the collection; False if one that died in its sweep is to be finished first: go on with ``sweep``.

        Raises CollectionBusy while another is at work, CollectionRefused for clocks that cannot be right, StoreError.
        """
        self._require_time()
        before = self._claim.take()
        self._read_record()  # another collection may have ended since this one was made
        self.report.number = self._claim.document.number
        self._require_clock_of_store()
        if self._claim.document.phase is CollectionPhase.SWEEPING:
            self.report.resumed = True
            since = before.generation.since if before.generation is not None else self._now()
            self.report.notes.append(f"the sweep that made no progress since {since:%Y-%m-%d %H:%M} UTC is finished")
            return False
        return True

    def mark(self) -> None:
        """Find what must stay, and what only condemned roots name.

        Raises CollectionBusy when another took over, CollectionRefused for what cannot be right, StoreError, and
        OSError where the local disk is full.
        """
        with self._timed("mark"):
            self._claim.keep()  # the record of one that stood still since its beginning may be out of date
            self._named = named = self._read()
            self._require_roots(named)
            self._cutoff = self._cut(self._now())
            self._plan = plan = plan_roots(self._cache, named, self._cutoff, self._claim.keep)
            self.report.roots_kept, self.report.roots_condemned = len(plan.kept), len(plan.condemned)
            self.report.reasons.update(
                "named by a tag" if decision.tagged else decision.reason for decision in plan.decisions
            )
            self._marking.mark(named, plan)

    def condemn(self) -> bool:
        """Decide what goes, and publish its list; False if nothing does, or in a dry run: then ``end``.

        Raises CollectionRefused where too much would go, StoreError.
        """
        with self._timed("weigh"):
            self._weighing.weigh(self._marking, self._now(), self._weighed)
        if self.report.dry_run or not self._weighing.doomed.added:
            return False
        self._claim.move(CollectionStep.CONDEMN, condemned=self._stored_list())
        return True

    def spare(self) -> None:
        """The barrier; then what newer revisions need comes off the list, and the shorter one is published.

        Raises CollectionRefused, ManifestConflict, StoreError.
        """
        with self._timed("barrier"):
            self._fence()
        with self._timed("spare"):
            named, name = self._side.read(), self._claim.document.condemned
            plan = plan_roots(self._cache, named, self._cutoff, self._claim.keep).after(
                self._plan, named.manifest.history
            )
            self.report.spared = self._weighing.spare(self._marking.newer(named, plan), self._work)
            if self.report.spared:
                name = self._stored_list()
            self._named, self._plan = named, plan
        self._claim.move(CollectionStep.SWEEP, condemned=name)

    def sweep(self, log: TextIO | None = None) -> None:
        """Delete what is on the list that is out. ``log``: the deletion log, in the stock form.

        What the store refuses is tried three times, then in ``report.failed``. Raises CollectionBusy when another took
        over, StoreError, and ObjectMissing, ObjectDamaged or FormatError for a list that cannot be read.
        """
        name = self._claim.document.condemned
        if name is None:
            raise ValueError("no list is out")
        free = self._store.free_bytes()
        with self._timed("sweep"):
            index = read_index(self._store, name)
            alternatives = self._side.manifest().alt_paths
            if log is not None:
                log.write(f"# Garbage Collection started at {self._now():{_LOG_TIME}}\n")

            def keys_of(hash_: ObjectHash) -> Sequence[str]:
                if alternatives and hash_.suffix in (CATALOG, HISTORY):
                    return hash_.key, alternative_key(hash_)
                return (hash_.key,)

            done = sum(index.counts[: self._claim.document.swept])
            with closing(sweep(self._store, index, self._claim, keys_of=keys_of, rules=self._rules)) as groups:
                for group in groups:
                    self.report.deleted += len(group.deleted)
                    self.report.failed.update({key: str(error) for key, error in group.failed.items()})
                    done += len(group.deleted) + len(group.failed)
                    self._progress("sweep", done, index.total)
                    if log is not None:
                        log.writelines(f"{hash_.text}\n" for hash_ in group.deleted)
            if log is not None:
                log.write(f"# Garbage Collection finished at {self._now():{_LOG_TIME}}\n\n")
        after = self._store.free_bytes()
        self.report.bytes_returned = None if free is None or after is None else after - free

    def audit(self, sample: int) -> None:
        """Read ``sample`` preserved objects back, drawn at random, and compare their hashes; see ``report.lost``.

        What is known to be lost is in the report once.
        """
        if not sample:
            return
        with self._timed("audit"):
            numbers = random.sample(range(SHARDS), min(SHARDS, max(_AUDITED_SHARDS, sample // 256)))
            records = [
                identity
                for number in numbers
                for identity in self._marking.kept.shard(number) | self._marking.held.shard(number)
            ]
            lost = {missing.key for missing in self.report.lost}
            for name in hashes_in(joined(random.sample(sorted(records), min(sample, len(records))))):
                if name.key not in lost:
                    self._read_back(name)
                self.report.audited += 1

    def end(self) -> CollectionReport:
        """Write down what was done, prune the reflog, and let publications forget the list. Raises StoreError."""
        now = self._now()
        if self._named is not None:
            self._write_record(now)
            later = self._weighing.once
            # A root that careful mode leaves for the next time is not forgotten before its objects go.
            gone = [
                hash_ for hash_ in (*self._plan.condemned, *self._plan.histories)
                if not later.added or records_of([hash_]) not in later.shard(hash_.digest[0])
            ]  # fmt: skip
            try:
                self._side.forget(gone, now)
            except errors.ManifestConflict:
                self.report.notes.append("commits were faster: the next collection prunes the reflog")
        swept = self._claim.document.phase is CollectionPhase.SWEEPING
        self._claim.move(CollectionStep.END if swept else CollectionStep.ABANDON)
        note_collection(self._side.store, now)
        self._tidy(now)
        self.report.ended = self._now()
        return self.report

    def abandon(self) -> None:
        """Give the claim back before the sweep, so that the next collection need not wait. Raises StoreError."""
        if self._claim.held and self._claim.document.phase in {CollectionPhase.MARKING, CollectionPhase.CONDEMNED}:
            self._claim.move(CollectionStep.ABANDON)

    # -- parts of them

    def _fence(self) -> None:
        """Raises ManifestConflict when commits were faster for very long."""
        for _ in range(_FENCES - 1):
            with suppress(errors.ManifestConflict):
                return self._side.fence(self._now())
            self._claim.keep()
        return self._side.fence(self._now())

    @property
    def _work(self) -> Path:
        return self._working.path

    def _read_record(self) -> None:
        self._record, self._record_version = read_record(self._store)
        self._weighing = Weighing(self._store, self._work, self._record, self._rules, self.report)

    def _cut(self, now: datetime) -> int:
        return int((now - self._rules.grace).timestamp())

    def _read(self) -> Named:
        try:
            return self._side.read()
        except errors.ReflogError as fault:
            if self.report.dry_run:
                raise
            added = self._side.rebuild_reflog(self._now())
            self.report.notes.append(f"the reflog was rebuilt, {added} references added: {fault}")
            return self._side.read()

    def _stored_list(self) -> str:
        doomed = self._weighing.doomed
        return store_shards(self._store, ((number, doomed.raw(number)) for number in range(SHARDS)))

    def _weighed(self, number: int) -> None:
        self._claim.keep()
        self._progress("weigh", number + 1, SHARDS)

    def _read_back(self, name: ObjectHash) -> None:
        digest, size = Hasher(name.algorithm), 0
        try:
            for block in self._store.stream(name.key):
                digest.update(block)
                size += len(block)
        except NotFound:
            self.report.lost.append(LostObject(name.key, None))
            return
        if digest.finish() != name.digest:
            self.report.lost.append(LostObject(name.key, size))

    # -- brakes

    def _require_time(self) -> None:
        now, generation = self._now(), look(self._store).generation
        times = [collection.ended for collection in self._record.ended]
        if generation is not None:
            times.append(generation.since)
        latest = max(times, default=now)
        if latest > now + CLOCK_SKEW:
            what = f"a collection was written down at {latest:%Y-%m-%d %H:%M} UTC, but it is {now:%Y-%m-%d %H:%M} UTC"
            raise errors.CollectionRefused(self.fqrn, what, hint="set the clock of this machine, then run it again")

    def _require_clock_of_store(self) -> None:
        document = None if self._store.is_local else self._store.head(generations.KEY)
        now = self._now()
        if document is not None and abs(document.modified - now) > CLOCK_SKEW + timedelta(minutes=1):
            self.abandon()
            of_store, of_machine = (f"{time:%Y-%m-%d %H:%M} UTC" for time in (document.modified, now))
            what = f"the store's clock is at {of_store}, this machine's {of_machine}"
            raise errors.CollectionRefused(self.fqrn, what, hint="set the clock that is wrong, then run it again")

    def _require_roots(self, named: Named) -> None:
        if named.manifest.timestamp > (self._now() + CLOCK_SKEW).timestamp():
            what = "the manifest was signed later than now"
            raise errors.CollectionRefused(self.fqrn, what, hint="set the clock of this machine, then run it again")
        digests = {ref.hash.digest for ref in named.refs} | {tag.hash.digest for tag in named.tags}
        vanished = [root for root in self._record.roots if root.digest not in digests]
        if not vanished:
            return
        what = f"{len(vanished)} roots that the last collection kept are in no reflog and no tag, as {vanished[0]}"
        if not self._rules.accept:
            hint = "restore the reflog (nightshift repo repair --reflog), or accept it by --accept REASON"
            raise errors.CollectionRefused(self.fqrn, what, hint=hint)
        self.report.notes.append(f"{what}; accepted: {self._rules.accept}")

    # -- the end

    def _write_record(self, now: datetime) -> None:
        report, record, once = self.report, self._record, self._weighing.once
        number = self._claim.document.number
        ended = Ended(number, now, report.objects_kept, report.deleted, report.orphans, report.careful)
        name = store_shards(self._store, ((shard, once.raw(shard)) for shard in range(SHARDS))) if once.added else None
        listed = self._weighing.listed
        self._record = replace(
            record.with_ended(ended),
            roots=self._plan.revisions,
            once=name,
            once_since=self._weighing.once_since if name is not None else None,
            seventh=(record.seventh + bool(listed)) % SEVENTHS,
            listed=now if listed else record.listed,
        )
        try:
            self._record_version = self._store.replace(RECORD_KEY, self._record.format(), expected=self._record_version)
        except Conflict:
            raise errors.CollectionBusy(self.fqrn, OVERTAKEN, now) from None

    def _tidy(self, now: datetime) -> None:
        """Remove lists that nothing names any more, and what is kept of catalogs that are gone."""
        document = self._claim.document
        names = [self._record.once, document.condemned, *(collection.condemned for collection in document.past)]
        used = set[str]()
        for name in names:
            if name is None:
                continue
            used.add(key_of(name))
            try:
                used |= {key_of(shard) for shard in read_index(self._store, name).names if shard is not None}
            except (errors.ObjectMissing, errors.ObjectDamaged) as fault:
                self.report.notes.append(f"a list of an earlier collection cannot be read: {fault}")
                return
        old = [
            stored.key
            for stored in self._store.list(PREFIX)
            if stored.key not in used and stored.modified < now - ORPHAN_GRACE
        ]
        self._store.delete(old)
        try:
            self.report.unfinished_removed = len(self._store.remove_unfinished(now - ORPHAN_GRACE))
        except StoreError as fault:
            self.report.notes.append(f"unfinished uploads are left: {fault}")
        if self._marking.seen:
            self._cache.forget(lambda digest: digest in self._marking.seen)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.report.seconds[what] = self.report.seconds.get(what, 0.0) + time.perf_counter() - begun
