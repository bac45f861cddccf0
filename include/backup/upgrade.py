"""Upgrade of a site: what a new version changes here, the migration of the ledger, and modes of files that exist."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from include.backup.archive import NAME
from include.backup.create import WORK, local_folder
from include.backup.errors import UpgradeRefused
from include.cvmfs.format.keys import KeyFile
from include.errors import NightshiftError
from include.gateway.service.leases.lease_rows import SCHEMA_VERSION
from include.ledger.copies import require_copyable, room_in, size_of
from include.ledger.engine import shown
from include.ledger.errors import LedgerError
from include.ledger.migrate import FILE_MODE, Migration, pending, version
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.settings.traits import COPIES, MANY_HOSTS, airflow_executor, open_site_ledger
from include.site.site import plain_store

_OWN, _OWN_FOLDER = 0o600, 0o700


@dataclass(frozen=True, slots=True)
class FileMode:
    """File or folder that allows other accounts more than it has to. `owned`: the services' account has it."""

    path: Path
    mode: int
    right: int
    owned: bool

    def __str__(self) -> str:
        if self.owned:
            return f"mode {self.mode:04o} -> {self.right:04o}: {self.path}"
        return f"mode {self.mode:04o} stays, of another account: {self.path}; {self.right:04o} is enough"


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """Changes of a site by this version.

    Attributes:
        ledger: URL of the ledger, without its password.
        version: Version of its tables; None: it does not exist.
        migrations: Migrations that it needs, in order.
        copies: Folder that it is copied to before.
        copy_bytes: Size of the copy, on a server about.
        room_bytes: Free bytes of the disk of that folder.
        files: Files and folders whose mode allows too much.
        stop: Parts that have to be stopped before, in order.
        start: Parts that have to be started, or restarted, after it, in order.
        fault: Refusal of the upgrade; None: it can be done.
    """

    ledger: str
    version: str | None
    migrations: Sequence[Migration]
    copies: Path
    copy_bytes: int
    room_bytes: int
    files: Sequence[FileMode]
    stop: Sequence[str]
    start: Sequence[str]
    fault: NightshiftError | None

    @property
    def changes(self) -> bool:
        """Tell whether anything is changed."""
        return bool(self.migrations) or any(file.owned for file in self.files)

    def lines(self) -> Iterator[str]:
        """Describe it for a person."""
        if self.migrations:
            yield f"ledger {self.ledger}: {self.version} -> {self.migrations[-1].revision}"
            for migration in self.migrations:
                rows = "" if migration.rows is None else f" ({migration.rows} rows of {migration.table})"
                yield f"  {migration.revision}{rows}: {migration.subject}"
            size, room = self.copy_bytes >> 20, self.room_bytes >> 20
            yield f"copy of the ledger: about {size} MiB into {self.copies}, where {room} MiB are free"
        elif self.version is None:
            yield f"ledger {self.ledger}: not read, or not made yet; nothing to migrate"
        else:
            yield f"ledger {self.ledger}: {self.version}{'' if self.fault else ', as this version has it'}"
        yield from map(str, self.files)
        if self.stop:
            yield f"stop before it, in this order: {'; '.join(self.stop)}"
            yield f"start after it, in this order: {'; '.join(self.start)}"
        else:
            yield f"nothing has to be stopped; restart one after another: {'; '.join(self.start)}"


def plan_upgrade(
    settings: SiteSettings, secrets: Secrets, settings_file: Path, environ: Mapping[str, str] | None = None
) -> UpgradePlan:
    """Look at a site, and change nothing. Raises MissingConnection, BadConnection, LedgerUnavailable.

    Args:
        settings: Its configuration.
        secrets: Its connections.
        settings_file: File of the configuration.
        environ: The environment; None: of this process.
    """
    environ = os.environ if environ is None else environ
    engine = open_site_ledger(settings, secrets, environ, look_only=True)
    copies = settings.paths.var / COPIES
    account = _account(settings.paths.var)
    try:
        current, migrations, size, fault = _ledger(engine, copies)
    finally:
        engine.dispose()
    fault = fault or _state_fault(settings.gateway.state)
    if os.geteuid() == 0 != account:  # what it makes would be closed to the services
        fault = UpgradeRefused(
            f"{settings.paths.var} is of account {account}, and this is root: run it as that account"
        )
    stop, start = _order(bool(migrations), airflow_executor(environ))
    bounds = _bounds(settings, settings_file, _ledger_file(engine), _backup_folder(settings, secrets))
    return UpgradePlan(
        shown(engine.url), current, migrations, copies, size, room_in(copies),
        list(_too_open(bounds, account)), stop, start, fault,
    )  # fmt: skip


