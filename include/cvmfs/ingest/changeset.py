"""A changeset: a tree prepared for one destination, as a small document that a later task can publish.

It names a nested catalog that is stored with everything below it, and holds all that hanging it needs to know.
"""

from __future__ import annotations

import builtins
import hashlib
import stat
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from include.cvmfs.coordination.freeze import CatalogHash, Instant, Sha256, WholeNumber, format_document, read_document
from include.cvmfs.coordination.generation import CollectionProgress, Shards
from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, DigestSet, ObjectHash, identity
from include.cvmfs.format.paths import name_of
from include.cvmfs.format.schema import NAMES, Counts, Statistics
from include.cvmfs.sources.source import checked_destination
from include.json_values import text_as

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Changeset:
    """``root``, ``root_size``: the catalog's hash and the size of its SQLite file in bytes.

    ``base_root`` and ``base_revision``: what the destination was derived from; ``generation``: the collection that had
    ended last when this was begun, at ``created``, and ``swept``: how many shards of its list the one that ran then had
    swept (``CollectionProgress``). ``stored`` is False after a dry run: such a changeset must not be published.
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
    def moment(self) -> CollectionProgress:
        """Return how far collections were when it was begun."""
        return CollectionProgress(self.generation, self.swept)

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
        """Return what a parent catalog must state about it."""
        return NestedRef(self.destination, self.root, self.root_size)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the document without its time: equal for equal changesets, whenever they were made."""
        fields = self._fields()
        del fields["created"]
        return hashlib.sha256(format_document(fields, version=FORMAT).removesuffix(b"\n")).hexdigest()

    def format(self) -> builtins.bytes:
        """The document as JSON, one line, keys in order."""
        return format_document(self._fields(), version=FORMAT)

    @classmethod
    def parse(cls, data: builtins.bytes | str) -> Changeset:
        """Read :meth:`format`. Raises FormatError for anything else."""
        return read_document(_READER, data, what="changeset", version=FORMAT).changeset()

    def _fields(self) -> dict[str, Any]:
        """The fields of the document; those that came later only where they say something."""
        document = {name: getattr(self, name) for name in _Document.model_fields if name != "counters"}
        if not self.swept:
            del document["swept"]
        entry = {name: getattr(self.root_entry, name) for name in _RootEntry.model_fields}
        if self.root_entry.xattr is not None:
            entry["xattr"] = self.root_entry.xattr.hex()
        return document | {
            "root_entry": {name: value for name, value in entry.items() if value is not None},
            "counters": {"own": self.statistics.own.as_dict(), "below": self.statistics.below.as_dict()},
        }


def objects_of(changeset: Changeset, catalogs: CatalogCache) -> DigestSet:
    """The identities of everything that it needs, sent or reused: its own catalogs name all of it.

    Raises ObjectMissing and what else reading catalogs raises.
    """
    objects = DigestSet()
    pending = [changeset.reference]
    while pending:
        reference = pending.pop()
        objects.add(identity(reference.hash.with_suffix(CATALOG)))
        catalog = catalogs.open_nested(reference.path, reference.hash)
        for name, _, _ in catalog.objects():
            objects.add(identity(name))
        pending.extend(catalog.nested())
        catalog.close()
    return objects


def _mode_of_a_directory(mode: int) -> int:
    if not stat.S_ISDIR(mode) or mode >> 16:
        raise ValueError("it should be the mode of a directory")
    return mode


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _RootEntry(_Part):
    mode: Annotated[WholeNumber, AfterValidator(_mode_of_a_directory)]
    size: WholeNumber
    mtime: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
    uid: WholeNumber
    gid: WholeNumber
    linkcount: Annotated[WholeNumber, Field(ge=2)]
    xattr: Annotated[bytes, text_as(bytes.fromhex)] | None = None
    mtime_ns: WholeNumber | None = None


def _all_counters(counters: dict[str, int]) -> dict[str, int]:
    if missing := set(NAMES) - counters.keys():
        raise ValueError(f"it should have {min(missing)}")
    return {name: counters[name] for name in NAMES}


_Counters = Annotated[dict[str, WholeNumber], AfterValidator(_all_counters)]


class _Statistics(_Part):
    own: _Counters
    below: _Counters


class _Document(_Part):
    """Stored form of a changeset."""

    repository: str
    destination: Annotated[str, text_as(checked_destination)]
    root: CatalogHash
    root_size: WholeNumber
    root_entry: _RootEntry
    counters: _Statistics
    catalogs: WholeNumber
    objects_new: WholeNumber
    objects_reused: WholeNumber
    bytes_uploaded: WholeNumber
    source: str
    created: Instant
    source_sha256: Sha256 | None
    base_root: CatalogHash | None
    base_revision: WholeNumber
    generation: WholeNumber
    notes: list[str]
    stored: bool
    swept: Shards = 0

    def changeset(self) -> Changeset:
        fields = dict(self)
        own, below = (Counts(**counters) for _, counters in fields.pop("counters"))
        fields["root_entry"] = Dirent(name_of(self.destination), **dict(self.root_entry))
        fields["notes"] = tuple(self.notes)
        return Changeset(statistics=Statistics(own, below), **fields)


_READER = TypeAdapter(_Document)
