"""Check one catalog: everything that can be concluded from its SQLite file and from the row above its mountpoint.

It reads with statements of its own, not through ``catalog.py``: a fault of the reader must not hide in the check.
Rules: docs/formats.md, catalogs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.cvmfs.check.findings import Findings, Subject
from include.cvmfs.errors import FormatError
from include.cvmfs.format.catalog import MARKER
from include.cvmfs.format.dirent import COLUMNS, Dirent
from include.cvmfs.format.hashes import CATALOG, DIGEST_BYTES, ObjectHash, path_hash
from include.cvmfs.format.objects import Compression
from include.cvmfs.format.paths import name_fault, name_of, name_of_bytes, parent_of
from include.cvmfs.format.schema import NAMES, SCHEMA, Counts

_SAME_ON_BOTH_SIDES = (
    ("name", "name"), ("linkcount", "link count"), ("hardlink_group", "hard-link group"), ("size", "size"),
    ("mode", "mode"), ("mtime", "mtime"), ("hash", "hash"), ("symlink", "symlink"),
    ("external", "external flag"),
)  # fmt: skip
_TYPE_FLAGS = 0x1 | 0x4 | 0x8 | 0x10


def entry_faults(entry: Dirent) -> Iterator[tuple[Subject, str]]:
    """Yield what is wrong with the fields of one entry."""
    if entry.linkcount <= 0:
        yield Subject.ENTRY, "link count 0"
    if entry.is_regular:
        if entry.size < 0:
            yield Subject.ENTRY, f"size {entry.size}"
        if entry.hash is None and not entry.chunked:
            yield Subject.ENTRY, "a regular file without a content hash"
    else:
        flags = (("direct-I/O", entry.direct_io), ("external", entry.external), ("chunked", entry.chunked))
        for word, is_set in flags:
            if is_set:
                yield Subject.ENTRY, f"{word} flag on what is no regular file"
        if entry.hash is not None:
            yield Subject.ENTRY, "a content hash on what is no regular file"
        if entry.is_special and entry.symlink:
            yield Subject.ENTRY, "a special file with a symlink's target"
    if entry.is_directory:
        if entry.hardlink_group:
            yield Subject.ENTRY, f"a directory in hard-link group {entry.hardlink_group}"
    elif entry.linkcount > 1 and not entry.hardlink_group:
        yield Subject.HARDLINK, f"link count {entry.linkcount} without a hard-link group"


def type_fault(entry: Dirent, flags: int) -> str | None:
    """Return what is wrong unless flags and mode state the same type."""
    typed = 0x1 if entry.is_directory else 0x4 | (0x8 if entry.is_symlink else 0x10 if entry.is_special else 0)
    if flags & _TYPE_FLAGS == typed:
        return None
    return f"flags {flags:#x} and mode {entry.mode:#o} have different types"


def transition_faults(above: Dirent, root: Dirent) -> tuple[list[str], list[str]]:
    """In what a mountpoint's row and the nested root entry differ: what must be equal, and what had better be."""
    differing = [word for name, word in _SAME_ON_BOTH_SIDES if getattr(above, name) != getattr(root, name)]
    if above.mtime_ns is not None and root.mtime_ns is not None and above.mtime_ns != root.mtime_ns:
        differing.append("mtime (ns)")  # stock receivers up to 2.11 leave it out above
    if (above.xattr is None) != (root.xattr is None):
        differing.append("presence of extended attributes")
    return differing, [name for name in ("uid", "gid") if getattr(above, name) != getattr(root, name)]


