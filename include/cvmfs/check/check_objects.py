"""Objects of a repository: found and read back, and lost ones sent again from a tree that has their content."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import TypeVar

from include.cvmfs.check.check_catalog import Audited, Miscount, Mounted, audit, miscounts
from include.cvmfs.check.findings import Findings, Lost, Subject
from include.cvmfs.commit.rewrite import Rewriter
from include.cvmfs.errors import CatalogError, FormatError, ObjectDamaged, ObjectError
from include.cvmfs.format import objects
from include.cvmfs.format.catalog import Catalog, NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, Algorithm, ObjectHash, identity
from include.cvmfs.format.objects import Compression, Compressor, stream
from include.cvmfs.format.paths import bytes_of_name, name_of_bytes
from include.cvmfs.format.schema import Counts, Statistics
from include.cvmfs.ingest.prepare import DEFAULTS, PrepareOptions, prepare
from include.cvmfs.sources.source import TreeSource
from include.storage.errors import Forbidden, RequestRejected, Unsupported
from include.storage.store import Store

HEADS_AT_ONCE = 64
READS_AT_ONCE = 8
_BATCH = 4096
_T = TypeVar("_T")
_KEY = re.compile(r"data/([0-9a-f]{2})/([0-9a-f]{38})(-[a-z0-9]+)?([A-Z]?)")
_ID = re.compile(r"(-[a-z0-9]+)?([A-Z]?)")


@dataclass(frozen=True, slots=True)
class Needed:
    """An object, the first path that needs it, the catalog of that path, its uncompressed size, its form of storage."""

    hash: ObjectHash
    path: str
    catalog: ObjectHash
    size: int
    compression: Compression


class NeededObjects:
    """The objects that catalogs name, each once. They go to a temporary file of SQLite's own when they are many."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32768;")
        self._db.execute(
            "CREATE TABLE needed (digest BLOB, kind TEXT, path BLOB, catalog TEXT, size INTEGER, compression INTEGER,"
            " stored INTEGER, PRIMARY KEY (digest, kind)) WITHOUT ROWID"
        )
        self._new: list[tuple[object, ...]] = []
        self._seen: list[tuple[object, ...]] = []

    def add(self, name: ObjectHash, path: str, catalog: ObjectHash, size: int, compression: Compression) -> None:
        raw = bytes_of_name(path)
        kind = name.algorithm.value + name.suffix
        self._new.append((name.digest, kind, raw, str(catalog), size, compression.value))
        if len(self._new) >= _BATCH:
            self._flush()

    def __len__(self) -> int:
        self._flush()
        return int(self._db.execute("SELECT count(*) FROM needed").fetchone()[0])

    def __iter__(self) -> Iterator[Needed]:
        return (needed for needed, _ in self._select("1"))

    def see(self, key: str, stored: int) -> None:
        """Note that there is an object of ``stored`` bytes, if it is a needed one."""
        if match := _KEY.fullmatch(key):
            kind = (match[3] or "") + match[4]
            self._seen.append((stored, bytes.fromhex(match[1] + match[2]), kind))
        if len(self._seen) >= _BATCH:
            self._flush()

    def unseen(self) -> Iterator[Needed]:
        return (needed for needed, _ in self._select("stored IS NULL"))

    def doubtful(self) -> Iterator[tuple[Needed, int]]:
        """Return what was seen in a size that may not be right, and that size."""
        return self._select("stored = 0 OR (compression = 1 AND stored <> size)")

    def close(self) -> None:
        self._db.close()

    def _select(self, where: str) -> Iterator[tuple[Needed, int]]:
        self._flush()
        columns = "digest, kind, path, catalog, size, compression, stored"
        for digest, kind, path, catalog, size, compression, stored in self._db.execute(
            f"SELECT {columns} FROM needed WHERE {where}"  # noqa: S608 - only conditions of this file
        ):
            match = _ID.fullmatch(kind)
            algorithm, suffix = (match[1] or "", match[2]) if match else ("", "")
            name = ObjectHash(digest, Algorithm(algorithm), suffix)
            place = name_of_bytes(path)
            above = ObjectHash.parse(catalog, suffix=CATALOG)
            yield Needed(name, place, above, size, Compression(compression)), stored

    def _flush(self) -> None:
        if not self._new and not self._seen:
            return
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR IGNORE INTO needed VALUES (?, ?, ?, ?, ?, ?, NULL)", self._new)
        self._db.executemany("UPDATE needed SET stored = ? WHERE digest = ? AND kind = ?", self._seen)
        self._db.execute("COMMIT")
        self._new.clear()
        self._seen.clear()


