"""What a collection by the stock tools reported, and what it leaves: objects that no root ever named.

Output: docs/publishers.md, collections by stock tools. ``cvmfs_server gc`` never finds orphans, since it knows roots
only; here they are found by marking all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from include.cvmfs.collect.record import CollectionRecord, CollectionRules
from include.cvmfs.collect.report import CollectionReport
from include.cvmfs.collect.scan import ScanCache
from include.cvmfs.collect.shards import Shards, WorkingFolder
from include.cvmfs.collect.switching import Named
from include.cvmfs.collect.weigh import Marking, Weighing, plan_roots
from include.cvmfs.errors import ObjectMissing, ReflogError
from include.cvmfs.format import database as reflogs
from include.cvmfs.format.database import Ref, Reflog, RefType
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.revision import Revision
from include.storage.errors import NotFound
from include.storage.store import Store

_DELETED = re.compile(r"Sweep: ([0-9a-f]{40}(?:-[a-z0-9]+)?[A-Z]?)")
_KEPT, _CONDEMNED = re.compile(r"Preserving Revision \d+"), re.compile(r"Sweeping Revision \d+")
_SHARE = re.compile(r"\s+- +\d+% +(\d+) / \d+ unreferenced revisions removed")
_DONE = "  --> done garbage collecting"
_LOG_TIME = "%a %b %d %H:%M:%S %Y"
_ALL = -1
"""A cutoff before every revision: whatever the reflog names stays."""


def take_output(report: CollectionReport, lines: Sequence[str], log: TextIO | None = None) -> None:
    """Put what ``cvmfs_server gc -l`` printed into a report; ``log``: gets the names of what was deleted.

    Lines of an unknown form are passed over: releases differ in what they print beside these.
    """
    shares, done = 0, False
    if log is not None:
        log.write(f"# Garbage Collection started at {report.started or datetime.now(UTC):{_LOG_TIME}}\n")
    for line in lines:
        if found := _DELETED.match(line):
            report.condemned += 1
            if log is not None:
                log.write(f"{found[1]}\n")
        elif _KEPT.match(line):
            report.roots_kept += 1
        elif _CONDEMNED.match(line):
            report.roots_condemned += 1
        elif found := _SHARE.match(line):
            shares = max(shares, int(found[1]))
        elif line.startswith(_DONE):
            done = True
        elif line.startswith("Warning:"):
            report.notes.append(line)
    if log is not None:
        log.write(f"# Garbage Collection finished at {datetime.now(UTC):{_LOG_TIME}}\n\n")
    report.roots_condemned = max(report.roots_condemned, shares)
    if not report.dry_run:
        report.deleted += report.condemned
    if not done:
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        report.notes.append(f"the stock collection did not report its end; its last line: {last[:200]}")


def preceding(head: Repository) -> Iterator[tuple[ObjectHash, ObjectHash]]:
    """Roots with the ones before them, from the current one back, until one was collected."""
    root = head.manifest.root
    while True:
        try:
            before = Revision(head.catalogs, root).root.previous_revision
        except ObjectMissing:
            if root == head.manifest.root:
                raise
            return
        if before is None:
            return
        yield root, before
        root = before


def revisions_within(head: Repository, cutoff: int) -> int:
    """How many revisions before the current one were superseded after ``cutoff`` (Unix s)."""
    published: Mapping[bytes, int] = {ref.hash.digest: ref.timestamp for ref in _refs(head)}
    count = 0
    for root, _ in preceding(head):
        if published.get(root.digest, cutoff) < cutoff:
            break
        count += 1
    return count


@contextmanager
def orphans_of(
    head: Repository, store: Store, *, folder: Path, report: CollectionReport, now: datetime,
    progress: Callable[[str, int, int], None],
) -> Iterator[Shards]:  # fmt: skip
    """Objects that no revision names that reflog, tags or the current revision lead to, older than the orphans' grace.

    ``store``: lists the objects. ``folder`` keeps what catalogs name. Raises CollectionRefused for a catalog that
    cannot be read, ReflogError, StoreError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    scan = CollectionReport(head.fqrn)
    with closing(WorkingFolder(folder)) as working:
        cache, named = ScanCache(store, folder / "scans"), _named(head)
        marking = Marking(cache, working.path, scan, lambda: None)
        marking.mark(named, plan_roots(cache, named, _ALL))
        rules = CollectionRules(careful=False, all_orphans=True)
        weighing = Weighing(store, working.path, CollectionRecord(), rules, scan)
        weighing.weigh(marking, now, lambda number: progress("orphans", number + 1, 256))
        for name in ("orphans", "objects_kept", "names_listed", "catalogs", "catalogs_fetched", "entries", "lost"):
            setattr(report, name, getattr(scan, name))
        yield weighing.doomed


def _named(head: Repository) -> Named:
    """With the revisions that precede the current one, since what a stock collection makes of a reflog is unsigned."""
    refs = list(_refs(head))
    known = {ref.hash.digest for ref in refs}
    for _, root in preceding(head):
        if root.digest not in known and head.store.exists(root.key):
            refs.append(Ref(root, RefType.CATALOG, head.manifest.timestamp))
    return Named(head.manifest, tuple(refs), tuple(head.tags()))


def _refs(head: Repository) -> Iterable[Ref]:
    """Of the reflog as it is: after a stock collection it is not the one that the manifest names."""
    try:
        return Reflog.load(head.store.get(reflogs.KEY)).refs()
    except NotFound:
        raise ReflogError(head.fqrn, f"no {reflogs.KEY} in {head.store.url}") from None
