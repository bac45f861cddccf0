"""Making backups of a site, listing them, and keeping the newest."""

from __future__ import annotations

import fcntl
import importlib.metadata
import io
import logging
import mmap
import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from include.backup import archive
from include.backup.errors import BACKUP_DAMAGED, BACKUP_NO_ROOM, KEYS_LOCKED, BackupError, of_files
from include.cvmfs.commit.commit import read_head
from include.cvmfs.errors import CvmfsError
from include.cvmfs.format.keys import KeyFile
from include.ledger.copies import copy_ledger, size_of
from include.ledger.migrate import version
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets
from include.site.site import Site, plain_store
from include.storage.errors import StoreError
from include.storage.open import open_store
from include.storage.store import Store

log = logging.getLogger(__name__)

WORK = "backup-work"
"""Folder below `paths.var` in which a backup is put together."""


def backup_store(settings: SiteSettings, secrets_: Secrets, folder: Path | None = None) -> Store:
    """The store of backups: the configuration's, or a folder; without the ledger. Raises BackupError, StoreError."""
    if folder is not None:
        return open_store(folder.absolute().as_uri())
    if settings.backup.store is None:
        raise BackupError(
            "(none)", "the configuration names no store for backups; set `backup.store`, or give a folder"
        )
    return plain_store(settings, secrets_, settings.backup.store)


def local_folder(store: Store) -> Path | None:
    """Return the folder of a store of backups; None: it is a bucket."""
    return Path(unquote(urlsplit(store.url).path)) if store.is_local else None


def seal_to(settings: SiteSettings, secrets_: Secrets) -> archive.SealTo | None:
    """Return whom the configuration encrypts keys to; None: to no one. Raises MissingConnection, BadConnection."""
    backup = settings.backup
    if backup.connection is not None:
        return archive.SealTo(passphrase=secrets_.get(backup.connection).password or "")
    if backup.recipient is not None:
        try:
            return archive.SealTo(public_key=backup.recipient.read_bytes())
        except OSError as error:
            raise KEYS_LOCKED("(new)", f"the recipient's key {backup.recipient}: {error.strerror}") from None
    return None


def create(
    site: Site,
    store: Store,
    *,
    now: datetime,
    to: archive.SealTo | None,
    master: bool = False,
    settings_file: Path | None = None,
) -> archive.BackupManifest:
    """Make a backup, check it, and put it into a store. Services may be at work meanwhile.

    `to`: whom keys are encrypted to; None: they are left out. `master`: with the master keys. `settings_file`: the
    configuration's file. Returns the manifest. Raises BackupError, LedgerError, StoreError.
    """
    if to is not None and (fault := archive.fault_of(to)) is not None:
        raise KEYS_LOCKED("(new)", fault)
    with of_files("(new)", site.settings.paths.var), _work_folder(site) as work:
        parts = _Parts(site, work)
        if settings_file is not None:
            parts.add(archive.BackupPart.SETTINGS, settings_file.read_bytes())
        files = archive.key_files(site.settings.gateway.keys, master=master) if to is not None else {}
        if to is None:
            parts.notes.append("keys were left out: neither `backup.connection` nor `backup.recipient` is set")
        elif files:
            parts.add(archive.BackupPart.KEYS, archive.seal(files, to))
        else:
            parts.notes.append(f"there are no keys in {site.settings.gateway.keys}")
        parts.notes += [
            f"the key that signs {fqrn} is not in {site.settings.gateway.keys}"
            for fqrn, repository in site.settings.repositories.items()
            # a repository of a gateway elsewhere has its key there
            if files and repository.gateway_admin is not None and f"{fqrn}{KeyFile.REPOSITORY.value}" not in files
        ]
        parts.add_gateway()
        parts.add_ledger()
        manifest = archive.BackupManifest(
            name=archive.new_name(now, secrets.token_hex(4)), created=now,
            nightshift=importlib.metadata.version("nightshift"), ledger=version(site.ledger) or "",
            repositories={fqrn: _revision(site, fqrn) for fqrn in sorted(site.settings.repositories)},
            sites=sorted(site.settings.sites), parts=parts.sums, keys=sorted(files),
            sealed_to=None if not files or to is None else to.kind,
            notes=parts.notes,
        )  # fmt: skip
        file = work / manifest.name
        archive.write_archive(file, manifest, parts.files)
        with archive.opened(file) as written:
            written.check()
        _upload(store, file)
    return manifest


def names_in(store: Store) -> Sequence[str]:
    """Return the names of the backups in a store, the newest first: each begins with its time. Raises StoreError."""
    return sorted((meta.key for meta in store.list() if archive.NAME.fullmatch(meta.key)), reverse=True)


