"""A changeset: a tree prepared for one destination, as a small document that a later task can publish.

It names a nested catalog that is stored with everything below it, and holds all that hanging it needs to know.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.cvmfs.coordination.generation import SHARDS, Moment
from include.cvmfs.errors import DestinationError, FormatError
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.counters import NAMES, Counts, Statistics
from include.cvmfs.format.digests import DigestSet, identity
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.paths import name_of
from include.cvmfs.sources.source import checked_destination

FORMAT = 1
_SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class Changeset:
    """``root``, ``root_size``: the catalog's hash and the size of its SQLite file in bytes.

    ``base_root`` and ``base_revision``: what the destination was derived from; ``generation``: the collection that had
    ended last when this was begun, at ``created``, and ``swept``: how many shards of its list the one that ran then had
    swept (``generation.Moment``). ``stored`` is False after a dry run: such a changeset must not be published.
    """

    repository: str
    destination: str
    root: ObjectHash
    root_size: int
    root_entry: Dirent
    statistics: Statistics
    catalogs: int
    objects_new: int
    objects_reused: int
    bytes_uploaded: int
    source: str
    created: datetime
    source_sha256: str | None = None
    base_root: ObjectHash | None = None
    base_revision: int = 0
    generation: int = 0
    notes: tuple[str, ...] = ()
    stored: bool = True
    swept: int = 0

    @property
    def moment(self) -> Moment:
        """How far collections were when it was begun."""
        return Moment(self.generation, self.swept)

    @property
    def files(self) -> int:
        """Regular files in the whole tree."""
        return self.statistics.total.regular

    @property
    def bytes(self) -> int:
        """Their sizes in bytes, uncompressed."""
        return self.statistics.total.file_size

    @property
    def reference(self) -> NestedRef:
        """What a parent catalog must state about it."""
        return NestedRef(self.destination, self.root, self.root_size)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the document without its time: equal for equal changesets, whenever they were made."""
        return hashlib.sha256(_canonical(self._document(with_times=False))).hexdigest()

    def format(self) -> builtins.bytes:
        """The document as JSON, one line, keys in order."""
        return _canonical(self._document(with_times=True)) + b"\n"

    @classmethod
    def parse(cls, data: builtins.bytes | str) -> Changeset:
        """Read :meth:`format`. Raises FormatError for anything else."""
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as fault:
            raise _bad(f"is not JSON: {fault}") from fault
        if not isinstance(fields, dict):
            raise _bad("is not a JSON object")
        version = fields.get("format")
        if version != FORMAT or isinstance(version, bool):
            raise _bad(f"has format {version!r}, this program reads {FORMAT}")
        return _Fields(fields).changeset()

    def _document(self, *, with_times: bool) -> dict[str, Any]:
        entry = self.root_entry
        document: dict[str, Any] = {
            "format": FORMAT,
            "repository": self.repository,
            "destination": self.destination,
            "root": str(self.root),
            "root_size": self.root_size,
            "root_entry": {
                "mode": entry.mode,
                "size": entry.size,
                "mtime": entry.mtime,
                "uid": entry.uid,
                "gid": entry.gid,
                "linkcount": entry.linkcount,
                # Only where they are: documents of trees without them stay as they were.
                **({} if entry.xattr is None else {"xattr": entry.xattr.hex()}),
                **({} if entry.mtime_ns is None else {"mtime_ns": entry.mtime_ns}),
            },
            "counters": {"own": self.statistics.own.as_dict(), "below": self.statistics.below.as_dict()},
            "catalogs": self.catalogs,
            "objects_new": self.objects_new,
            "objects_reused": self.objects_reused,
            "bytes_uploaded": self.bytes_uploaded,
            "source": self.source,
            "source_sha256": self.source_sha256,
            "base_root": None if self.base_root is None else str(self.base_root),
            "base_revision": self.base_revision,
            "generation": self.generation,
            **({"swept": self.swept} if self.swept else {}),
            "notes": list(self.notes),
            "stored": self.stored,
        }
        if with_times:
            document["created"] = self.created.astimezone(UTC).isoformat()
        return document


