"""Jobs and files of the embedded FTS, and the file that keeps them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from include.fts.states import FileState, JobState
from lab.fts.copies.simulated import Content
from lab.fts.errors import FtsServiceError

_F, _J = FileState, JobState
_ENDS = frozenset({_F.FINISHED, _F.FAILED, _F.CANCELED})

FILE_MOVES: Mapping[FileState, frozenset[FileState]] = {
    _F.SUBMITTED: frozenset({_F.ACTIVE, _F.ON_HOLD, _F.CANCELED, _F.FAILED}),
    _F.ON_HOLD: frozenset({_F.SUBMITTED, _F.CANCELED}),
    _F.ACTIVE: frozenset({_F.SUBMITTED, *_ENDS}),
    **dict.fromkeys(_ENDS, frozenset()),
}
"""From each state, those that a file may go to."""

JOB_ENDS: Mapping[frozenset[FileState], JobState] = {
    frozenset({_F.FINISHED}): _J.FINISHED,
    frozenset({_F.FAILED}): _J.FAILED,
    frozenset({_F.CANCELED}): _J.CANCELED,
    frozenset({_F.FINISHED, _F.FAILED}): _J.FINISHEDDIRTY,
    frozenset({_F.FINISHED, _F.CANCELED}): _J.CANCELED,
    frozenset({_F.FAILED, _F.CANCELED}): _J.FAILED,
    _ENDS: _J.FINISHEDDIRTY,
}
"""The state of a job all of whose files have ended, by the states that they have."""

Link = tuple[str, str]
"""Source and destination storage, each `scheme://host`."""


def storage_of(url: str) -> str:
    """`scheme://host`, without a port: two ports of one host are one storage to FTS."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What holds for all files of a job, with the server's defaults filled in. ``verify``: b, s, t or n."""

    verify: str = "n"
    overwrite: bool = False
    overwrite_on_retry: bool = False
    dst_file_report: bool = False
    strict_copy: bool = False
    retry: int = 0
    retry_delay_s: int = 0
    timeout_s: int = 0
    queue_ends: float | None = None
    job_type: str = "N"


@dataclass(slots=True, eq=False)
class FileRecord:
    """One file of a job. ``due``: it is not started before; times are seconds since the epoch."""

    file_id: int
    index: int
    job: JobRecord = field(repr=False)
    source: str
    destination: str
    link: Link
    user_size: int = 0
    checksum: str | None = None
    activity: str = "default"
    metadata: Any = None
    tokens: tuple[str, str] | None = field(default=None, repr=False)
    state: FileState = FileState.SUBMITTED
    reason: str | None = None
    recoverable: bool | None = None
    retry: int = 0
    size: int = 0
    started: float | None = None
    ended: float | None = None
    due: float = 0.0
    attempts: list[tuple[float, str]] | None = None
    """Of earlier tries: when each failed, and why."""

    @property
    def draft(self) -> str:
        """Digits that no other file of any service has: they name what its copy writes until the copy is whole."""
        return hashlib.sha256(f"{self.job.job_id} {self.index}".encode()).hexdigest()[:12]


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job. ``tally``: how many of its files are in which state."""

    job_id: str
    user: str
    vo: str
    options: JobOptions
    priority: int
    metadata: Any
    submitted: float
    state: JobState = JobState.SUBMITTED
    reason: str | None = None
    ended: float | None = None
    files: list[FileRecord] = field(default_factory=list, repr=False)
    tally: Counter[FileState] = field(default_factory=Counter, repr=False)


def move(file: FileRecord, to: FileState, now: float) -> bool:
    """Bring a file into a state; True if its job ends with it. Raises FtsServiceError for an illegal move."""
    if to not in FILE_MOVES[file.state]:
        raise FtsServiceError(f"file {file.file_id} cannot go from {file.state.value} to {to.value}")
    job = file.job
    job.tally[file.state] -= 1
    job.tally[to] += 1
    file.state = to
    if to is FileState.ACTIVE:
        file.started = now
        job.state = JobState.ACTIVE
    elif to in _ENDS:
        file.ended = now
        if end := JOB_ENDS.get(frozenset(state for state, count in job.tally.items() if count)):
            job.state, job.ended = end, now
            if end in (JobState.FAILED, JobState.FINISHEDDIRTY):
                job.reason = "One or more files failed. Please have a look at the details for more information"
            return True
    return False


def recount(job: JobRecord) -> None:
    """Set the tally from the files, as after a start."""
    job.tally = Counter(file.state for file in job.files)


_SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
    job_id TEXT PRIMARY KEY, user TEXT NOT NULL, document TEXT NOT NULL, first_file INTEGER NOT NULL,
    files INTEGER NOT NULL, priority INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT, ended REAL,
    archived INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS job_live ON job (archived, first_file);
CREATE TABLE IF NOT EXISTS outcome (file_id INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ban (kind TEXT, name TEXT, document TEXT NOT NULL, PRIMARY KEY (kind, name));
CREATE TABLE IF NOT EXISTS vo_ban (
    kind TEXT, name TEXT, vo TEXT, document TEXT NOT NULL, PRIMARY KEY (kind, name, vo)
) WITHOUT ROWID;
INSERT OR IGNORE INTO vo_ban SELECT kind, name, '*', document FROM ban;
DELETE FROM ban;
CREATE TABLE IF NOT EXISTS delegation (user TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS name (url TEXT PRIMARY KEY, size INTEGER, checksum INTEGER) WITHOUT ROWID;
"""
_OUTCOME = (
    "state", "reason", "recoverable", "retry", "size", "started", "ended", "due", "attempts", "metadata", "checksum",
)  # fmt: skip
_STATIC = ("source", "destination", "link", "user_size", "checksum", "activity", "metadata", "tokens")


