"""The reflog ``.cvmfsreflog``: every root object a repository has ever had (docs/formats.md, reflog)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Self

from include.cvmfs.errors import FormatError
from include.cvmfs.format.database import Database
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, SHA1, Algorithm, ObjectHash, hash_bytes

KEY = ".cvmfsreflog"
_INSERT = "INSERT OR REPLACE INTO refs VALUES (?, ?, ?)"
_TABLES = """
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
CREATE TABLE refs (hash TEXT, type INTEGER, timestamp INTEGER, CONSTRAINT pk_refs PRIMARY KEY (hash));
INSERT INTO properties VALUES ('schema', '1.0'), ('schema_revision', '0');
"""


class RefType(Enum):
    """What a reference is; the value is that of the column ``type``."""

    CATALOG = 0
    CERTIFICATE = 1
    HISTORY = 2
    META = 3

    @property
    def suffix(self) -> str:
        return {0: CATALOG, 1: CERTIFICATE, 2: HISTORY, 3: META}[self.value]


@dataclass(frozen=True, slots=True)
class Ref:
    """One row; ``timestamp`` (Unix seconds) is when it was last published."""

    hash: ObjectHash
    type: RefType
    timestamp: int

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Ref:
        text, number, timestamp = row
        try:
            kind = RefType(number)
            parsed = ObjectHash.parse(str(text), suffix=kind.suffix)
        except ValueError:
            raise FormatError("reflog", f"row {str(text)[:60]!r} has the unknown type {number!r}") from None
        if str(parsed) != text or not isinstance(timestamp, int):
            raise FormatError("reflog", f"row {str(text)[:60]!r} is not a hash without suffix and a time")
        return cls(parsed, kind, timestamp)

    def to_row(self) -> tuple[str, int, int]:
        return str(self.hash), self.type.value, self.timestamp


class Reflog(Database):
    """A reflog, schema 1.0 revision 0. Stored as it is, and named by hash in the manifest."""

    WHAT = "reflog"
    TABLES = {"refs": ("hash", "type", "timestamp")}  # noqa: RUF012

    @classmethod
    def create(cls, fqrn: str) -> Self:
        reflog = cls._create(_TABLES)
        reflog.set_property("fqrn", fqrn)
        return reflog

    @property
    def fqrn(self) -> str:
        return self.get_property("fqrn") or ""

    def add(self, hash: ObjectHash, type: RefType, timestamp: int) -> None:  # noqa: A002 - the columns' names
        """Note that an object is referred to at ``timestamp``; one that is noted already gets the new time."""
        self._run(_INSERT, *Ref(hash, type, timestamp).to_row())

    def add_all(self, refs: Iterable[Ref]) -> None:
        self._run_all(_INSERT, [ref.to_row() for ref in refs])

    def contains(self, hash: ObjectHash) -> bool:  # noqa: A002
        return bool(self._all("SELECT 1 FROM refs WHERE hash = ?", str(hash)))

    def remove(self, hash: ObjectHash) -> bool:  # noqa: A002
        """Forget an object; False if it was not noted."""
        return self._run("DELETE FROM refs WHERE hash = ?", str(hash)) > 0

    def remove_all(self, hashes: Iterable[ObjectHash]) -> int:
        """Forget objects and drop the room that they took; how many were noted."""
        before = len(self)
        self._run_all("DELETE FROM refs WHERE hash = ?", [(str(hash_),) for hash_ in hashes])
        if removed := before - len(self):
            self._run("VACUUM")
        return removed

    def refs(self, type: RefType | None = None, *, before: int | None = None) -> list[Ref]:  # noqa: A002
        """The rows, newest first, of one type or all, and older than ``before`` (Unix seconds) if given."""
        sql = (
            "SELECT hash, type, timestamp FROM refs WHERE (?1 IS NULL OR type = ?1) AND (?2 IS NULL OR timestamp < ?2)"
        )
        rows = self._all(f"{sql} ORDER BY timestamp DESC, hash", type.value if type else None, before)
        return [Ref.from_row(row) for row in rows]

    def __len__(self) -> int:
        return int(self._all("SELECT count(*) FROM refs")[0][0])

    def hash(self, algorithm: Algorithm = SHA1) -> ObjectHash:
        """The manifest's field Y for this reflog: the hash of the raw file."""
        return hash_bytes(self.to_bytes(), algorithm)
