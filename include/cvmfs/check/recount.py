"""Give catalogs the statistics counters that follow from their rows and from the catalogs below them.

What counts is what the check counts (docs/formats.md, statistics counters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from include.cvmfs.check.check_catalog import Audited, Miscount, Mounted, audit, miscounts
from include.cvmfs.check.findings import Findings, Subject
from include.cvmfs.commit.rewrite import Rewriter
from include.cvmfs.errors import CatalogError
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.counters import Counts, Statistics

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
