"""The history: a repository's named revisions (docs/formats.md, history)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from include.cvmfs.errors import FormatError, RepositoryError, TagError
from include.cvmfs.format.database import Database
from include.cvmfs.format.hashes import CATALOG, HISTORY, SHA1, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.objects import compress

TRUNK, TRUNK_PREVIOUS = "trunk", "trunk-previous"
_UNDO_TAGS = {TRUNK: "current HEAD", TRUNK_PREVIOUS: "default undo target"}
_LONGEST_NAME = 255
NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line breaks and lone surrogates: neither the name nor the description of a tag has any."""

_COLUMNS = "name, hash, revision, timestamp, size, description, branch"
_INSERT = f"INSERT INTO tags ({_COLUMNS}, channel) VALUES (?, ?, ?, ?, ?, ?, ?, 0)"  # noqa: S608
_REVISION = 3
_BRANCHES = """
CREATE TABLE IF NOT EXISTS branches
  (branch TEXT, parent TEXT, initial_revision INTEGER, CONSTRAINT pk_branch PRIMARY KEY (branch),
  FOREIGN KEY (parent) REFERENCES branches (branch),
  CHECK ((branch <> '') OR (parent IS NULL)), CHECK ((branch = '') OR (parent IS NOT NULL)))"""
_RECYCLE_BIN = (
    "CREATE TABLE IF NOT EXISTS recycle_bin (hash TEXT, flags INTEGER, CONSTRAINT pk_hash PRIMARY KEY (hash))"
)
_TABLES = f"""
CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
{_BRANCHES};
CREATE TABLE tags (name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, channel INTEGER, description TEXT,
  size INTEGER, branch TEXT, CONSTRAINT pk_tags PRIMARY KEY (name),
  FOREIGN KEY (branch) REFERENCES branches (branch));
{_RECYCLE_BIN};
INSERT INTO properties VALUES ('schema', '1.0'), ('schema_revision', '{_REVISION}');
INSERT INTO branches VALUES ('', NULL, 0);
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Tag:
    """A named revision. Hash, revision, timestamp (Unix seconds) and size (bytes of the SQLite file) are those of the
    root catalog that it names."""

    name: str
    hash: ObjectHash
    revision: int
    timestamp: int
    size: int
    description: str = ""
    branch: str = ""

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Tag:
        name, text, revision, timestamp, size, description, branch = row
        root = ObjectHash.parse(str(text), suffix=CATALOG)
        numbers = (revision, timestamp, 0 if size is None else size)
        if not isinstance(name, str) or str(root) != text or not all(isinstance(number, int) for number in numbers):
            raise FormatError("history", f"the row of tag {str(name)[:60]!r} is no name, hash and numbers")
        return cls(name, root, *numbers, str(description or ""), str(branch or ""))  # type: ignore[arg-type]

    def to_row(self) -> tuple[str, str, int, int, int, str, str]:
        text = str(self.hash)
        return self.name, text, self.revision, self.timestamp, self.size, self.description, self.branch


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of revisions; the default one has the empty name and no parent."""

    name: str
    parent: str | None
    initial_revision: int

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> Branch:
        name, parent, revision = row
        if not isinstance(name, str) or not isinstance(parent, str | None) or not isinstance(revision, int):
            raise FormatError("history", f"the row of branch {str(name)[:60]!r} is no name, parent and number")
        return cls(name, parent, revision)


def check_tag_name(name: str) -> str:
    """The name, if users may give it to a tag. Raises TagError."""
    if name in _UNDO_TAGS:
        raise TagError(name, "is kept by every commit and not made or removed by hand; choose another name")
    if not name or not name.isprintable() or " " in name or len(name.encode()) > _LONGEST_NAME:
        raise TagError(name, f"a name is 1 to {_LONGEST_NAME} bytes of printable text without blanks; choose another")
    return name


def check_tag_description(name: str, description: str) -> str:
    """The description, if the tag ``name`` may have it: listings have one tag a line. Raises TagError."""
    if NOT_IN_A_LINE.search(description):
        raise TagError(name, "its description has a line break or another control character; write it in one line")
    return description


