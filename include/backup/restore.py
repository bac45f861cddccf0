"""Restoring a site from a backup: ledger, then gateway state, then keys; a restore that was killed is run again.

Each part is put together beside its place, and is moved there whole. The ledger comes first and says that it was
restored; the keys come last, since nothing is published or collected without them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, Engine, MetaData, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from include.backup.archive import BackupManifest, BackupPart, OpenedBackup, Opener, unseal
from include.backup.errors import BACKUP_NO_ROOM, BACKUP_OF_ANOTHER, KEYS_LOCKED, RESTORE_IN_USE, BackupError, of_files
from include.cvmfs.format.keys import KeyFile, locked_keys, save_key_file
from include.gateway.service.leases.lease_rows import SCHEMA_VERSION, begin_again
from include.ledger.acts import LedgerRestore, record_restore, restores_of
from include.ledger.copies import ROOM_LEFT, load_dump
from include.ledger.engine import open_ledger, reading, writing
from include.ledger.errors import LedgerError
from include.ledger.migrate import migrate
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets, ledger_address

OnStep = Callable[[str], None]
LOADING = "nightshift_restoring"
"""Table of a server's database while a dump is loaded into it."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """Options of a restore.

    Attributes:
        by: Person who restores.
        opener: Means to open the keys; None: keys are not restored.
        on_step: Called with the name of each step when it is done.
        replaces_keys: Other keys of the same names are set aside, and not a refusal.
    """

    by: str
    opener: Opener | None = None
    on_step: OnStep = lambda _: None
    replaces_keys: bool = False


def restore_settings(backup: OpenedBackup, file: Path) -> bool:
    """Write the configuration of a backup to a file that does not exist; whether it was written. Raises BackupError."""
    if file.exists() or BackupPart.SETTINGS not in backup.manifest.parts:
        return False
    content = b"".join(backup.pieces(BackupPart.SETTINGS))
    staged = file.with_name(f"{file.name}.restoring")
    _discard(staged)
    _write(staged, iter([content]), mode=0o640)
    _move(staged, file)
    _discard(staged)
    return True


def restore(
    backup: OpenedBackup, settings: SiteSettings, secrets: Secrets, options: RestoreOptions, *, now: datetime
) -> Sequence[str]:
    """Restore all parts of a backup, and return a line about each. Run again after it was killed, it goes on.

    Everything is checked before anything is changed. Raises BackupError: BACKUP_DAMAGED, BACKUP_NEWER,
    BACKUP_OF_ANOTHER, BACKUP_NO_ROOM, KEYS_LOCKED, and RESTORE_IN_USE where something else has the place of a part;
    LedgerError.
    """
    manifest = backup.manifest
    manifest.require_readable()
    _require_of(manifest, settings)
    backup.check()
    engine = open_ledger(ledger_address(settings, secrets))
    ledger = _LedgerFile(backup, engine, options) if engine.dialect.name == "sqlite" else _LedgerServer(
        backup, engine, options
    )  # fmt: skip
    gateway, keys = _GatewayState(backup, settings, options), _Keys(backup, settings, options)
    margin = timedelta(days=settings.stageout.unknown_days)
    with of_files(manifest.name, settings.paths.var), gateway.locked():
        for part in (ledger, gateway, keys):
            part.require_place()
        options.on_step("checked")
        # a file that was requested after the backup may have been written long before it
        noted = LedgerRestore(manifest.created - margin, now, options.by[:128], manifest.name)
        try:
            return [ledger.restore(noted), gateway.restore(now), keys.restore()]
        finally:
            engine.dispose()


def restore_keys(
    backup: OpenedBackup, settings: SiteSettings, options: RestoreOptions, *, now: datetime
) -> Sequence[str]:
    """Restore the key files alone, while services may be at work; a line about each. Nothing else is read or changed.

    Raises BackupError before anything is changed: BACKUP_DAMAGED, BACKUP_OF_ANOTHER, KEYS_LOCKED, and RESTORE_IN_USE
    where a key differs and `options` do not replace it. After a kill it can be run again.
    """
    manifest = backup.manifest
    _require_of(manifest, settings)
    if BackupPart.KEYS not in manifest.parts:
        raise BackupError(manifest.name, "it has no keys; use another one: nightshift backup list")
    keys = _Keys(backup, settings, options)
    with of_files(manifest.name, settings.gateway.keys):
        keys.require_place()
        return [*keys.replace(now), keys.restore()]


def _require_of(manifest: BackupManifest, settings: SiteSettings) -> None:
    if not manifest.is_of([*settings.repositories], [*settings.sites]):
        names = ", ".join([*manifest.repositories, *manifest.sites])
        raise BACKUP_OF_ANOTHER(manifest.name, f"it is of {names}, none of which the configuration has")


class _LedgerFile:
    """A ledger in a file."""

    def __init__(self, backup: OpenedBackup, engine: Engine, options: RestoreOptions) -> None:
        self.backup, self.options = backup, options
        self.file = Path(str(engine.url.database)).absolute()
        self.staged = self.file.with_name(f"{self.file.name}.restoring")
        self.url = engine.url

    def require_place(self) -> None:
        name = self.backup.manifest.name
        if self.backup.manifest.ledger_part is not BackupPart.LEDGER:
            what = "its ledger is the dump of a server, and the configuration names a file"
            raise BackupError(name, f"{what}; set `ledger` to an empty database of such a server")
        _require_no_rest(name, self.file)
        done = self.file.exists() and self._is_done()
        if self.file.exists() and not done:
            _require_unused(name, self.file)
        room = shutil.disk_usage(self.file.parent).free
        needed = self.backup.manifest.parts[BackupPart.LEDGER].content_bytes + ROOM_LEFT
        if room < needed and not done:
            what = f"its ledger has {needed >> 20} MiB, and {self.file.parent} has {room >> 20} MiB left"
            raise BACKUP_NO_ROOM(name, what)

    def restore(self, noted: LedgerRestore) -> str:
        if self.file.exists() and self._is_done():
            _discard(self.staged)
            return f"ledger {self.file}: restored before"
        _discard(self.staged)
        _write(self.staged, self.backup.pieces(BackupPart.LEDGER), mode=0o640)
        self.options.on_step("ledger unpacked")
        staged = open_ledger(self.url.set(database=str(self.staged)))
        migrate(staged)
        record_restore(staged, noted)
        staged.dispose()
        with closing(sqlite3.connect(self.staged)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        _sync(self.staged)
        self.options.on_step("ledger noted")
        if self.file.exists():
            _require_unused(self.backup.manifest.name, self.file)  # again: unpacking took its time
            _discard(self.file)
        _move(self.staged, self.file)
        _discard(self.staged)
        self.options.on_step("ledger placed")
        return f"ledger {self.file}: restored"

    def _is_done(self) -> bool:
        engine = open_ledger(self.url)
        try:
            return any(restore.backup == self.backup.manifest.name for restore in restores_of(engine))
        except (SQLAlchemyError, LedgerError):
            return False  # another ledger, of another version, or none
        finally:
            engine.dispose()


class _LedgerServer:
    """A ledger in an empty database of a server. A load that was killed is begun again."""

    def __init__(self, backup: OpenedBackup, engine: Engine, options: RestoreOptions) -> None:
        self.backup, self.engine, self.options = backup, engine, options
        self.name = backup.manifest.name

    def require_place(self) -> None:
        if self.backup.manifest.ledger_part is not BackupPart.LEDGER_DUMP:
            what = "its ledger is a file of SQLite, and the configuration names a server"
            raise BackupError(self.name, f"{what}; set `ledger` to sqlite:///FILE")
        tables = self._tables()
        if tables and self._loading() != self.name and not self._is_done(tables):
            raise RESTORE_IN_USE(self.name, f"the database of the ledger has {len(tables)} tables")

    def restore(self, noted: LedgerRestore) -> str:
        if self._is_done(self._tables()):  # also where the mark was left: the tables may be in use by now
            writing(self.engine, self._end)
            return "ledger: restored before"
        writing(self.engine, self._begin)
        self.options.on_step("ledger emptied")
        load_dump(self.engine, self.backup.pieces(self.backup.manifest.ledger_part))
        self.options.on_step("ledger unpacked")
        migrate(self.engine)
        record_restore(self.engine, noted)
        self.options.on_step("ledger noted")
        writing(self.engine, self._end)
        self.options.on_step("ledger placed")
        return "ledger: restored"

    def _tables(self) -> Sequence[str]:
        with reading(self.engine) as connection:
            return inspect(connection).get_table_names()

    def _loading(self) -> str | None:
        if LOADING not in self._tables():
            return None
        with reading(self.engine) as connection:
            return str(connection.scalar(text(f"SELECT backup FROM {LOADING}")))  # noqa: S608

    def _is_done(self, tables: Sequence[str]) -> bool:
        if "stageout_restores" not in tables:
            return False
        try:
            return any(restore.backup == self.name for restore in restores_of(self.engine))
        except (SQLAlchemyError, LedgerError):
            return False  # of a version before restores had names

    def _end(self, connection: Connection) -> None:
        connection.execute(text(f"DROP TABLE IF EXISTS {LOADING}"))

    def _begin(self, connection: Connection) -> None:
        """Drop what a killed load left, but its own mark."""
        present = MetaData()
        present.reflect(connection)
        mark = present.tables.get(LOADING)
        left = [table for table in present.tables.values() if table is not mark]
        loading = None if mark is None else connection.scalar(text(f"SELECT backup FROM {LOADING}"))  # noqa: S608
        if left and loading != self.name:
            raise RESTORE_IN_USE(self.name, f"the database of the ledger has {len(left)} tables")
        present.drop_all(connection, tables=left)
        if mark is None:
            connection.execute(text(f"CREATE TABLE {LOADING} (backup VARCHAR(128) NOT NULL) ENGINE=InnoDB"))
            connection.execute(text(f"INSERT INTO {LOADING} VALUES (:name)"), {"name": self.name})  # noqa: S608


class _GatewayState:
    """The gateway's state."""

    def __init__(self, backup: OpenedBackup, settings: SiteSettings, options: RestoreOptions) -> None:
        self.backup, self.options = backup, options
        self.file = settings.gateway.state
        self.staged = self.file.with_name(f"{self.file.name}.restoring")

    @property
    def name(self) -> str:
        return self.backup.manifest.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a gateway from starting on the state; one that runs on it is a refusal."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.file.with_name(f"{self.file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RESTORE_IN_USE(self.name, f"a gateway, or another restore, has the state {self.file}") from None
            yield
        finally:
            os.close(lock)

    def require_place(self) -> None:
        if BackupPart.GATEWAY not in self.backup.manifest.parts:
            return
        _require_no_rest(self.name, self.file)
        if self.file.exists() and not self._is_done():
            raise RESTORE_IN_USE(self.name, f"there is a gateway's state {self.file}")

    def restore(self, now: datetime) -> str:
        if BackupPart.GATEWAY not in self.backup.manifest.parts:
            return "gateway state: not in this backup; a gateway that starts without it has no lease"
        if self.file.exists():
            _discard(self.staged)
            return f"gateway state {self.file}: restored before"
        _discard(self.staged)
        _write(self.staged, self.backup.pieces(BackupPart.GATEWAY))
        self.options.on_step("gateway unpacked")
        try:
            with closing(sqlite3.connect(self.staged, isolation_level=None)) as state:
                (schema,) = state.execute("PRAGMA user_version").fetchone()
                if schema != SCHEMA_VERSION:
                    _discard(self.staged)
                    what = f"has schema {schema}, and this version {SCHEMA_VERSION}: it is left out"
                    return f"gateway state: {what}; the gateway begins without it, and no repository is disabled"
                state.execute("BEGIN IMMEDIATE")
                begin_again(state, int(now.astimezone(UTC).timestamp() * 1000))
                state.execute("CREATE TABLE IF NOT EXISTS restored (backup TEXT NOT NULL)")
                state.execute("INSERT INTO restored VALUES (?)", (self.name,))
                state.execute("COMMIT")
        except sqlite3.Error as error:
            _discard(self.staged)
            return f"gateway state: damaged ({error}), and left out; the gateway begins without it"
        _sync(self.staged)
        self.options.on_step("gateway cleared")
        _move(self.staged, self.file)
        self.options.on_step("gateway placed")
        return f"gateway state {self.file}: restored without its leases"

    def _is_done(self) -> bool:
        try:
            with closing(sqlite3.connect(self.file)) as state:
                return (self.name,) in state.execute("SELECT backup FROM restored").fetchall()
        except sqlite3.Error:
            return False


class _Keys:
    """The key files. They are opened before anything is changed."""

    def __init__(self, backup: OpenedBackup, settings: SiteSettings, options: RestoreOptions) -> None:
        self.backup, self.options = backup, options
        self.folder = settings.gateway.keys
        self.files: dict[str, bytes] = {}

    def require_place(self) -> None:
        if BackupPart.KEYS not in self.backup.manifest.parts or self.options.opener is None:
            return
        sealed = b"".join(self.backup.pieces(BackupPart.KEYS))
        self.files = unseal(self.backup.manifest.name, sealed, self.options.opener)
        for path in self._differing():
            if not self.options.replaces_keys:
                what = f"{path} is another key (--keys-only --replace-keys renames it)"
                raise RESTORE_IN_USE(self.backup.manifest.name, what)

    def _differing(self) -> Sequence[Path]:
        files = ((self.folder / name, content) for name, content in self.files.items())
        return [path for path, content in files if path.exists() and path.read_bytes() != content]

    def replace(self, now: datetime) -> Iterator[str]:
        """Put keys in the place of others of the same names, which are renamed; a line about each."""
        if not self.folder.is_dir():
            return
        with locked_keys(self.folder):
            others = self._differing()
            staged = self._stage(others)  # all are on the disk before the first is renamed
            for path in others:
                aside = path.with_name(f"{path.name}.{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}.replaced")
                path.rename(aside)
                (staged / path.name).rename(path)
                self.options.on_step(f"key {path.name} replaced")
                yield f"another key {path.name}: renamed to {aside}"
            shutil.rmtree(staged, ignore_errors=True)

    def _stage(self, paths: Sequence[Path]) -> Path:
        """Write files into a folder of their own: a process that is killed leaves no part of a key beside the keys."""
        staged = self.folder / ".restoring"
        shutil.rmtree(staged, ignore_errors=True)  # of one that was killed
        for path in paths:
            save_key_file(staged, path.stem, KeyFile(path.suffix), self.files[path.name])
        return staged

    def restore(self) -> str:
        if BackupPart.KEYS not in self.backup.manifest.parts:
            return "keys: not in this backup; copy them from where they are kept"
        if self.options.opener is None:
            return "keys: not restored, as asked"
        with locked_keys(self.folder):
            missing = [path for name in self.files if not (path := self.folder / name).exists()]
            staged = self._stage(missing)
            self.options.on_step("keys staged")
            for path in missing:
                _move(staged / path.name, path)
                self.options.on_step(f"key {path.name}")
            shutil.rmtree(staged, ignore_errors=True)
        self.options.on_step("keys placed")
        return f"keys: {len(self.files)} files in {self.folder}"


def require_opener(backup: OpenedBackup, opener: Opener) -> None:
    """Raise BackupError: KEYS_LOCKED where the keys of a backup cannot be opened."""
    if BackupPart.KEYS not in backup.manifest.parts:
        raise KEYS_LOCKED(backup.manifest.name, "it has no keys")
    unseal(backup.manifest.name, b"".join(backup.pieces(BackupPart.KEYS)), opener)


def _require_no_rest(name: str, file: Path) -> None:
    """Raise RESTORE_IN_USE for the log of a database that was lost: SQLite would play it into the restored one."""
    for ending in ("-wal", "-journal"):
        rest = file.with_name(file.name + ending)
        if rest.exists() and not file.exists():
            raise RESTORE_IN_USE(name, f"{rest} is left of a database that does not exist")


def _require_unused(name: str, file: Path) -> None:
    """Raise RESTORE_IN_USE for a database with rows, or that a process has open."""
    try:
        with closing(sqlite3.connect(file, timeout=1)) as connection:
            tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            own = (table for table in tables if not table.startswith("sqlite_") and table != "ledger_version")
            for table in own:
                if connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone():  # noqa: S608
                    raise RESTORE_IN_USE(name, f"the ledger {file} has rows in {table}")
            connection.execute("PRAGMA journal_mode = WAL")
            # refused while any other process has it open
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
            if mode != "delete":
                raise RESTORE_IN_USE(name, f"a process has the ledger {file} open")
    except sqlite3.Error as error:
        raise RESTORE_IN_USE(
            name, f"the ledger {file} exists and cannot be read, or a process has it open: {error}"
        ) from None


def _write(file: Path, pieces: Iterator[bytes], *, mode: int = 0o600) -> None:
    """Write a new file, and have it on the disk; none where a piece cannot be had."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as content:
            content.writelines(pieces)
            content.flush()
            os.fsync(content.fileno())
    except BaseException:
        with suppress(FileNotFoundError):
            file.unlink()
        raise


def _move(staged: Path, file: Path) -> None:
    """Give a file its name, which must be free, for good."""
    try:
        os.link(staged, file)  # a rename would replace
    except FileExistsError:
        raise RESTORE_IN_USE(file.name, f"{file} was made meanwhile") from None
    staged.unlink()
    _sync(file.parent)


def _discard(file: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal", ".migrate.lock"):
        with suppress(FileNotFoundError):
            file.with_name(file.name + ending).unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