LOCK_S = 2.0  # another service, which ends just now, may have the file for so long


class StateFile:
    """Collection of changes that `flush` writes in one transaction. It belongs to one process.

    Raises FtsServiceError: it cannot be opened, or another service has it.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.chmod(0o600)  # it may hold tokens of storages
            self._db = sqlite3.connect(path, isolation_level=None, timeout=LOCK_S)
            # one process only: the lock is kept
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise FtsServiceError(
                f"state file {path} cannot be opened: {error}; end the other service, or give another path"
            ) from None
        self._new: list[JobRecord] = []
        self._jobs: dict[str, JobRecord] = {}
        self._files: dict[int, FileRecord] = {}
        self._rows: list[tuple[str, tuple[Any, ...]]] = []
        self.next_file = 1 + int(self._one("SELECT coalesce(max(first_file + files), 0) FROM job")[0])

    def close(self) -> None:
        self.flush()
        self._db.close()

    # -- what changed

    def add(self, job: JobRecord) -> None:
        self._new.append(job)

    def job_changed(self, job: JobRecord) -> None:
        self._jobs[job.job_id] = job

    def file_changed(self, file: FileRecord) -> None:
        self._files[file.file_id] = file

    def archived(self, job: JobRecord) -> None:
        self._rows.append(("UPDATE job SET archived = 1 WHERE job_id = ?", (job.job_id,)))

    def forgotten(self, job: JobRecord) -> None:
        """Forget the job, as if it had never been submitted."""
        self._rows.append(("DELETE FROM job WHERE job_id = ?", (job.job_id,)))

    def ban(self, kind: str, name: str, vo: str, document: Mapping[str, Any] | None) -> None:
        """Keep a ban; None ends it."""
        self._keep("vo_ban", {"kind": kind, "name": name, "vo": vo}, document)

    def delegation(self, user: str, document: Mapping[str, Any] | None) -> None:
        self._keep("delegation", {"user": user}, document)

    def flush(self, names: dict[str, Content | None] | None = None) -> None:
        """Write what changed, and the changed names of simulated storages, which are cleared. Raises sqlite3.Error."""
        if not (self._new or self._jobs or self._files or self._rows or names):
            return
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany("INSERT INTO job VALUES (?,?,?,?,?,?,?,?,?,0)", map(_job_row, self._new))
            db.executemany(
                "UPDATE job SET priority = ?, state = ?, reason = ?, ended = ? WHERE job_id = ?",
                [(job.priority, job.state.value, job.reason, job.ended, job.job_id) for job in self._jobs.values()],
            )
            db.executemany("INSERT OR REPLACE INTO outcome VALUES (?, ?)", map(_outcome_row, self._files.values()))
            for statement, values in self._rows:
                db.execute(statement, values)
            if names:
                rows = [(url, *(content or (None, None))) for url, content in names.items()]
                db.executemany("INSERT OR REPLACE INTO name VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._new.clear()
        self._jobs.clear()
        self._files.clear()
        self._rows.clear()
        if names:
            names.clear()

    # -- what is there

    def live_jobs(self) -> Iterator[JobRecord]:
        """The jobs that are not archived, oldest first. A file that was being copied waits again."""
        outcomes: dict[int, str] = dict(self._db.execute(
            "SELECT outcome.file_id, outcome.document FROM job JOIN outcome"
            " ON outcome.file_id >= job.first_file AND outcome.file_id < job.first_file + job.files"
            " WHERE job.archived = 0"
        ))  # fmt: skip
        for row in self._db.execute(f"SELECT {_COLUMNS} FROM job WHERE archived = 0 ORDER BY first_file"):  # noqa: S608
            yield _job(row, outcomes)

    def archived_job(self, job_id: str) -> JobRecord | None:
        """A job from the archive."""
        row = self._one(f"SELECT {_COLUMNS} FROM job WHERE job_id = ? AND archived = 1", job_id)  # noqa: S608
        if row is None:
            return None
        outcomes = dict(self._db.execute(
            "SELECT file_id, document FROM outcome WHERE file_id >= ? AND file_id < ?", (row[3], row[3] + row[4])
        ))  # fmt: skip
        return _job(row, outcomes)

    def bans(self) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        for kind, name, vo, document in self._db.execute("SELECT kind, name, vo, document FROM vo_ban"):
            yield kind, name, vo, json.loads(document)

    def delegations(self) -> dict[str, dict[str, Any]]:
        rows = self._db.execute("SELECT user, document FROM delegation")
        return {user: json.loads(document) for user, document in rows}

    def names(self) -> Iterator[tuple[str, Content | None]]:
        for url, size, checksum in self._db.execute("SELECT url, size, checksum FROM name"):
            yield url, None if size is None else (size, checksum)

    def _one(self, statement: str, *values: object) -> Any:
        with closing(self._db.execute(statement, values)) as rows:
            return rows.fetchone()

    def _keep(self, table: str, key: Mapping[str, str], document: Mapping[str, Any] | None) -> None:
        where, values = " AND ".join(f"{column} = ?" for column in key), tuple(key.values())
        self._rows.append((f"DELETE FROM {table} WHERE {where}", values))  # noqa: S608 - constant names
        if document is not None:
            marks = ", ".join("?" for _ in range(len(values) + 1))
            self._rows.append((f"INSERT INTO {table} VALUES ({marks})", (*values, json.dumps(document))))  # noqa: S608


_COLUMNS = "job_id, user, document, first_file, files, priority, state, reason, ended"


def _job_row(job: JobRecord) -> tuple[Any, ...]:
    files = [[getattr(file, name) for name in _STATIC] for file in job.files]
    document = {
        "vo": job.vo, "options": asdict(job.options), "metadata": job.metadata, "submitted": job.submitted,
        "files": files,
    }  # fmt: skip
    return (
        job.job_id, job.user, json.dumps(document), job.files[0].file_id, len(job.files), job.priority,
        job.state.value, job.reason, job.ended,
    )  # fmt: skip


def _outcome_row(file: FileRecord) -> tuple[int, str]:
    values = [getattr(file, name) for name in _OUTCOME]
    values[0] = file.state.value
    return file.file_id, json.dumps(values)


def _job(row: Iterable[Any], outcomes: Mapping[int, str]) -> JobRecord:
    job_id, user, text, first_file, _, priority, state, reason, ended = row
    document = json.loads(text)
    options = JobOptions(**document["options"])
    job = JobRecord(
        job_id, user, document["vo"], options, priority, document["metadata"], document["submitted"], JobState(state),
        reason, ended,
    )  # fmt: skip
    for index, values in enumerate(document["files"]):
        static = dict(zip(_STATIC, values, strict=True))
        static["link"] = tuple(static["link"])
        static["tokens"] = static["tokens"] and tuple(static["tokens"])
        file = FileRecord(first_file + index, index, job, **static)
        if file.file_id in outcomes:
            for name, value in zip(_OUTCOME, json.loads(outcomes[file.file_id]), strict=True):
                setattr(file, name, FileState(value) if name == "state" else value)
        if file.state is FileState.ACTIVE:
            file.state = FileState.SUBMITTED
        job.files.append(file)
    recount(job)
    if not job.state.terminal:
        job.state = JobState.ACTIVE if any(file.started for file in job.files) else JobState.SUBMITTED
    return job
