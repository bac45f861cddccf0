"""All entries of a tree, taken in any order and given back in path order, with little of it in memory.

A private temporary database does the sorting: it stays in memory while it is small and goes to disk when it is not.
Keys are paths with a NUL before each name, so that a directory comes right before what is below it.
"""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, NamedTuple

from include.cvmfs.errors import SourceError
from include.cvmfs.format.catalog import AUTO_MARKER, MARKER
from include.cvmfs.sources.source import SPECIALS, Entry, EntryKind, OwnerMap, fixed, printable, refused

_BATCH = 500
_CACHE_KIB = 32 << 10
_ROOT_KEY = b""
_MARKERS = frozenset({MARKER.encode(), AUTO_MARKER.encode()})
_GRAFT = b".cvmfsgraft-"
_GRAFT_REFUSED = "is a graft marker, which only the stock tools read; remove it, or publish the file itself"
_DEVICES = frozenset({EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE})
_TYPES = {
    EntryKind.FILE: stat.S_IFREG,
    EntryKind.DIRECTORY: stat.S_IFDIR,
    EntryKind.SYMLINK: stat.S_IFLNK,
    EntryKind.FIFO: stat.S_IFIFO,
    EntryKind.SOCKET: stat.S_IFSOCK,
    EntryKind.CHARACTER_DEVICE: stat.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat.S_IFBLK,
}
_TABLES = f"""
PRAGMA page_size = 16384;
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -{_CACHE_KIB};
PRAGMA locking_mode = EXCLUSIVE;
CREATE TABLE members (
  key BLOB PRIMARY KEY, parent INTEGER, mode INTEGER, size INTEGER, mtime INTEGER, uid INTEGER, gid INTEGER,
  digest BLOB, symlink TEXT, file INTEGER, chunks INTEGER, mtime_ns INTEGER, xattr BLOB, external INTEGER,
  linked INTEGER) WITHOUT ROWID;
CREATE TABLE pieces (file INTEGER, start INTEGER, size INTEGER, digest BLOB, PRIMARY KEY (file, start)) WITHOUT ROWID;
BEGIN;
"""
_INSERT = "INSERT OR IGNORE INTO members VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
# 61440 is S_IFMT, 16384 is S_IFDIR.
_DIRECTORIES = "SELECT key FROM members WHERE (mode & 61440) = 16384 ORDER BY key"
_SUBDIRECTORIES = """
SELECT substr(key, 1, parent) AS folder, count(*) FROM members
WHERE (mode & 61440) = 16384 AND key <> x'' GROUP BY folder ORDER BY folder
"""
_ORPHANS = """
SELECT folder, below FROM
  (SELECT substr(key, 1, parent) AS folder, min(key) AS below FROM members WHERE key <> x'' GROUP BY folder)
WHERE NOT EXISTS (SELECT 1 FROM members WHERE key = folder AND (mode & 61440) = 16384)
"""
_LINK_GROUPS = """
SELECT substr(key, 1, parent) AS folder, file, count(*) AS names FROM members
WHERE linked GROUP BY folder, file HAVING names > 1 ORDER BY folder, file
"""
_SPLIT_LINKS = """
SELECT count(*) FROM
  (SELECT 1 FROM members WHERE linked GROUP BY file HAVING count(DISTINCT substr(key, 1, parent)) > 1)
"""
# What makes two members of one name differ, and the words for it.
_SEEN = {
    "mode": "kind or mode",
    "size": "size",
    "digest": "content",
    "chunks": "content",
    "symlink": "target",
    "mtime": "time",
    "mtime_ns": "time",
    "uid": "owner",
    "gid": "group",
    "xattr": "extended attributes",
}
_PIECES = "SELECT start, size, digest FROM pieces WHERE file = ? ORDER BY start"


class Specials(Enum):
    """Fate of fifos, sockets and devices: named and refused, taken, or left out."""

    REFUSE = "refuse"
    KEEP = "keep"
    SKIP = "skip"


class SpecialBits(Enum):
    """Fate of set-uid, set-gid and sticky bits: taken off and counted, or kept."""

    STRIP = "strip"
    KEEP = "keep"


