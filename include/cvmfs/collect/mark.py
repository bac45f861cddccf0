"""The first half of a collection: what must stay, and what only condemned roots name. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from include.cvmfs.collect.report import CollectionReport
from include.cvmfs.collect.roots import RootDecision, RootPlan, decide_roots
from include.cvmfs.collect.scan import CatalogNames, ScanCache, line_of, walk
from include.cvmfs.collect.shards import Shards, split
from include.cvmfs.collect.switching import Named
from include.cvmfs.coordination.condemned import SHARDS, records_of
from include.cvmfs.errors import CollectionBusy, CollectionRefused, CvmfsError, ObjectError, ObjectMissing
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.reflog import RefType


def plan_roots(cache: ScanCache, named: Named, cutoff: int, on_step: Callable[[], None] = lambda: None) -> RootPlan:
    """What becomes of each root; ``cutoff``: Unix s. Raises StoreError."""
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
    """What roots name: ``gone`` the condemned ones, ``held`` those that only tags protect, ``kept`` all others.

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
            lambda name, found: _take(self.gone, name, found), absent=self._unread, on_step=self._on_step,
        )  # fmt: skip
        self.gone.add_records(split(records_of(plan.histories)))
        self._report.catalogs, self._report.catalogs_fetched = len(self.seen), self._cache.fetched
        self._report.entries = self.kept.added + self.held.added + self.gone.added

    def newer(self, named: Named, plan: RootPlan) -> Shards:
        """What roots name that came after :meth:`mark`. Raises CollectionRefused."""
        extra = Shards(self._folder, "newer")
        self._keep(named, plan, plan.decisions, extra)
        for number in range(SHARDS):
            extra.put(number, self.copies.raw(number))
        return extra

    def _keep(self, named: Named, plan: RootPlan, decisions: Iterable[RootDecision], into: Shards) -> None:
        kept = [decision for decision in decisions if decision.keep]

        def take(name: ObjectHash, found: CatalogNames) -> None:
            _take(into, name, found)
            self.copies.add_records(split(bytes(found.elsewhere)))

        revisions = (decision.root for decision in kept if decision.published)
        try:
            walk(self._cache, revisions, self.seen, take, on_step=self._on_step)
        except CollectionBusy:
            raise
        except CvmfsError as fault:
            raise _unreadable(fault, named) from fault
        # Readers never get the others. A commit that is stopped is stopped because its objects may be gone.
        others = (decision.root for decision in kept if not decision.published)
        walk(self._cache, others, self.seen, take, absent=lambda *_: None, on_step=self._on_step)
        into.add_records(split(records_of(_beside_catalogs(named, plan))))

    def _unread(self, name: ObjectHash, fault: Exception) -> None:
        """What is missing was collected before; what else cannot be read goes, and what it names becomes orphans."""
        if not isinstance(fault, ObjectMissing):
            self._report.notes.append(f"condemned catalog {name} cannot be read: {fault}")
            self.gone.add_records(split(records_of([name.with_suffix(CATALOG)])))


def _beside_catalogs(named: Named, plan: RootPlan) -> Iterable[ObjectHash]:
    """Certificates and meta infos are few, and always stay; histories as long as they are read."""
    manifest, gone = named.manifest, {history.digest for history in plan.histories}
    yield from (hash_ for hash_ in (manifest.certificate, manifest.history, manifest.meta) if hash_ is not None)
    for ref in named.refs:
        if ref.type is not RefType.CATALOG and ref.hash.digest not in gone:
            yield ref.hash


def _take(into: Shards, name: ObjectHash, found: CatalogNames) -> None:
    into.add(found.records, found.offsets)
    into.add_records([records_of([name.with_suffix(CATALOG)])])


def _unreadable(fault: CvmfsError, named: Named) -> CollectionRefused:
    fqrn = named.manifest.fqrn
    hint = f"run: nightshift repo check {fqrn}"
    if isinstance(fault, ObjectError):
        names = [tag.name for tag in named.tags if tag.hash.with_suffix(CATALOG).key == fault.key]
        if names:
            hint = f"tag {names[0]!r} names it: restore the object, or remove the tag"
    return CollectionRefused(fqrn, f"a catalog that must stay cannot be read ({fault})", hint=hint)