def check_presence(
    store: Store, needed: NeededObjects, findings: Findings, progress: Callable[[int], None], *, listing: bool = True
) -> None:
    """Look for every object: by listing the store where it can be listed, else one by one. Raises StoreError.

    ``listing``: false where they are few beside all that the store holds.
    """
    if listing and _listed(store, needed, progress):
        for item in needed.unseen():
            _report(findings, item, f"{item.hash.key} is not in the store")
        for item, stored in needed.doubtful():
            _report_size(findings, item, stored)
        return

    def look(item: Needed) -> int | Forbidden | None:
        try:
            stored = store.head(item.hash.key)
        except Forbidden as refused:
            return refused
        return None if stored is None else stored.size

    for item, answer in _at_once(HEADS_AT_ONCE, look, needed, progress):
        if answer is None:
            _report(findings, item, f"{item.hash.key} is not in the store")
        elif isinstance(answer, Forbidden):
            _report(findings, item, f"{item.hash.key} may not be read, as missing objects of stores without listing")
        else:
            _report_size(findings, item, answer)


def check_contents(store: Store, needed: NeededObjects, findings: Findings, progress: Callable[[int], None]) -> None:
    """Read every object and compare hash and uncompressed size. Raises StoreError."""

    def read(item: Needed) -> tuple[str, int | None] | None:
        try:
            for _ in objects.stream(store, item.hash, item.compression, size=item.size):
                pass
        except ObjectDamaged as fault:
            stored = store.head(item.hash.key)
            return str(fault), stored.size if stored else None
        except ObjectError as fault:
            return str(fault), None
        except Forbidden:
            return f"{item.hash.key} may not be read", None
        return None

    for item, fault in _at_once(READS_AT_ONCE, read, needed, progress):
        if fault is not None:
            _report(findings, item, *fault)


def _listed(store: Store, needed: NeededObjects, progress: Callable[[int], None]) -> bool:
    try:
        for number, meta in enumerate(store.list("data")):
            needed.see(meta.key, meta.size)
            if number % _BATCH == 0:
                progress(number)
    except (Unsupported, Forbidden, RequestRejected):
        return False
    return True


def _at_once(
    width: int, step: Callable[[Needed], _T], needed: NeededObjects, progress: Callable[[int], None]
) -> Iterator[tuple[Needed, _T]]:
    todo, done = iter(needed), 0
    with ThreadPoolExecutor(width) as pool:
        while batch := list(islice(todo, _BATCH)):
            yield from zip(batch, pool.map(step, batch), strict=True)
            done += len(batch)
            progress(done)


def _report(findings: Findings, item: Needed, what: str, stored: int | None = None) -> None:
    findings.lose(Lost(item.hash, item.path, what, item.size, item.compression, stored), item.catalog)


def _report_size(findings: Findings, item: Needed, stored: int) -> None:
    if item.compression is Compression.NONE and stored != item.size:
        _report(findings, item, f"{item.hash.key} is stored in {stored} bytes, its size is {item.size}", stored)
    elif item.compression is not Compression.NONE and stored == 0:
        _report(findings, item, f"{item.hash.key} is stored empty", 0)


_UNCOUNTABLE = frozenset({Subject.CATALOG, Subject.ROWS, Subject.NESTED})


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
        audited = audit(mounted, self.catalogs.database(reference.hash), findings, lambda *_: None)
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

    ``source`` opens the tree, once for each compressor until all is back: objects do not tell what made them. With the
    destination and options that the tree was published with, its catalogs come back too; for files any destination
    does. Raises SourceError, DestinationError, StoreError.
    """
    mended: set[Lost] = set()
    usable = [each for each in Compressor if each.is_there]
    for compressor in sorted(usable, key=lambda each: each is not options.compressor):
        some = [each for each in lost if each not in mended and each.compression is compressor.compression]
        for algorithm in {each.hash.algorithm for each in some}:
            identities = frozenset(identity(each.hash) for each in some if each.hash.algorithm is algorithm)
            prepare(
                source(), store=store, fqrn=fqrn, destination=destination, now=now, known=_AllBut(identities),
                options=replace(options, algorithm=algorithm, compressor=compressor, index=None),
            )  # fmt: skip
        mended |= {each for each in some if is_whole(store, each)}
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