class Row(NamedTuple):
    """An entry in path order: a tuple, because there are millions.

    ``parent``: length of the parent's part of ``key``; ``file``: names of the same file have the same number.
    """

    key: bytes
    parent: int
    mode: int
    size: int
    mtime: int
    uid: int
    gid: int
    digest: bytes | None
    symlink: str
    file: int
    chunks: int
    mtime_ns: int | None
    xattr: bytes | None
    external: int
    linked: int


class Spool:
    """Entries of the tree ``source``. Use as a context.

    ``owner``: one (uid, gid) for all, or a map; ``mtime``: Unix s for all; ``mtime_ns``: keep nanoseconds;
    ``external``: regular files are served by others, from their paths.
    """

    def __init__(
        self,
        source: str,
        *,
        owner: tuple[int, int] | OwnerMap | None = None,
        mtime: int | None = None,
        mtime_ns: bool = False,
        specials: Specials = Specials.REFUSE,
        special_bits: SpecialBits = SpecialBits.STRIP,
        external: bool = False,
    ) -> None:
        self._source = source
        self._owners = fixed(*owner) if isinstance(owner, tuple) else owner
        self._mtime = mtime
        self._mtime_ns = mtime_ns
        self._specials = specials
        self._stripped_bits = 0o7000 if special_bits is SpecialBits.STRIP else 0
        self._external = int(external)
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(_TABLES)
        self._batch: list[tuple[Any, ...]] = []
        self._files = 0
        self._newest: int | None = None
        self._left_out: set[str] = set()
        self.members = 0
        self.markers: set[bytes] = set()
        self.automatic: set[bytes] = set()
        self.stripped = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()
        if isinstance(fault, sqlite3.Error):
            cure = "free space in the folder for temporary files, or set SQLITE_TMPDIR to another one"
            raise SourceError(printable(self._source), f"its entries cannot be sorted ({fault}); {cure}") from fault

    @property
    def skipped(self) -> int:
        """Names of special files that were left out."""
        return len(self._left_out)

    @property
    def newest(self) -> int:
        """The newest modification time in the tree, Unix s."""
        return self._newest or 0

    def add(self, entry: Entry, digest: bytes | None = None, pieces: Sequence[tuple[int, int, bytes]] = ()) -> None:
        """Take an entry; regular files with their digest, or with their pieces (offset, size in bytes, digest).

        An entry that is there already and equal, or a hard link to itself, changes nothing: tar packs both if its list
        names a directory and what is in it. Raises SourceError for an entry that was there before and differs, a
        special file, and a hard link to what was not.
        """
        kind = entry.kind
        is_file = kind is EntryKind.FILE  # checked first: most entries are files, and there are millions
        if not is_file and kind in SPECIALS and not self._takes_special(entry):
            return
        key = key_of(entry.path)
        parent = max(key.rfind(b"\0"), 0)
        if not key and kind is not EntryKind.DIRECTORY:
            raise refused(self._source, entry.path or ".", f"is a {kind.value} in the place of the tree's root")
        external = self._external if is_file else 0
        name = key[parent + 1 :]
        if name.startswith(_GRAFT):
            raise refused(self._source, entry.path, _GRAFT_REFUSED)
        if name in _MARKERS:
            self._mark(entry, key[:parent], automatic=name != MARKER.encode())
            external = 0
        if kind is EntryKind.HARDLINK:
            self._link(entry, key, parent)
            return
        mode, size = entry.mode, entry.size
        if mode & self._stripped_bits:
            self.stripped += 1
            mode &= 0o777
        if is_file:
            mode |= stat.S_IFREG
        else:
            mode = _TYPES[kind] | (0o777 if kind is EntryKind.SYMLINK else mode)
            size = entry.device if kind in _DEVICES else size
        self._files += 1
        uid, gid = (entry.uid, entry.gid) if self._owners is None else self._owners.of(entry.uid, entry.gid)
        mtime, mtime_ns = (entry.mtime, entry.mtime_ns) if self._mtime is None else (self._mtime, 0)
        if self._newest is None or mtime > self._newest:
            self._newest = mtime
        number = self._files
        if pieces:
            self._db.executemany("INSERT INTO pieces VALUES (?,?,?,?)", [(number, *piece) for piece in pieces])
        self._append(
            (
                key, parent, mode, size, mtime, uid, gid, digest, entry.symlink, number,
                len(pieces), mtime_ns if self._mtime_ns else None, entry.xattr, external, 0,
            )
        )  # fmt: skip

    def complete(self) -> None:
        """Add the directories that were only implied. Raises SourceError for what is below something else."""
        self._flush()
        for missing, below in self._db.execute(_ORPHANS).fetchall():
            self._imply(missing, below)
        if self._find(_ROOT_KEY) is None:
            self._imply(_ROOT_KEY, _ROOT_KEY)
        self._flush()

    def plant(self, folder: bytes, name: str, mode: int, digest: bytes) -> None:
        """Put an empty file into a directory of the complete spool: its owner's, and of the tree's newest time.

        A file of that name that is there already stays. Raises SourceError if something else is there.
        """
        self._flush()
        key = folder + b"\0" + name.encode()
        member, above = self._find(key), self._find(folder)
        assert above is not None  # noqa: S101 - the caller has the directory from here
        if member is None:
            self._files += 1
            row = (key, len(folder), stat.S_IFREG | mode, 0, self.newest, above.uid, above.gid, digest, "", self._files)
            self._append((*row, 0, 0 if self._mtime_ns else None, None, 0, 0))
        elif not stat.S_ISREG(member.mode):
            problem = f"must be a regular file, since its directory is made a nested catalog; remove {name}"
            raise refused(self._source, path_of(key), problem)
        (self.markers if name == MARKER else self.automatic).add(folder)

    def unmark(self, folder: bytes) -> None:
        """Take both markers out of a directory of the complete spool."""
        self._flush()
        keys = [(folder + b"\0" + name,) for name in _MARKERS]
        before = self._db.total_changes
        self._db.executemany("DELETE FROM members WHERE key = ?", keys)
        self.members -= self._db.total_changes - before
        self.markers.discard(folder)
        self.automatic.discard(folder)

    def directories(self) -> Iterator[bytes]:
        """Keys of all directories, in path order."""
        self._flush()
        return (key for (key,) in self._db.execute(_DIRECTORIES))

    def outline(self) -> Iterator[tuple[bytes, int, int]]:
        """Key, length of the parent's part of it, and mode of all entries, in path order."""
        self._flush()
        return iter(self._db.execute("SELECT key, parent, mode FROM members ORDER BY key"))

    def rows(self) -> Iterator[Row]:
        """All entries, each directory followed by what is below it, names in byte order."""
        self._flush()
        return map(Row._make, self._db.execute("SELECT * FROM members ORDER BY key"))

    def subdirectories(self) -> Iterator[tuple[bytes, int]]:
        """Keys of directories in path order, with the number of directories right in them, if any."""
        return iter(self._db.execute(_SUBDIRECTORIES))

    def link_groups(self) -> Iterator[tuple[bytes, int, int]]:
        """Keys of directories in path order, file, and number of its names there, if more than one."""
        return iter(self._db.execute(_LINK_GROUPS))

    def split_links(self) -> int:
        """Return how many files have names in several directories."""
        return int(self._db.execute(_SPLIT_LINKS).fetchone()[0])

    def pieces(self, file: int) -> list[tuple[int, int, bytes]]:
        """Offset, size in bytes and digest of a chunked file's pieces."""
        return self._db.execute(_PIECES, [file]).fetchall()

    @property
    def root(self) -> Row:
        """The row of the tree's root; it is there once the spool is complete."""
        row = self._find(_ROOT_KEY)
        assert row is not None  # noqa: S101
        return row

    # -- private

    def _takes_special(self, entry: Entry) -> bool:
        if self._specials is Specials.REFUSE:
            problem = f"is a {entry.kind.value}; special files are not published unless this is asked for"
            raise refused(self._source, entry.path, f"{problem}: remove it, or have them kept or left out")
        if self._specials is Specials.SKIP:
            self._left_out.add(entry.path)
        return self._specials is Specials.KEEP

    def _mark(self, entry: Entry, folder: bytes, *, automatic: bool) -> None:
        if entry.kind in (EntryKind.FILE, EntryKind.HARDLINK):
            (self.automatic if automatic else self.markers).add(folder)
        elif not automatic:
            problem = f"is a {entry.kind.value}, but {MARKER} must be a regular file"
            raise refused(self._source, entry.path, f"{problem}; replace or remove it")

    def _link(self, entry: Entry, key: bytes, parent: int) -> None:
        if entry.hardlink_to in self._left_out:
            self._left_out.add(entry.path)
            return
        self._flush()
        target = key_of(entry.hardlink_to)
        row = self._find(target)
        if row is None or stat.S_ISDIR(row.mode):
            what = "is not there before it" if row is None else "is no file"
            problem = f"is a hard link to {printable(entry.hardlink_to)!r}, which {what}"
            raise refused(self._source, entry.path, f"{problem}; pack the tree again")
        if target == key:
            return
        if key[parent + 1 :] == MARKER.encode() and (not stat.S_ISREG(row.mode) or row.external):
            problem = "a separate regular file" if row.external else "a regular file"
            raise refused(self._source, entry.path, f"{MARKER} must be {problem}; replace or remove it")
        linked = int(stat.S_ISREG(row.mode))
        if linked and not row.linked:
            self._db.execute("UPDATE members SET linked = 1 WHERE key = ?", [target])
        self._append((key, parent, *row[2:-1], linked))

    def _find(self, key: bytes) -> Row | None:
        row = self._db.execute("SELECT * FROM members WHERE key = ?", [key]).fetchone()
        return None if row is None else Row._make(row)

    def _imply(self, key: bytes, below: bytes) -> None:
        """Add a directory that no entry named, and those above it."""
        while True:
            member = self._find(key)
            if member is not None:
                if stat.S_ISDIR(member.mode):
                    return
                kind = "a symbolic link" if stat.S_ISLNK(member.mode) else "not a directory"
                problem = f"lies below {printable(path_of(key))!r}, which is {kind}"
                raise refused(self._source, path_of(below), f"{problem}; pack the tree again")
            parent = max(key.rfind(b"\0"), 0)
            uid, gid = (0, 0) if self._owners is None else self._owners.of(0, 0)
            row = (key, parent, stat.S_IFDIR | 0o755, 0, self.newest, uid, gid, None, "", 0)
            self._append((*row, 0, 0 if self._mtime_ns else None, None, 0, 0))
            self._flush()
            if not key:
                return
            key = key[:parent]

    def _append(self, row: tuple[Any, ...]) -> None:
        self._batch.append(row)
        self.members += 1
        if len(self._batch) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._batch:
            return
        before = self._db.total_changes
        self._db.executemany(_INSERT, self._batch)
        repeated = len(self._batch) - (self._db.total_changes - before)
        if repeated:
            for row in map(Row._make, self._batch):
                self._compare(row)
            self.members -= repeated
        self._batch.clear()

    def _compare(self, row: Row) -> None:
        """Raise SourceError if another row of this key is kept, and differs in what can be seen of it."""
        first = self._find(row.key)
        assert first is not None  # noqa: S101 - it has just been put there, or was there
        if first.file == row.file:
            return
        differing = [word for name, word in _SEEN.items() if getattr(first, name) != getattr(row, name)]
        if not differing and row.chunks and self.pieces(first.file) != self.pieces(row.file):
            differing = [_SEEN["digest"]]
        if differing:
            problem = f"is there twice, with another {differing[0]}"
            raise refused(self._source, path_of(row.key) or ".", f"{problem}; pack the tree again with one of them")


def is_marker(path: str) -> bool:
    """Tell whether a path is that of a file that marks its directory as a nested catalog."""
    return path.rpartition("/")[2] in (MARKER, AUTO_MARKER)


def key_of(path: str) -> bytes:
    """The sorting key of a relative path; the root has the empty one."""
    return b"\0" + path.encode().replace(b"/", b"\0") if path else _ROOT_KEY


def path_of(key: bytes) -> str:
    """The relative path of a key."""
    return key[1:].replace(b"\0", b"/").decode()