def objects_of(changeset: Changeset, catalogs: CatalogCache) -> DigestSet:
    """The identities of everything that it needs, sent or reused: its own catalogs name all of it.

    Raises ObjectMissing and what else reading catalogs raises.
    """
    found = DigestSet()
    pending = [changeset.reference]
    while pending:
        reference = pending.pop()
        found.add(identity(reference.hash.with_suffix(CATALOG)))
        catalog = catalogs.open_nested(reference.path, reference.hash)
        for name, _ in catalog.object_hashes():
            found.add(identity(name))
        pending.extend(catalog.nested())
        catalog.close()
    return found


class _Fields:
    """Takes fields of the right type out of a document, and complains by their names."""

    def __init__(self, fields: dict[str, Any], where: str = "") -> None:
        self._fields = fields
        self._where = where

    def changeset(self) -> Changeset:
        destination = self._destination("destination")
        counters = self.part("counters")
        return Changeset(
            repository=self.text("repository"),
            destination=destination,
            root=self.hash("root"),
            root_size=self.number("root_size"),
            root_entry=self.part("root_entry").directory(name_of(destination)),
            statistics=Statistics(counters.part("own").counts(), counters.part("below").counts()),
            catalogs=self.number("catalogs"),
            objects_new=self.number("objects_new"),
            objects_reused=self.number("objects_reused"),
            bytes_uploaded=self.number("bytes_uploaded"),
            source=self.text("source"),
            created=self._time("created"),
            source_sha256=None if self._get("source_sha256") is None else self._sha256("source_sha256"),
            base_root=None if self._get("base_root") is None else self.hash("base_root"),
            base_revision=self.number("base_revision"),
            generation=self.number("generation"),
            notes=self._texts("notes"),
            stored=self._flag("stored"),
            swept=self.number("swept", most=SHARDS) if "swept" in self._fields else 0,
        )

    def directory(self, name: str) -> Dirent:
        mode = self.number("mode")
        if not stat.S_ISDIR(mode) or mode >> 16:
            raise _bad(f"field {self._where}mode is {mode}, not that of a directory")
        return Dirent(
            name,
            mode,
            size=self.number("size"),
            mtime=self.number("mtime", least=-(1 << 63)),
            uid=self.number("uid"),
            gid=self.number("gid"),
            linkcount=self.number("linkcount", least=2),
            xattr=self._hex("xattr") if "xattr" in self._fields else None,
            mtime_ns=self.number("mtime_ns") if "mtime_ns" in self._fields else None,
        )

    def counts(self) -> Counts:
        return Counts(**{name: self.number(name) for name in NAMES})

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def number(self, key: str, least: int = 0, most: int = (1 << 63) - 1) -> int:
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(key, value, "a whole number in range")
        return value

    def hash(self, key: str) -> ObjectHash:
        return ObjectHash.parse(self.text(key), suffix=CATALOG)

    def _get(self, key: str) -> Any:
        if key not in self._fields:
            raise _bad(f"lacks the field {self._where}{key}")
        return self._fields[key]

    def part(self, key: str) -> _Fields:
        value = self._get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return _Fields(value, f"{self._where}{key}.")

    def _destination(self, key: str) -> str:
        try:
            return checked_destination(self.text(key))
        except DestinationError as fault:
            raise _bad(str(fault)) from fault

    def _sha256(self, key: str) -> str:
        value = self.text(key)
        if len(value) != _SHA256_DIGITS or not set(value) <= set("0123456789abcdef"):
            raise self._wrong(key, value, "a SHA-256 in hex digits")
        return value

    def _hex(self, key: str) -> bytes:
        value = self.text(key)
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise self._wrong(key, value, "bytes in hex digits") from None

    def _time(self, key: str) -> datetime:
        value = self.text(key)
        try:
            time = datetime.fromisoformat(value)
            if time.tzinfo is None:
                raise self._wrong(key, value, "a time with its zone")
            return time.astimezone(UTC)
        except (ValueError, OverflowError):  # a zone may lead out of the first or the last year
            raise self._wrong(key, value, "a time in ISO 8601") from None

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._wrong(key, value, "a list of texts")
        return tuple(value)

    def _flag(self, key: str) -> bool:
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> FormatError:
        return _bad(f"field {self._where}{key} is {str(value)[:80]!r}, not {wanted}")


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _bad(detail: str) -> FormatError:
    return FormatError("changeset", detail)
