"""Send lost objects again from a tree that has their content, and count catalogs again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from include.cvmfs.check.check_catalog import Audited, Miscount, Mounted, audit, miscounts
from include.cvmfs.check.findings import Findings, Lost, Subject
from include.cvmfs.commit.rewrite import Rewriter
from include.cvmfs.errors import CatalogError, FormatError, ObjectError
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, identity
from include.cvmfs.format.objects import stream
from include.cvmfs.format.schema import Counts, Statistics
from include.cvmfs.ingest.prepare import DEFAULTS, PrepareOptions, prepare
from include.cvmfs.sources.source import TreeSource
from include.storage.store import Store

_UNCOUNTABLE = frozenset({Subject.CATALOG, Subject.ROWS, Subject.NESTED})


def _ignore(*_: object) -> None: ...


@dataclass(eq=False)
class Recounter(Rewriter):
    """Rewrites catalogs with wrong counters. ``miscounts``: those of each catalog that has any, by its path.

    Raises CatalogError for a catalog with rows that cannot be counted.
    """

    miscounts: dict[str, list[Miscount]] = field(init=False, default_factory=dict)
    _counted: dict[bytes, Statistics] = field(init=False, default_factory=dict)

    def _needs(self, catalog: Catalog, reference: NestedRef, below: Sequence[NestedRef]) -> bool:  # noqa: ARG002
        audited = self._audited(reference)
        totals = [self._counted[nested.hash.digest].total for nested in below]
        counted = Statistics(audited.own, Counts.sum([Counts(), *totals]))
        self._counted[reference.hash.digest] = counted
        path = reference.path
        wrong = miscounts(path, "self", audited.stated, counted.own)
        wrong += miscounts(path, "subtree", audited.stated, counted.below)
        self.miscounts.pop(path, None)  # another writer may have replaced the catalog that was counted first
        if wrong:
            self.miscounts[path] = wrong
        return bool(wrong)

    def _amend(self, catalog: Catalog, reference: NestedRef) -> int:
        catalog.set_statistics(self._counted[reference.hash.digest])
        return 0

    def _audited(self, reference: NestedRef) -> Audited:
        """Count the rows of a catalog. Raises CatalogError where some would be left out."""
        findings = Findings()
        mounted = Mounted(reference.path, reference.hash, 0)
        audited = audit(mounted, self.catalogs.database(reference.hash), findings, _ignore)
        faults = [problem for problem in findings.problems if problem.subject in _UNCOUNTABLE]
        if not faults and audited.own.entries != audited.entries:
            faults = [problem for problem in findings.problems if problem.subject is Subject.ENTRY]
        if faults:
            what = f"its rows cannot be counted ({faults[0]})"
            raise CatalogError(reference.path, f"{what}; remove or publish again what is damaged, then run it again")
        return audited


@dataclass(frozen=True, slots=True)
class Restored:
    """``mended``: whole again, as read back from the store; ``missing``: what the tree could not give."""

    mended: tuple[Lost, ...]
    missing: tuple[Lost, ...]


class _AllBut:
    """Every identity but these: what a preparation need not send."""

    def __init__(self, wanted: frozenset[bytes]) -> None:
        self._wanted = wanted

    def __contains__(self, item: object) -> bool:
        return item not in self._wanted


def restore_objects(
    store: Store,
    lost: Sequence[Lost],
    source: Callable[[], TreeSource],
    *,
    fqrn: str,
    destination: str,
    now: datetime,
    options: PrepareOptions = DEFAULTS,
) -> Restored:
    """Prepare the tree as for ``destination``, but send only what is lost; nothing is published.

    ``source`` opens the tree, once for each form of storage that is needed. With the destination and options that the
    tree was published with, its catalogs come back too; for files any destination does. Raises SourceError,
    DestinationError, StoreError.
    """
    for form in {missing.compression for missing in lost}:
        some = [missing for missing in lost if missing.compression is form]
        for algorithm in {missing.hash.algorithm for missing in some}:
            wanted = frozenset(identity(missing.hash) for missing in some if missing.hash.algorithm is algorithm)
            prepare(
                source(),
                store=store,
                fqrn=fqrn,
                destination=destination,
                now=now,
                known=_AllBut(wanted),
                options=replace(options, algorithm=algorithm, compression=form, index=None),
            )
    mended = {missing for missing in lost if is_whole(store, missing)}
    return Restored(
        tuple(missing for missing in lost if missing in mended),
        tuple(missing for missing in lost if missing not in mended),
    )


def is_whole(store: Store, lost: Lost) -> bool:
    """Tell whether the object is there now, with the content that its name and its catalog state. Raises StoreError."""
    try:
        if lost.hash.suffix == CATALOG or lost.size is None:
            CatalogCache(store, budget=0).database(lost.hash)
        else:
            for _ in stream(store, lost.hash, lost.compression, size=lost.size):
                pass
    except (ObjectError, FormatError):
        return False
    return True