class History(Database):
    """A history database, schema 1.0 revision 3; one of an older revision is brought up to it when it is opened.

    It is published only with at least one tag in it (:meth:`pack`).
    """

    WHAT = "history"
    TABLES = {  # noqa: RUF012
        "tags": ("name", "hash", "revision", "timestamp", "channel", "description", "size", "branch"),
        "branches": ("branch", "parent", "initial_revision"),
    }

    @classmethod
    def create(cls, fqrn: str) -> Self:
        history = cls._create(_TABLES)
        history.set_property("fqrn", fqrn)
        return history

    def _check_tables(self) -> None:
        if self._revision() < _REVISION:
            self._upgrade()
        super()._check_tables()

    def _revision(self) -> int:
        text = self.get_property("schema_revision") or "0"
        try:
            return int(float(text))
        except (ValueError, OverflowError):
            raise FormatError(self.WHAT, f"its schema has the revision {text[:20]!r}, which is no number") from None

    def _upgrade(self) -> None:
        """Add what came with later revisions: sizes, the table that is kept empty, branches."""
        present = {str(row[1]) for row in self._all("PRAGMA table_info(tags)")}
        for column in ("size INTEGER DEFAULT 0", "branch TEXT DEFAULT ''"):
            if present and column.partition(" ")[0] not in present:
                self._run(f"ALTER TABLE tags ADD COLUMN {column}")
        self._run(_RECYCLE_BIN)
        self._run(_BRANCHES)
        self._run("INSERT OR IGNORE INTO branches VALUES ('', NULL, 0)")
        self.set_property("schema_revision", str(_REVISION))

    def _require_writable(self) -> None:
        if (revision := self._revision()) > _REVISION:
            what = f"is of revision {revision} of its schema, this program writes {_REVISION}"
            raise FormatError(self.WHAT, f"{what}; use a newer version of this program")

    @property
    def fqrn(self) -> str:
        return self.get_property("fqrn") or ""

    @property
    def previous_revision(self) -> ObjectHash | None:
        """The history database before this one."""
        text = self.get_property("previous_revision")
        previous = ObjectHash.parse(text, suffix=HISTORY) if text else None
        return None if previous is None or previous.is_null else previous

    def set_previous(self, previous: ObjectHash) -> None:
        self.set_property("previous_revision", str(previous))

    def tags(self) -> list[Tag]:
        """All tags, latest revision first."""
        rows = self._all(f"SELECT {_COLUMNS} FROM tags ORDER BY revision DESC, timestamp DESC, name")  # noqa: S608
        return [Tag.from_row(row) for row in rows]

    def tag(self, name: str) -> Tag | None:
        rows = self._all(f"SELECT {_COLUMNS} FROM tags WHERE name = ?", name)  # noqa: S608
        return Tag.from_row(rows[0]) if rows else None

    def __len__(self) -> int:
        """Return how many tags there are."""
        return int(self._all("SELECT count(*) FROM tags")[0][0])

    def branches(self) -> list[Branch]:
        rows = self._all("SELECT branch, parent, initial_revision FROM branches ORDER BY branch")
        return [Branch.from_row(row) for row in rows]

    def add(self, tag: Tag) -> None:
        """Add a tag. Raises TagError if its name is reserved, badly formed or taken, or its branch unknown."""
        check_tag_name(tag.name)
        if self.tag(tag.name):
            raise TagError(tag.name, "exists already; remove or move it, or choose another name")
        self._insert(tag)

    def move(self, tag: Tag) -> Tag | None:
        """Move an existing name to another revision and return its former tag; add a new name and return None."""
        check_tag_name(tag.name)
        before = self.tag(tag.name)
        with self._transaction():
            self._delete(tag.name)
            self._insert(tag)
        return before

    def remove(self, *names: str) -> int:
        """Remove tags, and branches left without one; give how many tags there were. Raises TagError if reserved."""
        removed = 0
        for name in names:
            check_tag_name(name)
            removed += self._delete(name)
        if removed:
            self._prune_branches()
            self._run("VACUUM")
        return removed

    def rotate_trunk(self, head: Tag, previous: ObjectHash | None = None, *, rollback: bool = False) -> None:
        """Move ``trunk`` to ``head``, and ``trunk-previous`` to where it was (dropped by a rollback).

        Name and description of ``head`` do not matter. ``previous``: hash of the history that this one follows.
        """
        with self._transaction():
            before = self.tag(TRUNK)
            self._delete(TRUNK_PREVIOUS)
            self._delete(TRUNK)
            if before and not rollback:
                self._insert(replace(before, name=TRUNK_PREVIOUS, description=_UNDO_TAGS[TRUNK_PREVIOUS]))
            self._insert(replace(head, name=TRUNK, description=_UNDO_TAGS[TRUNK]))
            if previous is not None:
                self.set_previous(previous)

    def problems(self) -> list[str]:
        """Return what the stock check would complain about; empty when nothing."""
        branches = {branch.name: branch for branch in self.branches()}
        tags = self.tags()
        problems = [] if tags else ["holds no tag"]
        for tag in tags:
            branch = branches.get(tag.branch)
            if branch is None:
                problems.append(f"tag {tag.name} is on branch {tag.branch!r}, which does not exist")
            elif tag.revision < branch.initial_revision:
                problems.append(f"tag {tag.name} is older than its branch {tag.branch!r}")
        unused = sorted(branches.keys() - {tag.branch for tag in tags})
        return problems + [f"branch {name!r} is not used by any tag" for name in unused]

    def pack(self, algorithm: Algorithm = SHA1) -> tuple[ObjectHash, bytes]:
        """The history as an object: its hash and stored bytes. Raises RepositoryError without a tag."""
        if not len(self):
            raise RepositoryError(self.fqrn, "a history without a tag is not published; add a tag or leave it out")
        data = compress(self.to_bytes())
        return hash_bytes(data, algorithm, HISTORY), data

    def _insert(self, tag: Tag) -> None:
        self._require_writable()
        if not self._all("SELECT 1 FROM branches WHERE branch = ?", tag.branch):
            raise TagError(tag.name, f"is to be on branch {tag.branch!r}, which does not exist; use an existing branch")
        self._run(_INSERT, *tag.to_row())

    def _delete(self, name: str) -> int:
        self._require_writable()
        return self._run("DELETE FROM tags WHERE name = ?", name)

    def _prune_branches(self) -> None:
        # The default branch stays: it is the ancestor of all others, and the next tag needs it.
        unused = (
            "branch NOT IN (SELECT branch FROM tags) AND branch NOT IN (SELECT parent FROM branches WHERE parent <> '')"
        )
        while self._run(f"DELETE FROM branches WHERE branch <> '' AND {unused}"):  # noqa: S608
            pass