def hardlink_faults(group: int, members: Sequence[tuple[str, Dirent]]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the members of one group in one directory: path and words."""
    first_path, first = members[0]
    if first.linkcount != len(members):
        names = ", ".join(entry.name for _, entry in members[:_NAMED_AT_MOST])
        yield first_path, f"group {group} has link count {first.linkcount}, but {len(members)} members: {names}"
    for path, entry in members[1:]:
        if entry.changed(name=first.name) != first:
            yield path, f"differs from {first.name}, of the same group {group}"


class Tally:
    """Counts entries up. Every field is a counter of the same name as in :class:`Counts`."""

    def __init__(self) -> None:
        self._values = dict.fromkeys(NAMES, 0)

    def add(self, entry: Dirent, chunks: int) -> None:
        values = self._values
        if entry.xattr is not None:
            values["xattr"] += 1
        if entry.is_regular:
            values["regular"] += 1
            values["file_size"] += entry.size
            if entry.chunked:
                values["chunked"] += 1
                values["chunks"] += chunks
                values["chunked_size"] += entry.size
            if entry.external:
                values["external"] += 1
                values["external_file_size"] += entry.size
        else:
            values["dir" if entry.is_directory else "symlink" if entry.is_symlink else "special"] += 1

    def counts(self, nested: int) -> Counts:
        return Counts(**{**self._values, "nested": nested})


Note = Callable[[ObjectHash, str, int, Compression], None]
"""Called for every object that an entry needs: hash, path, uncompressed size in bytes, form of storage."""

_JOURNAL_VERSIONS = slice(18, 20)
_ROLLBACK_JOURNAL = b"\x01\x01"
_SCHEMA_EPSILON = 0.0005
_NAMED_AT_MOST = 5
# The revision of the schema that brought a counter or column; older catalogs are right without.
_COUNTERS_SINCE = {"xattr": 2, "external": 3, "external_file_size": 3, "special": 5}
_LATE_COLUMNS = {"xattr", "mtimens"}
_FLAGS, _NAME, _SYMLINK = 10, 11, 12  # places in a row


@dataclass(frozen=True, slots=True)
class Mounted:
    """A catalog where its parent has it; ``row``: the mountpoint's entry there, ``size``: bytes, 0 if unknown."""

    path: str
    hash: ObjectHash
    size: int
    row: Dirent | None = None


@dataclass(frozen=True, slots=True)
class Audited:
    """Content of a catalog, as counted from its rows; ``stated``: its own counters by name, None for an absent one.

    ``complete`` is false when it could not be read to its end, so that nothing above can be compared with it.
    ``columns``: of its table of entries, in order.
    """

    own: Counts
    stated: dict[str, int | None]
    children: tuple[Mounted, ...]
    entries: int
    complete: bool
    columns: tuple[str, ...] = ()


def audit(mounted: Mounted, database: bytes, findings: Findings, note: Note) -> Audited:
    """Check a catalog's rows; its subtree counters are left to the caller, who knows the catalogs below."""
    return _Audit(mounted, findings, note).run(database)


@dataclass(frozen=True, slots=True)
class Miscount:
    """A counter of the catalog mounted at ``path`` that is not what was counted; ``stored``: None if it is absent."""

    path: str
    counter: str
    stored: int | None
    counted: int

    def __str__(self) -> str:
        return f"{self.counter} is {'absent' if self.stored is None else self.stored}, counted {self.counted}"


def miscounts(path: str, half: str, stated: Mapping[str, int | None], counted: Counts) -> list[Miscount]:
    """The wrong counters of one half (``self`` or ``subtree``), of those that the catalog should have."""
    return [
        Miscount(path, counter, stated[counter], value)
        for name, value in counted.as_dict().items()
        if (counter := f"{half}_{name}") in stated and stated[counter] != value
    ]


def compare_counters(
    findings: Findings, mounted: Mounted, half: str, stated: Mapping[str, int | None], counted: Counts
) -> None:
    """Name every counter of one half that is there, and not what was counted."""
    wrong = [
        str(miscount) for miscount in miscounts(mounted.path, half, stated, counted) if miscount.stored is not None
    ]
    if wrong:
        findings.problem(Subject.COUNTERS, mounted.path, "; ".join(wrong), mounted.hash)


class _Audit:
    def __init__(self, mounted: Mounted, findings: Findings, note: Note) -> None:
        self.mounted = mounted
        self.path = mounted.path
        self.findings = findings
        self.note = note
        self.tally = Tally()
        self.mountpoints: dict[str, Dirent] = {}
        self.binds: set[str] = set()
        self.registered: set[str] = set()
        self.seen = 0
        self.pieces = 0
        self.marked = False
        self.columns: tuple[str, ...] = ()

    def problem(self, subject: Subject, path: str, what: str) -> None:
        self.findings.problem(subject, path, what, self.mounted.hash)

    def run(self, database: bytes) -> Audited:
        recorded = self.mounted.size
        if recorded and len(database) != recorded:
            self.problem(Subject.CATALOG, self.path, f"is of {len(database)} bytes, recorded are {recorded}")
        children: list[Mounted] = []
        stated: dict[str, int | None] = {}
        complete = False
        try:
            self._open(database)
            root = self._root()
            if root is not None:
                self._directories(root)
            self._rows()
            children.extend(self._nested())
            self._binds()
            stated = self._counters()
            complete = True
        except (sqlite3.Error, OverflowError, ValueError, TypeError) as fault:
            what = "a value is NULL or of the wrong type" if isinstance(fault, TypeError) else fault
            self.problem(Subject.CATALOG, self.path, f"cannot be read: {what}")
        own = self.tally.counts(len(self.registered))
        return Audited(own, stated, tuple(children), self.seen, complete, self.columns)

    # -- the file

    def _open(self, database: bytes) -> None:
        if database[_JOURNAL_VERSIONS] != _ROLLBACK_JOURNAL:
            self.problem(Subject.CATALOG, self.path, "needs a write-ahead log: clients cannot open it")
            database = database[:18] + _ROLLBACK_JOURNAL + database[20:]
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.deserialize(database)
        self.db.execute("PRAGMA trusted_schema = OFF")
        self.db.text_factory = name_of_bytes
        strange = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR rootpage = 0"
        if odd := self.db.execute(strange).fetchone():
            raise ValueError(f"holds {odd[0]!r}, which is neither table nor index")
        properties = dict(self.db.execute("SELECT key, value FROM properties"))
        schema = float(properties.get("schema") or 1.0)
        if abs(schema - SCHEMA) > _SCHEMA_EPSILON:
            raise ValueError(f"schema {schema}, this program checks {SCHEMA}")
        revision = int(float(properties.get("schema_revision") or 0))
        self.counters = tuple(name for name in NAMES if _COUNTERS_SINCE.get(name, 0) <= revision)
        # An index that is missing costs readers time only; so it is not to cost the check its end.
        self.db.execute("CREATE INDEX IF NOT EXISTS idx_catalog_parent ON catalog (parent_1, parent_2)")
        self.columns = tuple(row[1] for row in self.db.execute("PRAGMA table_info(catalog)"))
        absent = _LATE_COLUMNS - set(self.columns)
        columns = ", ".join(f"NULL AS {c}" if c in absent else c for c in COLUMNS)
        self.select = f"SELECT md5path_1, md5path_2, parent_1, parent_2, {columns} FROM catalog"  # noqa: S608
        prefix = properties.get("root_prefix") or ""
        if prefix != self.path:
            self.problem(Subject.CATALOG, self.path, f"was made for the mountpoint {prefix or '/'} (root_prefix)")

    def _root(self) -> Dirent | None:
        here = path_hash(self.path)
        row = self.db.execute(f"{self.select} WHERE md5path_1 = ? AND md5path_2 = ?", here).fetchone()
        if row is None:
            self.problem(Subject.CATALOG, self.path, "has no entry for its own root")
            return None
        self.seen += 1
        root = self._decoded(self.path, row)
        if root is None:
            return None
        if not root.is_directory:
            self.problem(Subject.CATALOG, self.path, "the entry of its root is no directory")
        if root.nested_root != bool(self.path):
            has = "has" if root.nested_root else "lacks"
            self.problem(Subject.TRANSITION, self.path, f"the root entry {has} the flag of a nested catalog's root")
        if row[2:4] != (path_hash(parent_of(self.path)) if self.path else (0, 0)):
            self.problem(Subject.ENTRY, self.path, "the root entry's parent hash is not that of the directory above")
        if root.name != name_of(self.path):
            self.problem(Subject.ENTRY, self.path, f"the root entry is named {root.name!r}")
        self._transition(root)
        self._entry(self.path, root)
        return root

    def _transition(self, root: Dirent) -> None:
        if self.mounted.row is None:
            return
        wrong, doubtful = transition_faults(self.mounted.row, root)
        if wrong:
            self.problem(Subject.TRANSITION, self.path, f"differs from the mountpoint's row above: {', '.join(wrong)}")
        if doubtful:
            what = f"differs from the mountpoint's row above: {', '.join(doubtful)}"
            self.findings.warning(Subject.TRANSITION, self.path, what, self.mounted.hash)

    # -- the rows

    def _directories(self, root: Dirent) -> None:
        pending = [(self.path, root)]
        while pending:
            path, directory = pending.pop()
            subdirectories = 0
            groups: dict[int, list[tuple[str, Dirent]]] = {}
            for here, entry in self._children(path):
                self._entry(here, entry)
                if entry.is_directory:
                    subdirectories += 1
                    if entry.mountpoint or entry.bind:
                        self._boundary(here, entry)
                    else:
                        pending.append((here, entry))
                elif entry.hardlink_group:
                    groups.setdefault(entry.hardlink_group, []).append((here, entry))
                if entry.name == MARKER:
                    self._is_marker(path, here, entry)
            if directory.linkcount != subdirectories + 2:
                what = f"is {directory.linkcount}, but {subdirectories} sub-directories make {subdirectories + 2}"
                self.problem(Subject.LINKCOUNT, path, what)
            for group, members in groups.items():
                for place, what in hardlink_faults(group, members):
                    self.problem(Subject.HARDLINK, place, what)
        if self.path and not self.marked:
            self.problem(Subject.MARKER, self.path, "nested catalog without marker")

    def _children(self, path: str) -> Iterator[tuple[str, Dirent]]:
        """The entries of a directory whose rows can be read and are where parent and name put them."""
        for row in self.db.execute(f"{self.select} WHERE parent_1 = ? AND parent_2 = ?", path_hash(path)):
            self.seen += 1
            here = f"{path}/{row[_NAME]}"
            entry = self._decoded(here, row)
            if entry is None:
                continue
            fault = name_fault(entry.name)
            if fault is None and row[:2] != path_hash(here):
                fault = "is stored under the hash of another path"
            if fault is not None:
                self.problem(Subject.ENTRY, here, fault)
                continue
            yield here, entry

    def _decoded(self, path: str, row: tuple[Any, ...]) -> Dirent | None:
        if not isinstance(row[_NAME], str) or not isinstance(row[_SYMLINK], str):
            self.problem(Subject.ENTRY, path, "name or symlink is no text")
            return None
        try:
            entry = Dirent.from_row(row[4:])
        except FormatError as fault:
            self.problem(Subject.ENTRY, path, f"unreadable row: {fault.detail}")
            return None
        if (wrong := type_fault(entry, row[_FLAGS])) is not None:
            self.problem(Subject.ENTRY, path, wrong)
        return entry

    def _entry(self, path: str, entry: Dirent) -> None:
        for subject, what in entry_faults(entry):
            self.problem(subject, path, what)
        chunked = entry.chunked and entry.is_regular
        self.tally.add(entry, self._chunks(path, entry) if chunked else 0)
        if entry.hash is not None and entry.is_regular and not entry.external:
            self.note(entry.hash, path, entry.size, entry.compression)

    def _chunks(self, path: str, entry: Dirent) -> int:
        sql = "SELECT offset, size, hash FROM chunks WHERE md5path_1 = ? AND md5path_2 = ? ORDER BY offset, size"
        end = number = 0
        for offset, size, digest in self.db.execute(sql, path_hash(path)):
            number += 1
            if not (isinstance(offset, int) and isinstance(size, int) and isinstance(digest, bytes)):
                self.problem(Subject.CHUNKS, path, f"chunk {number} is no offset, size and hash")
                continue
            if len(digest) != DIGEST_BYTES:
                self.problem(Subject.CHUNKS, path, f"chunk {number} has a hash of {len(digest)} bytes")
            elif not entry.external:
                self.note(entry.chunk_hash(digest), path, size, entry.compression)
            if offset != end:
                self.problem(Subject.CHUNKS, path, f"chunk {number} begins at byte {offset}, not at {end}")
            end = offset + size
        self.pieces += number
        if number == 0:
            self.problem(Subject.CHUNKS, path, "chunked, but without a chunk")
        elif end != entry.size:
            self.problem(Subject.CHUNKS, path, f"its chunks end at byte {end}, its size is {entry.size}")
        return number

    def _boundary(self, path: str, entry: Dirent) -> None:
        if entry.mountpoint and entry.bind:
            self.problem(Subject.TRANSITION, path, "both nested and bind mountpoint")
        if entry.mountpoint:
            self.mountpoints[path] = entry
        if entry.bind:
            self.binds.add(path)
        below = "SELECT count(*), min(name) FROM catalog WHERE parent_1 = ? AND parent_2 = ?"
        number, name = self.db.execute(below, path_hash(path)).fetchone()
        if number:
            self.seen += number
            what = f"{number} entries below the mountpoint are in the catalog above it, as {name!r}"
            self.problem(Subject.TRANSITION, path, what)

    def _is_marker(self, directory: str, path: str, entry: Dirent) -> None:
        if directory != self.path:
            self.problem(Subject.MARKER, path, "abandoned nested catalog marker")
            return
        self.marked = True
        if not entry.is_regular:
            self.problem(Subject.MARKER, path, "the nested catalog marker is no regular file")
        elif not self.path:
            what = "a nested catalog marker in the root directory: stock publishers refuse to go on"
            self.findings.warning(Subject.MARKER, path, what, self.mounted.hash)

    # -- the tables as a whole

    def _rows(self) -> None:
        (rows,) = self.db.execute("SELECT count(*) FROM catalog").fetchone()
        if rows != self.seen:
            orphans = (
                "SELECT name FROM catalog c WHERE (md5path_1, md5path_2) <> (?, ?) AND NOT EXISTS"
                " (SELECT 1 FROM catalog p WHERE (p.md5path_1, p.md5path_2) = (c.parent_1, c.parent_2)"
                " AND (p.flags & 3) = 1) ORDER BY name LIMIT ?"
            )
            names = ", ".join(str(row[0]) for row in self.db.execute(orphans, (*path_hash(self.path), _NAMED_AT_MOST)))
            what = f"{rows} rows, but {self.seen} are reached from the root; dangling: {names or 'not found by parent'}"
            self.problem(Subject.ROWS, self.path, what)
        (chunks,) = self.db.execute("SELECT count(*) FROM chunks").fetchone()
        if chunks != self.pieces:
            self.problem(Subject.ROWS, self.path, f"{chunks - self.pieces} rows of chunks belong to no chunked file")

    def _nested(self) -> Iterator[Mounted]:
        present = {row[1] for row in self.db.execute("PRAGMA table_info(nested_catalogs)")}
        column = "size" if "size" in present else "0"
        rows = self.db.execute(f"SELECT path, sha1, {column} FROM nested_catalogs ORDER BY path").fetchall()  # noqa: S608
        self.registered = {str(row[0]) for row in rows}
        for path, text, size in rows:
            if path not in self.mountpoints:
                self.problem(Subject.NESTED, str(path), "registered, but no mountpoint is there")
            if not str(path).startswith(f"{self.path}/"):
                self.problem(
                    Subject.NESTED, str(path), f"registered in the catalog of {self.path or '/'}, not above it"
                )
                continue
            try:
                name = ObjectHash.parse(text, suffix=CATALOG)
                mounted = Mounted(path, name, int(size or 0), self.mountpoints.get(path))
            except (FormatError, TypeError, ValueError) as fault:
                self.problem(Subject.NESTED, path, f"unreadable row: {fault}")
                continue
            yield mounted
        for path in sorted(self.mountpoints.keys() - self.registered):
            self.problem(Subject.NESTED, path, "a mountpoint, but no nested catalog is registered for it")

    def _binds(self) -> None:
        rows: set[str] = set()
        if self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'bind_mountpoints'").fetchone():
            rows = {str(row[0]) for row in self.db.execute("SELECT path FROM bind_mountpoints")}
        for path in sorted(rows - self.binds):
            self.problem(Subject.NESTED, path, "registered as a bind mountpoint, but none is there")
        for path in sorted(self.binds - rows):
            self.problem(Subject.NESTED, path, "a bind mountpoint that is not registered")
        for path in sorted(rows & self.registered):
            self.problem(Subject.NESTED, path, "registered both as nested catalog and as bind mountpoint")

    def _counters(self) -> dict[str, int | None]:
        """Compare the catalog's own counters; returns all that it states."""
        stored = dict(self.db.execute("SELECT counter, value FROM statistics"))
        names = [f"{half}_{name}" for half in ("self", "subtree") for name in self.counters]
        stated = {name: stored.get(name) for name in names}
        absent = [name for name, value in stated.items() if value is None]
        if absent:
            self.problem(Subject.COUNTERS, self.path, f"missing: {', '.join(absent)}")
        compare_counters(self.findings, self.mounted, "self", stated, self.tally.counts(len(self.registered)))
        return stated
