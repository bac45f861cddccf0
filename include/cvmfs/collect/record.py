"""Rules of a collection, and its records in ``.nightshift/collections``, which are the collector's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple, TextIO

from pydantic import Field, TypeAdapter

from include.cvmfs.coordination.freeze import CatalogHash, Flag, Instant, Sha256, WholeNumber, read_document
from include.storage.errors import NotFound
from include.storage.store import Store, Version

CAREFUL_COLLECTIONS = 14
TWICE = timedelta(hours=23)
"""Careful mode deletes what was condemned before, so long ago: a day, less what a nightly schedule drifts."""
LISTING_EVERY = timedelta(hours=20)
GRACE = timedelta(days=3)
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
    """One run of a collection. ``audited``: preserved objects that are read back. ``log``: the deletion log. ``force``:
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
    """Why nothing can be deleted now, and when something can at the earliest."""

    reason: str
    due: datetime


KEY = ".nightshift/collections"
SEVENTHS = 7
_FORMAT = 1
_REMEMBERED = 60


class Ended(NamedTuple):
    """A collection that ended. ``objects``: that were preserved; ``deleted``: objects, orphans among them."""

    number: WholeNumber
    ended: Instant
    objects: WholeNumber
    deleted: WholeNumber
    orphans: WholeNumber
    careful: Flag


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """The document.

    ``total``: collections that ended. ``roots``: the revisions that the last one kept, the current one first,
    without what a stopped commit left in the reflog for a while. ``once``: the list of what was condemned once, in
    careful mode, and since when. ``seventh``: which part of the names is looked through for orphans next (0 to 6), and
    when that was done last.
    """

    total: WholeNumber = 0
    ended: tuple[Ended, ...] = ()
    roots: tuple[CatalogHash, ...] = ()
    once: Sha256 | None = None
    once_since: Instant | None = None
    seventh: Annotated[int, Field(strict=True, ge=0, lt=SEVENTHS)] = 0
    listed: Instant | None = None

    @property
    def last(self) -> Ended | None:
        return self.ended[-1] if self.ended else None

    def with_ended(self, one: Ended) -> CollectionRecord:
        """With one more; the same number again is the same collection, finished by another process."""
        known = any(other.number == one.number for other in self.ended)
        ended = (*(other for other in self.ended if other.number != one.number), one)
        return replace(self, total=self.total + (not known), ended=ended[-_REMEMBERED:])

    def format(self) -> bytes:
        document = {
            "format": _FORMAT,
            "total": self.total,
            "ended": [
                [one.number, _text(one.ended), one.objects, one.deleted, one.orphans, one.careful] for one in self.ended
            ],
            "roots": [str(root) for root in self.roots],
            "once": self.once,
            "once_since": _text(self.once_since),
            "seventh": self.seventh,
            "listed": _text(self.listed),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, data: bytes) -> CollectionRecord:
        """Raises FormatError."""
        return read_document(_READER, data, what="record of collections", version=_FORMAT, key=KEY, required=_FIELDS)


_READER = TypeAdapter(CollectionRecord)
_FIELDS = tuple(field.name for field in fields(CollectionRecord))


def read_record(store: Store) -> tuple[CollectionRecord, Version | None]:
    """The record, empty before the first collection. Raises FormatError, StoreError."""
    try:
        data, version = store.get_versioned(KEY)
    except NotFound:
        return CollectionRecord(), None
    return CollectionRecord.parse(data), version


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat()
