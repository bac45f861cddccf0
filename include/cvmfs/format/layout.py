"""The order of the columns in a catalog's table of entries, and the repository's meta info.

Stock publishers merge a nested catalog into its parent without naming columns, so all catalogs of one repository must
have one layout (docs/decisions, one layout of catalogs; docs/formats.md, catalogs).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from include.cvmfs.errors import FormatError
from include.cvmfs.format.dirent import COLUMNS

_WHAT = "meta info"
_TEXTS = {
    "administrator": "administrator",
    "email": "email",
    "organisation": "organisation",
    "description": "description",
    "url": "url",
    "recommended-stratum0": "stratum0",
}
_STRATUM1S = "recommended-stratum1s"


@dataclass(frozen=True, slots=True)
class MetaInfo:
    """The members of the skeleton; whatever else the JSON holds is kept in ``others``."""

    administrator: str = ""
    email: str = ""
    organisation: str = ""
    description: str = ""
    url: str = ""
    stratum0: str = ""
    stratum1s: tuple[str, ...] = ()
    custom: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> MetaInfo:
        """Read the JSON object; absent members are empty. Raises FormatError."""
        try:
            members = json.loads(data)
        except (ValueError, RecursionError) as fault:
            raise FormatError(_WHAT, f"not JSON: {str(fault)[:80]}") from fault
        if not isinstance(members, dict):
            raise FormatError(_WHAT, "not a JSON object")
        texts = {name: _text(key, members.pop(key, "")) for key, name in _TEXTS.items()}
        mirrors = members.pop(_STRATUM1S, [])
        custom = members.pop("custom", {})
        if not isinstance(mirrors, list) or not isinstance(custom, dict):
            raise FormatError(_WHAT, f"{_STRATUM1S} is not a list or custom not an object")
        return cls(**texts, stratum1s=tuple(_text(_STRATUM1S, url) for url in mirrors), custom=custom, others=members)

    def format(self) -> bytes:
        """The JSON text, the skeleton's members first; equal values give equal bytes."""
        members: dict[str, Any] = {key: getattr(self, name) for key, name in _TEXTS.items()}
        members |= {_STRATUM1S: list(self.stratum1s), "custom": self.custom, **self.others}
        return json.dumps(members, indent=2).encode() + b"\n"


def skeleton() -> bytes:
    """The meta info of a new repository: all members there, to be filled in."""
    return MetaInfo().format()


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise FormatError(_WHAT, f"{key} is not text")
    return value


KEY = ("md5path_1", "md5path_2", "parent_1", "parent_2")
MTIME_NS = "mtimens"
XATTR = "xattr"
_PLAIN = (*KEY, *(name for name in COLUMNS if name != MTIME_NS))
_NESTED = 1  # kind of a reference
OF_SEVERAL_FORMS = ("catalog", "nested_catalogs", "bind_mountpoints")
_TABLES = f"SELECT name, sql FROM sqlite_schema WHERE name IN {OF_SEVERAL_FORMS}"  # noqa: S608
Tables = tuple[tuple[str, str], ...]
"""Tables of several forms, with the text that made each."""
_SHAPES = 64


class Layout(Enum):
    """The value describes the layout to people. Stock tools up to 2.11 write ``PLAIN``."""

    PLAIN = "15 columns"
    MTIME_NS = "16 columns, mtimens after mtime"
    MTIME_NS_LAST = "16 columns, mtimens last"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in order."""
        return _COLUMNS[self]

    @property
    def revision(self) -> int:
        """The revision of the schema that a new catalog of this layout states."""
        return 6 if self is Layout.PLAIN else 7

    @property
    def has_mtime_ns(self) -> bool:
        """Tell whether there is a column for nanoseconds."""
        return self is not Layout.PLAIN

    @classmethod
    def of(cls, columns: tuple[str, ...]) -> Layout | None:
        """The layout with these columns; None for columns that no known tool writes in this order."""
        if columns == _PLAIN[:-1]:  # revision 1: the stock tools add the last one before they write
            return cls.PLAIN
        return next((layout for layout in cls if layout.columns == columns), None)


_COLUMNS = {Layout.PLAIN: _PLAIN, Layout.MTIME_NS: (*KEY, *COLUMNS), Layout.MTIME_NS_LAST: (*_PLAIN, MTIME_NS)}


@dataclass(frozen=True, slots=True)
class Shape:
    """Form of one catalog, for SQL. Rows that are written have all of :data:`COLUMNS`; those absent are left.

    ``is_complete``: it has the columns and tables that came with older revisions of the schema.
    """

    layout: Layout | None
    select: str
    insert: str
    update: str
    nested_size: str
    has_binds: bool
    is_complete: bool


@dataclass(frozen=True)
class CatalogContents:
    """All rows of a catalog, unchecked. Those of entries: key, parent's key, then :data:`COLUMNS`; of references: the
    kind, then path, hash and size; of chunks: key of the file, then offset, size and hash."""

    shape: Shape
    rows: frozenset[tuple[Any, ...]]
    references: frozenset[tuple[Any, ...]]
    chunks: frozenset[tuple[Any, ...]]

    @cached_property
    def by_key(self) -> Mapping[tuple[int, int], tuple[Any, ...]]:
        """The rows of entries by their path hash."""
        return {row[:2]: row for row in self.rows}

    @cached_property
    def nested(self) -> Mapping[object, tuple[Any, ...]]:
        """The references to nested catalogs by their paths."""
        return {row[1]: row[1:] for row in self.references if row[0] == _NESTED}


_KNOWN: dict[Tables, Shape] = {}  # of few kinds


def columns_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """The columns of a table in order; none if there is no such table."""
    return tuple(str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})"))


def shape_of(connection: sqlite3.Connection, tables: Tables | None = None) -> Shape:
    """The shape of an open catalog; ``tables``: its own, if they were read before. Raises sqlite3.Error."""
    key = tuple(connection.execute(_TABLES).fetchall()) if tables is None else tables
    if (shape := _KNOWN.get(key)) is None:
        present = columns_of(connection, "catalog")
        has_sizes = "size" in columns_of(connection, "nested_catalogs")
        has_binds = bool(columns_of(connection, "bind_mountpoints"))
        names = (*KEY, *COLUMNS)
        written = [(number, name) for number, name in enumerate(names, 1) if name in present]
        shape = Shape(
            layout=Layout.of(present),
            select=", ".join(name if name in present else f"NULL AS {name}" for name in COLUMNS),
            insert=(
                f"INSERT INTO catalog ({', '.join(name for _, name in written)})"  # noqa: S608 - names of ours
                f" VALUES ({', '.join(_place(number, name) for number, name in written)})"
            ),
            update=(
                f"UPDATE catalog SET {', '.join(f'{n}={_place(i, n)}' for i, n in written if n not in KEY)}"  # noqa: S608
                " WHERE md5path_1=?1 AND md5path_2=?2"
            ),
            nested_size="size" if has_sizes else "0",
            has_binds=has_binds,
            is_complete=has_sizes and has_binds and XATTR in present,
        )
        if len(_KNOWN) > _SHAPES:
            _KNOWN.clear()
        _KNOWN[key] = shape
    return shape


def _place(number: int, name: str) -> str:
    """The parameter of a column; a name that is not UTF-8 is bound as its bytes."""
    return f"CAST(?{number} AS TEXT)" if name in ("name", "symlink") else f"?{number}"