def prune(site: Site, store: Store, *, keep: int) -> Sequence[str]:
    """Delete all backups of this site but the newest `keep`; return their names. Raises StoreError.

    A backup whose manifest cannot be read, or that is of another site, stays.
    """
    ours = []
    for name in names_in(store):
        try:
            manifest = archive.read_manifest(store, name)
        except BackupError as error:
            log.warning("not counted and not deleted: %s", error)
            continue
        if _same_site(manifest, site):
            ours.append(name)
    gone = ours[keep:]
    store.delete(gone)
    return gone


def _same_site(manifest: archive.BackupManifest, site: Site) -> bool:
    """Tell it more strictly than for a restore: two sites may send to one storage, and keep backups in one place."""
    own = {*site.settings.repositories} or {*site.settings.sites}
    other = {*manifest.repositories} or {*manifest.sites}
    return bool(own & other) or not (own or other)


@contextmanager
def fetched(store: Store, name: str, folder: Path) -> Iterator[Path]:
    """Copy a backup from a store to a file of this machine. Raises BackupError, StoreError."""
    archive.read_manifest(store, name)
    meta = store.head(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    room = shutil.disk_usage(folder).free
    if meta is not None and room < meta.size:
        raise BACKUP_NO_ROOM(name, f"it has {meta.size >> 20} MiB, and {folder} has {room >> 20} MiB left")
    with tempfile.TemporaryDirectory(prefix="fetched-", dir=folder) as place, of_files(name, folder):
        file = Path(place) / name
        with file.open("wb") as content:
            for piece in store.stream(name):
                content.write(piece)
        yield file


@dataclass
class _Parts:
    """The parts of a backup that is put together in a folder."""

    site: Site
    work: Path
    files: dict[archive.BackupPart, Path] = field(default_factory=dict)
    sums: dict[archive.BackupPart, archive.PartSum] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, part: archive.BackupPart, content: bytes) -> None:
        """Add a small part as it is."""
        self.files[part] = self.work / part.value
        self.sums[part] = archive.packed(io.BytesIO(content), self.files[part], compressed=False)

    def add_gateway(self) -> None:
        """Add the gateway's state, where it is on this machine."""
        state, copy = self.site.settings.gateway.state, self.work / "gateway.db"
        if not state.exists():
            self.notes.append(f"there is no gateway state {state} on this machine")
            return
        try:
            with closing(sqlite3.connect(state, timeout=60)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise BackupError("(new)", f"the gateway's state {state} cannot be copied: {error}") from None
        self._compress(archive.BackupPart.GATEWAY, copy)

    def add_ledger(self) -> None:
        """Add a copy of the ledger."""
        ledger = self.site.ledger
        part = archive.BackupPart.LEDGER if ledger.dialect.name == "sqlite" else archive.BackupPart.LEDGER_DUMP
        copy = self.work / part.value.removesuffix(".zst")
        copy_ledger(ledger, copy)
        self._compress(part, copy)

    def _compress(self, part: archive.BackupPart, copy: Path) -> None:
        self.files[part] = self.work / part.value
        with copy.open("rb") as source:
            self.sums[part] = archive.packed(source, self.files[part])
        copy.unlink()


@contextmanager
def _work_folder(site: Site) -> Iterator[Path]:
    folder = site.settings.paths.var / WORK
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BackupError("(new)", "another backup is being made on this machine; wait for it") from None
        for left in folder.glob("making-*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        room, needed = shutil.disk_usage(folder).free, size_of(site.ledger) * 3 // 2
        if room < needed:
            raise BACKUP_NO_ROOM("(new)", f"it takes about {needed >> 20} MiB, and {folder} has {room >> 20} MiB left")
        with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as work:
            yield Path(work)
    finally:
        os.close(descriptor)


def _revision(site: Site, fqrn: str) -> int | None:
    try:
        return read_head(site.repository_store(fqrn, quick=True), fqrn).manifest.revision
    except (CvmfsError, StoreError, SettingsError) as error:
        log.warning("%s: its revision is not in the backup: %s", fqrn, error)
        return None


def _upload(store: Store, file: Path) -> None:
    size = file.stat().st_size
    folder = local_folder(store)
    if folder is not None:
        # names of users and files are for this account alone, also while they are written
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file.open("rb") as content, mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            # a view is what any store takes as bytes; a backup may be larger than the memory
            store.put(file.name, cast("Any", view))
        finally:
            view.release()
    store.flush()
    meta = store.head(file.name)
    if meta is None or meta.size != size:
        raise BACKUP_DAMAGED(file.name, f"{store.url} has {meta.size if meta else 0} of its {size} bytes")
    if folder is not None:
        (folder / file.name).chmod(0o600)
