"""Rules, records and the report of collections; the records are in ``.nightshift/collections``, the collector's own."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TextIO

from pydantic import Field, TypeAdapter

from include.cvmfs.coordination import freeze
from include.storage.errors import NotFound
from include.storage.store import Store, Version

CAREFUL_COLLECTIONS = 14
TWICE = timedelta(hours=23)
"""Careful mode deletes what was condemned before, so long ago: a day, less what a nightly schedule drifts."""
LISTING_EVERY = timedelta(hours=20)
GRACE = timedelta(days=3)
UNNEEDED = "no revision that is kept needs them"
"""The reason of a collection, for the audit."""
SETTLE = timedelta(minutes=10)
"""A request without an answer may still be carried out by the store; so long after it, it is not."""


@dataclass(frozen=True, slots=True)
class CollectionRules:
    """``grace``: how long a revision stays after it was superseded. ``careful``: delete only what was condemned twice,
    a day apart; None: for the first 14 collections of the repository. ``largest_loss``: the share of preserved objects
    that may be missing since the last collection. ``accept``: the reason to go on in spite of these brakes.
    ``all_orphans``: look for orphans everywhere, not in a seventh of the names. ``pause`` is called before each group
    of deletions and may wait. ``wait`` waits so many seconds, for requests without an answer.
    """

    grace: timedelta = GRACE
    careful: bool | None = None
    largest_loss: float = 0.3
    accept: str = ""
    all_orphans: bool = False
    pause: Callable[[], None] = lambda: None
    wait: Callable[[float], None] = time.sleep

    def is_careful(self, total: int) -> bool:
        """Tell whether the next collection is; ``total``: how many there were."""
        return total < CAREFUL_COLLECTIONS if self.careful is None else self.careful


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """A run of a collection. ``audited``: preserved objects that are read back. ``log``: the deletion log. ``force``:
    also when nothing can be deleted yet.
    """

    holder: str
    rules: CollectionRules
    audited: int = 0
    log: TextIO | None = None
    progress: Callable[[str, int, int], None] = lambda *_: None
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class NotDue:
    """Reason why nothing can be deleted now, and the earliest time at which something can."""

    reason: str
    due: datetime


KEY = ".nightshift/collections"
SEVENTHS = 7
_FORMAT = 1
_REMEMBERED = 60


class Ended(NamedTuple):
    """A collection that ended. ``objects``: that were preserved; ``deleted``: objects, orphans among them."""

    number: freeze.WholeNumber
    ended: freeze.Instant
    objects: freeze.WholeNumber
    deleted: freeze.WholeNumber
    orphans: freeze.WholeNumber
    careful: freeze.Flag


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """The document.

    ``total``: collections that ended. ``roots``: the revisions that the last one kept, the current one first,
    without what a stopped commit left in the reflog for a while. ``once``: the list of what was condemned once, in
    careful mode, and since when. ``seventh``: which part of the names is looked through for orphans next (0 to 6), and
    when that was done last.
    """

    total: freeze.WholeNumber = 0
    ended: tuple[Ended, ...] = ()
    roots: tuple[freeze.CatalogHash, ...] = ()
    once: freeze.Sha256 | None = None
    once_since: freeze.Instant | None = None
    seventh: Annotated[int, Field(strict=True, ge=0, lt=SEVENTHS)] = 0
    listed: freeze.Instant | None = None

    @property
    def last(self) -> Ended | None:
        return self.ended[-1] if self.ended else None

    def with_ended(self, collection: Ended) -> CollectionRecord:
        """With one more; the same number again is the same collection, finished by another process."""
        counted = any(other.number == collection.number for other in self.ended)
        ended = (*(other for other in self.ended if other.number != collection.number), collection)
        return replace(self, total=self.total + (not counted), ended=ended[-_REMEMBERED:])

    def format(self) -> bytes:
        return freeze.format_document({name: getattr(self, name) for name in _FIELDS}, version=_FORMAT)

    @classmethod
    def parse(cls, data: bytes) -> CollectionRecord:
        """Raises FormatError."""
        return freeze.read_document(
            _READER, data, what="record of collections", version=_FORMAT, key=KEY, required=_FIELDS
        )


_READER = TypeAdapter(CollectionRecord)
_FIELDS = tuple(field.name for field in fields(CollectionRecord))


def read_record(store: Store) -> tuple[CollectionRecord, Version | None]:
    """The record, empty before the first collection. Raises FormatError, StoreError."""
    try:
        data, version = store.get_versioned(KEY)
    except NotFound:
        return CollectionRecord(), None
    return CollectionRecord.parse(data), version


@dataclass(frozen=True, slots=True)
class LostObject:
    """A preserved object that the store lacks (``size`` None) or holds in the wrong size (stored bytes)."""

    key: str
    size: int | None

    @property
    def reason(self) -> str:
        return "is absent" if self.size is None else f"has {self.size} bytes"


@dataclass(slots=True)
class CollectionReport:
    """Figures of one collection; times in seconds, sizes in stored bytes.

    ``bytes_deleted`` counts what was listed: ``bytes_known`` of the deleted objects. ``bytes_returned``: by how much
    the free bytes of the store grew in the sweep, with what others wrote meanwhile; None if unknown. ``once``:
    condemned once in careful mode, deleted by a later collection. ``spared``: taken off the list again since a newer
    revision needs it. ``held``: objects that only tags protect; ``bytes_held``: of those that were listed. ``failed``:
    keys that the store did not delete, with its reason.
    """

    fqrn: str
    number: int = 0
    started: datetime | None = None
    ended: datetime | None = None
    dry_run: bool = False
    resumed: bool = False
    careful: bool = False
    reasons: Counter[str] = field(default_factory=Counter)
    roots_kept: int = 0
    roots_condemned: int = 0
    catalogs: int = 0
    catalogs_fetched: int = 0
    entries: int = 0
    objects_kept: int = 0
    condemned: int = 0
    orphans: int = 0
    held: int = 0
    bytes_held: int = 0
    once: int = 0
    spared: int = 0
    deleted: int = 0
    bytes_deleted: int = 0
    bytes_known: int = 0
    bytes_returned: int | None = None
    names_listed: int = 0
    unfinished_removed: int = 0
    audited: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    lost: list[LostObject] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    next_due: datetime | None = None

    @property
    def ok(self) -> bool:
        """Tell whether everything was deleted that was to be, and nothing that has to stay is lost."""
        return not self.failed and not self.lost

    def read_stock_output(self, lines: Sequence[str], log: TextIO | None = None) -> None:
        """Take over what ``cvmfs_server gc -l`` printed; ``log``: gets the names of what was deleted.

        Lines of an unknown form are passed over: releases differ in what they print beside these.
        """
        shares, done = 0, False
        if log is not None:
            log.write(f"# Garbage Collection started at {self.started or datetime.now(UTC):{_LOG_TIME}}\n")
        for line in lines:
            if match := _DELETED.match(line):
                self.condemned += 1
                if log is not None:
                    log.write(f"{match[1]}\n")
            elif _KEPT.match(line):
                self.roots_kept += 1
            elif _CONDEMNED.match(line):
                self.roots_condemned += 1
            elif match := _SHARE.match(line):
                shares = max(shares, int(match[1]))
            elif line.startswith(_DONE):
                done = True
            elif line.startswith("Warning:"):
                self.notes.append(line)
        if log is not None:
            log.write(f"# Garbage Collection finished at {datetime.now(UTC):{_LOG_TIME}}\n\n")
        self.roots_condemned = max(self.roots_condemned, shares)
        if not self.dry_run:
            self.deleted += self.condemned
        if not done:
            last = next((line for line in reversed(lines) if line.strip()), "nothing")
            self.notes.append(f"the stock collection did not report its end; its last line: {last[:200]}")

    def lines(self) -> list[str]:
        """For a person, a fact a line."""
        done = f"{self.condemned} objects would be deleted" if self.dry_run else f"{self.deleted} objects deleted"
        which = f"collection {self.number}" if self.number else "collection by stock tools"
        what = "dry run" if self.dry_run else which
        stay = f", {self.objects_kept} stay" if self.objects_kept else ""
        lines = [
            f"{self.fqrn}, {what}: {done}{stay}",
            f"roots: {self.roots_kept} stay, {self.roots_condemned} go",
            *(f"  {number} {reason}" for reason, number in sorted(self.reasons.items())),
            f"orphans found: {self.orphans}, in {self.names_listed} names that were listed",
        ]
        if self.bytes_known:
            lines.append(
                f"stored bytes: {self.bytes_deleted} in {self.bytes_known} of the condemned objects, which were listed"
            )
        if self.deleted:
            told = self.bytes_returned is not None
            free = f"{self.bytes_returned}, with what others wrote meanwhile" if told else "not known"
            lines.append(f"bytes that the store returned in the sweep: {free}")
        if self.held:
            lines.append(
                f"only tags protect {self.held} objects, {self.bytes_held} bytes in the names that were listed"
            )
        if self.once:
            lines.append(
                f"careful mode: {self.once} objects are condemned once and go when they are condemned again a day later"
            )
        if self.spared:
            lines.append(f"taken off the list, since newer revisions need them: {self.spared} objects")
        if self.unfinished_removed:
            lines.append(f"unfinished uploads removed: {self.unfinished_removed}")
        lines += [f"not deleted: {key}: {why}" for key, why in list(self.failed.items())[:_SHOWN]]
        lines += [f"lost: {lost.key} {lost.reason}" for lost in self.lost[:_SHOWN]]
        lines += [f"note: {note}" for note in self.notes]
        took = ", ".join(f"{name} {value:.1f} s" for name, value in self.seconds.items())
        return [*lines, f"read back: {self.audited} objects", f"took: {took}"]

    def as_dict(self) -> Mapping[str, Any]:
        """For JSON. Of very many keys the first hundred."""
        plain = ("number", "dry_run", "resumed", "careful", "roots_kept", "roots_condemned", "catalogs",
                 "catalogs_fetched", "entries", "objects_kept", "condemned", "orphans", "held", "bytes_held", "once",
                 "spared", "deleted", "bytes_deleted", "bytes_known", "bytes_returned", "names_listed",
                 "unfinished_removed", "audited")  # fmt: skip
        return {
            "repository": self.fqrn,
            "ok": self.ok,
            **{name: getattr(self, name) for name in plain},
            **{name: _iso(getattr(self, name)) for name in ("started", "ended", "next_due")},
            "reasons": dict(sorted(self.reasons.items())),
            "failed": dict(list(self.failed.items())[:_SHOWN]),
            "failed_count": len(self.failed),
            "lost": [{"key": lost.key, "reason": lost.reason} for lost in self.lost[:_SHOWN]],
            "lost_count": len(self.lost),
            "notes": list(self.notes),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }


_SHOWN = 100
_DELETED = re.compile(r"Sweep: ([0-9a-f]{40}(?:-[a-z0-9]+)?[A-Z]?)")
_KEPT, _CONDEMNED = re.compile(r"Preserving Revision \d+"), re.compile(r"Sweeping Revision \d+")
_SHARE = re.compile(r"\s+- +\d+% +(\d+) / \d+ unreferenced revisions removed")
_DONE = "  --> done garbage collecting"
_LOG_TIME = "%a %b %d %H:%M:%S %Y"


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")
