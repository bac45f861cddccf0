"""What collections of a repository remember of each other: ``.nightshift/collections``, the collector's own."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

from pydantic import Field, TypeAdapter

from include.cvmfs.coordination.documents import CatalogHash, Flag, Instant, Sha256, WholeNumber, read_document
from include.storage.errors import NotFound
from include.storage.store import Store, Version

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
