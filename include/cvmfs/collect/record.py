"""What collections of a repository remember of each other: ``.nightshift/collections``, the collector's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.storage.errors import NotFound
from include.storage.store import Store, Version

KEY = ".nightshift/collections"
SEVENTHS = 7
_FORMAT = 1
_REMEMBERED = 60
_WHAT = "record of collections"


@dataclass(frozen=True, slots=True)
class Ended:
    """A collection that ended. ``objects``: that were preserved; ``deleted``: objects, orphans among them."""

    number: int
    ended: datetime
    objects: int
    deleted: int
    orphans: int
    careful: bool


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """The document.

    ``total``: collections that ended. ``roots``: those that the last one kept. ``once``: the list of what was condemned
    once, in careful mode, and since when. ``seventh``: which part of the names is looked through for orphans next
    (0 to 6), and when that was done last.
    """

    total: int = 0
    ended: tuple[Ended, ...] = ()
    roots: tuple[ObjectHash, ...] = ()
    once: str | None = None
    once_since: datetime | None = None
    seventh: int = 0
    listed: datetime | None = None

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
        try:
            fields: Mapping[str, Any] = json.loads(data)
            if fields["format"] != _FORMAT:
                raise ValueError(f"is of format {fields['format']!r}, this program reads {_FORMAT}")
            ended = tuple(
                Ended(int(number), _required(at), int(objects), int(deleted), int(orphans), bool(careful))
                for number, at, objects, deleted, orphans, careful in fields["ended"]
            )
            roots = tuple(ObjectHash.parse(text, suffix=CATALOG) for text in fields["roots"])
            once = fields["once"]
            if once is not None and (len(once) != 64 or not set(once) <= set("0123456789abcdef")):
                raise ValueError(f"{once!r} is not the name of a list")
            return cls(
                int(fields["total"]), ended, roots, once, _time(fields["once_since"]),
                int(fields["seventh"]) % SEVENTHS, _time(fields["listed"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, FormatError) as fault:
            raise FormatError(_WHAT, f"{KEY} cannot be read: {fault}") from None


def read_record(store: Store) -> tuple[CollectionRecord, Version | None]:
    """The record, empty before the first collection. Raises FormatError, StoreError."""
    try:
        data, version = store.get_versioned(KEY)
    except NotFound:
        return CollectionRecord(), None
    return CollectionRecord.parse(data), version


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat()


def _time(value: Any) -> datetime | None:
    return None if value is None else _required(value)


def _required(value: Any) -> datetime:
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError(f"{value!r} is a time without its zone")
    return time.astimezone(UTC)
