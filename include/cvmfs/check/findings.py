"""Findings of a check: problems and warnings, each with its path and catalog, memory bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.objects import Compression
from include.cvmfs.sources.source import printable

KEPT = 10_000


class Subject(Enum):
    """Subject of a problem."""

    SIGNATURE = "signature"
    WHITELIST = "whitelist"
    META_INFO = "meta info"
    REFLOG = "reflog"
    HISTORY = "history"
    ALTERNATIVE_PATH = "alternative path"
    CATALOG = "catalog"
    LAYOUT = "catalog layout"
    TRANSITION = "transition point"
    MARKER = "marker"
    ENTRY = "entry"
    HARDLINK = "hard link"
    LINKCOUNT = "link count"
    CHUNKS = "chunks"
    NESTED = "nested catalogs"
    ROWS = "rows"
    COUNTERS = "counters"
    OBJECT = "object"
    TAG = "tag"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Problem:
    """``path``: absolute inside the repository, ``""`` its root or the repository as a whole; ``catalog``: the hash of
    the catalog that shows it, if one does."""

    subject: Subject
    path: str
    what: str
    catalog: ObjectHash | None = None

    def __str__(self) -> str:
        where = f" [catalog {self.catalog}]" if self.catalog else ""
        return f"{printable(self.path) or '/'}: {self.subject.value}: {printable(self.what)}{where}"

    def as_dict(self) -> dict[str, str | None]:
        catalog = str(self.catalog) if self.catalog else None
        path, what = printable(self.path) or "/", printable(self.what)
        return {"path": path, "subject": self.subject.value, "what": what, "catalog": catalog}


@dataclass(frozen=True, slots=True)
class Lost:
    """An object that the revision needs and the store has not, or not whole.

    ``path``: the first that needs it; ``size``: of its content in bytes, None for a catalog; ``stored``: bytes in the
    store, None if there are none.
    """

    hash: ObjectHash
    path: str
    what: str
    size: int | None = None
    compression: Compression = Compression.ZLIB
    stored: int | None = None

    def as_dict(self) -> dict[str, str | int | None]:
        return {"object": self.hash.key, "path": printable(self.path) or "/", "stored_bytes": self.stored}


@dataclass(slots=True)
class Findings:
    """Collects; of very many problems the first :data:`KEPT` are kept and the others counted, and so with objects."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    warning_count: int = 0
    lost: list[Lost] = field(default_factory=list)

    def lose(self, lost: Lost, catalog: ObjectHash | None = None) -> None:
        """A problem with an object that could be sent again."""
        self.problem(Subject.CATALOG if lost.hash.suffix == CATALOG else Subject.OBJECT, lost.path, lost.what, catalog)
        if len(self.lost) < KEPT:
            self.lost.append(lost)

    def problem(self, subject: Subject, path: str, what: str, catalog: ObjectHash | None = None) -> None:
        self.problem_count += 1
        if len(self.problems) < KEPT:
            self.problems.append(Problem(subject, path, what, catalog))

    def warning(self, subject: Subject, path: str, what: str, catalog: ObjectHash | None = None) -> None:
        self.warning_count += 1
        if len(self.warnings) < KEPT:
            self.warnings.append(Problem(subject, path, what, catalog))