def upgrade(settings: SiteSettings, secrets: Secrets, settings_file: Path) -> Iterator[str]:
    """Copy and migrate the ledger, then take files from other accounts; a line about each change. Run again, it
    changes nothing. A mode that cannot be changed is a line, too, and the next plan has it.

    Raises UpgradeRefused, LedgerError, MissingConnection or BadConnection before anything is changed.
    """
    plan = plan_upgrade(settings, secrets, settings_file)
    if plan.fault is not None:
        raise plan.fault
    if plan.migrations:
        before = {*_listed(plan.copies)}
        open_site_ledger(settings, secrets).dispose()
        for copy in sorted({*_listed(plan.copies)} - before):
            yield f"copy of the ledger: {copy}"
        yield f"ledger {plan.ledger}: {plan.version} -> {plan.migrations[-1].revision}"
        # the copy and its folder are made with the right mode
        plan = plan_upgrade(settings, secrets, settings_file)
    for file in plan.files:
        line = str(file)
        if file.owned:
            try:
                file.path.chmod(file.right)
            except OSError as error:
                line = f"not changed, {error.strerror}: {line}"
        yield line


def _account(var: Path) -> int:
    """Return the account of the services, which has the folder of their state."""
    return var.stat().st_uid if var.exists() else os.geteuid()


def _ledger(engine: Engine, copies: Path) -> tuple[str | None, Sequence[Migration], int, NightshiftError | None]:
    """Version of the ledger, the migrations that it needs, its size, and what refuses them."""
    file = _ledger_file(engine)
    current = None if file is not None and not file.exists() else version(engine)
    if current is None:
        return None, (), 0, None
    try:
        migrations = pending(engine)
    except LedgerError as error:
        return current, (), 0, error
    size = size_of(engine)
    try:
        if migrations:
            require_copyable(engine, copies)
    except LedgerError as error:
        return current, migrations, size, error
    return current, migrations, size, None


def _ledger_file(engine: Engine) -> Path | None:
    return Path(str(engine.url.database)) if engine.dialect.name == "sqlite" else None


def _state_fault(file: Path) -> UpgradeRefused | None:
    """Return what keeps this version's gateway from starting on a state that this account has."""
    if not os.access(file, os.R_OK):
        return None
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as state:
            (schema,) = state.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        return UpgradeRefused(f"gateway state {file} cannot be read: {error}; check its owner and its disk")
    if schema in {0, SCHEMA_VERSION}:
        return None
    what = f"gateway state {file} has schema {schema}, this version has {SCHEMA_VERSION}"
    return UpgradeRefused(f"{what}: use the version that made it")


def _order(migrates: bool, executor: str) -> tuple[Sequence[str], Sequence[str]]:
    """Parts to stop, and parts to start, each in order.

    Programs of an earlier version refuse a ledger that was migrated. The gateway has no part in the ledger, and answers
    earlier publishers: it is the first. A trigger comes from a task, so the triggerer is new before the workers.
    """
    scheduler = "scheduler and DAG processor"
    workers = ["Celery workers, when their tasks have ended"] if any(part in executor for part in MANY_HOSTS) else []
    stop = [scheduler, *workers, "triggerer", "API servers"] if migrates else []
    started = ["workers"] if workers else []
    return stop, ["gateway (leases outlive it)", "triggerer", *started, scheduler, "API servers"]


def _too_open(bounds: Iterator[tuple[Path, int]], account: int) -> Iterator[FileMode]:
    for path, bound in bounds:
        with suppress(FileNotFoundError, PermissionError):
            status = path.lstat()
            mode = stat.S_IMODE(status.st_mode)
            # a link in a folder leads to what others may have
            if not stat.S_ISLNK(status.st_mode) and mode & ~bound:
                yield FileMode(path, mode, mode & bound, status.st_uid == account)


def _backup_folder(settings: SiteSettings, secrets: Secrets) -> Path | None:
    if settings.backup.store is None:
        return None
    try:
        return local_folder(plain_store(settings, secrets, settings.backup.store))
    except SettingsError:
        return None  # a bucket, whose connection is elsewhere


def _bounds(
    settings: SiteSettings, settings_file: Path, ledger: Path | None, backups: Path | None
) -> Iterator[tuple[Path, int]]:
    """Files and folders, each with the most that its mode may allow. Stores that readers fetch from are not here."""
    databases = [(settings.gateway.state, _OWN)] + ([(ledger, FILE_MODE)] if ledger is not None else [])
    for file, bound in databases:
        yield from ((file.with_name(f"{file.name}{ending}"), bound) for ending in ("", "-wal", "-shm"))
    for named in (settings_file, settings.gateway.private_key):
        if named is not None:
            yield named.resolve(), FILE_MODE
    endings = {kind.value: kind.mode for kind in KeyFile}
    for path in _listed(settings.gateway.keys):
        if path.suffix in endings:
            yield path, endings[path.suffix]
    folders = [settings.paths.var / name for name in (COPIES, WORK)]
    if backups is not None:
        folders.append(backups)
    for folder in folders:
        yield folder, _OWN_FOLDER
        yield from ((path, _OWN) for path in _listed(folder) if NAME.fullmatch(path.name) or path.match("before-*"))


def _listed(folder: Path) -> Sequence[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ()
