"""Checks of stores, folders, keys and ledger: they answer, each role may do its work, time agrees, space is left,
conditions are kept when writers race."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from include.backup.archive import PASSPHRASE, BackupPart, Opener, read_manifest, read_small_part, unseal
from include.backup.create import names_in
from include.backup.errors import BackupError
from include.ledger.acts import restores_of
from include.ledger.engine import shown, shown_address
from include.ledger.errors import LedgerError
from include.monitoring.findings import Finding, Severity
from include.settings.errors import SettingsError
from include.settings.model import SiteSettings, StoreSettings
from include.settings.secrets import ledger_address
from include.settings.traits import record_traits, recorded_traits
from include.site.site import Site, connection_of, credentials_of, options_of, plain_store, try_store
from include.storage.buckets import Role
from include.storage.errors import StoreError
from include.storage.file import abandoned, described
from include.storage.kinds import FILE, HTTP, Traits, kind_of
from include.storage.open import open_store
from include.storage.probe import may_delete
from include.storage.store import Store

LOW_SHARE, LEAST_BYTES = 0.10, 2 << 30
LOGS = "logs"


def written(settings: SiteSettings, stores: Iterable[str], logs: Path | None = None) -> dict[str, Path]:
    """The folders of this machine that a night writes to, by name. `logs`: Airflow's, if the caller knows it."""
    home = Path(os.environ.get("AIRFLOW_HOME") or settings.paths.var / "airflow")  # the lab's is below `var`
    airflow_logs = Path(os.environ.get("AIRFLOW__LOGGING__BASE_LOG_FOLDER") or home / "logs")
    found = {"var": settings.paths.var, LOGS: logs or airflow_logs}
    if settings.ledger.startswith("sqlite:///"):
        found["ledger"] = Path(settings.ledger.removeprefix("sqlite:///")).parent
    found["gateway state"] = settings.gateway.state.parent
    found["spool"] = Path(tempfile.gettempdir())
    for name in sorted(stores):
        url = settings.store(name).url
        if kind_of(url) is FILE:
            found[f"store {name}"] = Path(unquote(urlsplit(url).path))
    return found


def room(folders: Mapping[str, Path]) -> Iterator[Finding]:
    """The room that is left where the folders are, or will be."""
    systems: dict[int, dict[str, Path]] = {}
    for name, folder in folders.items():
        there = next((ancestor for ancestor in (folder, *folder.parents) if ancestor.exists()), Path("/"))
        systems.setdefault(_device(there), {})[name] = there
    for found in systems.values():
        usage = shutil.disk_usage(next(iter(found.values())))
        yield judged_space({name: folders[name] for name in found}, usage.free, usage.total)


def judged_space(folders: Mapping[str, Path], free: int, total: int) -> Finding:
    """Return what so many bytes mean for the folders of one file system."""
    limits = f"limits: {LEAST_BYTES / 2**30:.0f} GiB for an error, {LOW_SHARE:.0%} for a warning"
    where = ", ".join(str(folder) for folder in dict.fromkeys(folders.values()))
    seen = f"{free / 2**30:.1f} GiB of {total / 2**30:.1f} GiB are free for {where}; {limits}"
    cure = "Make room, or let a collection run, before the night fills it."
    if LOGS in folders:
        cure += " With a full log disk tasks fail with an empty log; `nightshift lab retain` removes old logs."
    severity = Severity.OK
    if free < max(LEAST_BYTES, LOW_SHARE * total):
        severity = Severity.ERROR if free < LEAST_BYTES else Severity.WARNING
    return Finding("disk", ", ".join(folders), severity, seen, cure if severity is not Severity.OK else "")


def _device(folder: Path) -> int:
    return folder.stat().st_dev


TIMEOUT_S = 8.0
SKEW_WARNING_S, SKEW_ERROR_S = 5.0, 300.0
"""S3 refuses signatures that are 15 minutes off, leases and changesets are judged by the minute."""
PROBE = ".nightshift-probe-preflight"
RECORD_PROBE = ".nightshift/preflight"  # a collector stores nothing elsewhere


def opened(site: Site, name: str, role: Role = Role.PUBLISHER) -> Store:
    """A store that is asked once and not for long, without what the ledger has of it."""
    settings = site.settings.store(name)
    bounded = settings.model_copy(update={"retries": 1, "timeout_s": min(settings.timeout_s, TIMEOUT_S)})
    credentials = credentials_of(settings, site.secrets, role)
    return open_store(settings.url, credentials=credentials, options=options_of(bounded))


def look_at_store(site: Site, name: str, *, source: bool = False) -> Iterator[Finding]:
    """Tell whether it answers. `source`: builds are read from here."""
    settings = site.settings.store(name)
    store = opened(site, name)
    # a key by role may read below the repositories of the store alone
    inside = next((each.fqrn for each in site.settings.repositories.values() if each.store == name), None)
    (store.child(inside) if inside else store).head("nightshift-preflight")
    what = "answers; builds are read from here" if source else "answers"
    yield Finding("store", name, Severity.OK, f"{settings.url} {what}")


def roles(site: Site, fqrn: str) -> Iterator[Finding]:
    """Put, get and delete a probe in a repository's store, by each of the keys that its settings name."""
    settings = site.settings.store(site.settings.repository(fqrn).store)
    own = {Role.GATEWAY: settings.gateway_connection, Role.COLLECTOR: settings.collector_connection}
    for role in (Role.PUBLISHER, *(role for role, connection in own.items() if connection)):
        store, subject = opened(site, settings.name, role).child(fqrn), f"{fqrn} as {role.value}"
        if not store.writable:
            what = f"store {settings.name} can only be read"
            yield Finding("roles", subject, Severity.ERROR, what, "Name a store with s3:// or file://.")
            continue
        probe = RECORD_PROBE if role is Role.COLLECTOR else PROBE
        key, data = f"{probe}-{secrets.token_hex(4)}/object", secrets.token_bytes(32)
        step = "put"
        try:
            store.put(key, data)
            step = "get"
            if store.get(key) != data:
                raise StoreError("other bytes came back than were stored", key=key)
            step = "delete"
            store.delete([key])
            if role is Role.COLLECTOR:
                may_delete(store)
        except StoreError as error:
            connection = connection_of(settings, role)
            cure = f"Correct connection {connection!r}, or the bucket's policy: nightshift settings roles"
            seen = f"cannot {step} an object: {error}".rstrip(".")
            yield Finding("roles", subject, Severity.ERROR, seen, cure)
        else:
            yield Finding("roles", subject, Severity.OK, "put, got and deleted an object")


def clock(settings: StoreSettings) -> Iterator[Finding]:
    """Yield how far our clock and the store's are apart, by the `Date` of its reply; nothing for a folder."""
    url = settings.endpoint or settings.url
    if kind_of(url) is HTTP:
        yield from skew("store", settings.name, url)


def skew(what: str, subject: str, url: str, *, authorities: str | None = None) -> Iterator[Finding]:
    """The same for whatever speaks HTTP at a URL. `authorities`: a PEM bundle, if not the system's."""
    import requests

    with requests.Session() as session:
        session.trust_env = False
        session.verify = authorities or True
        before = datetime.now(UTC)
        reply = session.head(url, timeout=TIMEOUT_S, allow_redirects=False)
        after = datetime.now(UTC)
    name = f"{what} {subject}"
    try:
        theirs = parsedate_to_datetime(reply.headers["Date"]).astimezone(UTC)
    except (KeyError, ValueError, TypeError):
        yield Finding("clock", name, Severity.OK, "does not report its time")
        return
    yield judged_skew(name, (theirs - (before + (after - before) / 2)).total_seconds())


def judged_skew(name: str, seconds: float) -> Finding:
    """The finding about a difference; a `Date` has whole seconds, so that less than 2 s counts as none."""
    apart = "agrees with ours" if abs(seconds) < 2 else f"is {seconds:+.0f} s off ours"
    severity = Severity.OK
    if abs(seconds) >= SKEW_WARNING_S:
        severity = Severity.ERROR if abs(seconds) >= SKEW_ERROR_S else Severity.WARNING
    cure = "" if severity is Severity.OK else "Let both machines keep their time by NTP (chronyc tracking)."
    return Finding("clock", name, severity, f"its clock {apart}", cure)


def conditions(site: Site, name: str) -> Iterator[Finding]:
    """Yield what `settings check` saw the store keep when writers raced, and what that means for its repositories."""
    settings, store = site.settings, site.settings.store(name)
    fqrns = [repository for repository in settings.repositories.values() if repository.store == name]
    kind = kind_of(store.url)
    if not fqrns or kind.is_local or not kind.writable:
        return
    traits, check = recorded_traits(site.ledger, store), "conditional writes"
    if traits is None:
        cure = "Run: nightshift settings check"
        yield Finding(check, name, Severity.WARNING, "it was never tried whether racing writers are kept apart", cure)
        return
    many = [repository.fqrn for repository in fqrns if repository.manifest_writers > 1]
    if not traits.replace and many:
        cure = "Set `manifest_writers: 1`, or move the repository to another store."
        seen = f"conditional replace is ignored, and {', '.join(many)} may have several writers"
        yield Finding(check, name, Severity.ERROR, seen, cure)
    elif not traits.put_if_absent:
        cure = "Create no repository here; two creations could undo each other."
        yield Finding(check, name, Severity.WARNING, "put-if-absent is ignored", cure)
    else:
        kept = "kept" if traits.replace else "not needed: one writer"
        yield Finding(check, name, Severity.OK, f"put-if-absent kept, conditional replace {kept}")


def race(site: Site, name: str, traits: dict[str, Traits]) -> Iterator[Finding]:
    """Let writers race in a store, and record what it keeps in the ledger and in ``traits``."""
    store = site.settings.store(name)
    try:
        kept = try_store(site.settings, site.secrets, name)
    except SettingsError as error:
        yield Finding("store", name, Severity.ERROR, f"{store.url}: not tried", str(error))
        return
    except StoreError as error:
        cure = "Check its URL, endpoint and connection, and that the bucket is there."
        yield Finding("store", name, Severity.ERROR, f"{store.url}: cannot be used", f"{error}. {cure}")
        return
    if kept is None:
        yield Finding("store", name, Severity.OK, f"{store.url}: read only, not tried")
        return
    traits[name] = kept
    try:
        ledger = site.ledger
    except (LedgerError, SettingsError):
        pass  # the check of the ledger reports that
    else:
        record_traits(ledger, store, kept, now=datetime.now(UTC))
    notes = (*_consequences(kept), *_unfinished(plain_store(site.settings, site.secrets, name)))
    yield Finding("store", name, Severity.OK, f"{store.url}: {_described(kept)}", notes=notes)


def _unfinished(store: Store) -> Iterator[str]:
    """Yield leftovers of killed writers; none where uploads may not be listed."""
    with contextlib.suppress(StoreError):
        if found := abandoned(store, datetime.now(UTC)):
            yield described(found, store)


def _described(traits: Traits) -> str:
    conditions = {
        "put-if-absent": traits.put_if_absent,
        "replace-if-unchanged": traits.replace,
        "bulk delete": traits.bulk_delete,
        "anonymous read": traits.anonymous_read,
    }
    words = {True: "kept", False: "NOT kept", None: "not tried"}
    return ", ".join(f"{name} {words[value]}" for name, value in conditions.items())


def _consequences(traits: Traits) -> Iterator[str]:
    if not traits.put_if_absent:
        yield "put-if-absent is ignored: no repository can be created here, since two creations could undo each other"
    if not traits.replace:
        yield "conditional replace is ignored: only one gateway may write manifests here"
    if not traits.bulk_delete:
        yield "bulk delete is missing: objects are deleted one by one"
    if traits.anonymous_read is False:
        yield "anonymous reading is refused: clients cannot mount from here; set a public-read policy"
    if not traits.etag_quotes:
        yield "ETags are taken without their quotes only; they are sent so"


def look_at_collector(site: Site, name: str) -> Iterator[Finding]:
    """Try whether the collector's own key may delete; where it has none, the publishers' was tried."""
    settings = site.settings
    connection = settings.store(name).collector_connection
    if connection is None:
        return
    for fqrn in sorted(repository.fqrn for repository in settings.repositories.values() if repository.store == name):
        try:
            store = plain_store(settings, site.secrets, name, Role.COLLECTOR).child(fqrn)
            may_delete(store)
            versions = store.versioning()
        except SettingsError as error:
            yield Finding("collector", fqrn, Severity.ERROR, "not tried", str(error))
        except StoreError as error:
            cure = f"Correct connection {connection!r}, or the bucket's policy: nightshift settings roles"
            yield Finding("collector", fqrn, Severity.ERROR, "cannot delete objects", f"{error}. {cure}")
        else:
            notes = ("the bucket keeps old versions: deleted objects still take up space",) if versions else ()
            yield Finding("collector", fqrn, Severity.OK, "may delete objects", notes=notes)


STALE = timedelta(hours=36)
"""Age of a backup, or of a dump of Airflow's database, from which it is reported."""


def look_at_backups(site: Site) -> Iterator[Finding]:
    """Yield how old the last backup and the dump of Airflow's database are, and whether the keys can be opened."""
    settings = site.settings.backup
    if settings.store is None:
        cure = "Set `backup.store` (docs/backup.md)."
        yield Finding("backup", "", Severity.WARNING, "the configuration names no store for backups", cure)
    else:
        store = opened(site, settings.store)
        last = next(iter(names_in(store)), None)
        cure = "Run: nightshift backup create; check that the DAG `backup` is not paused."
        if last is None:
            yield Finding("backup", settings.store, Severity.WARNING, "there is no backup", cure)
        else:
            manifest = read_manifest(store, last)
            yield _aged("backup", last, manifest.created, cure)
            yield from _keys_of(site, store, last, manifest.sealed_to)
            cure = "Make backups where the gateway's state and the keys are (docs/backup.md)."
            for note in manifest.notes:
                yield Finding("backup", last, Severity.WARNING, note, cure)
    if settings.airflow_dump is not None:
        cure = "Check the job that dumps Airflow's database (docs/backup.md)."
        if settings.airflow_dump.is_file() and settings.airflow_dump.stat().st_size:
            written_at = datetime.fromtimestamp(settings.airflow_dump.stat().st_mtime, UTC)
            yield _aged("backup", str(settings.airflow_dump), written_at, cure)
        else:
            yield Finding("backup", str(settings.airflow_dump), Severity.WARNING, "does not exist, or is empty", cure)


def _aged(check: str, subject: str, at: datetime, cure: str) -> Finding:
    age = datetime.now(UTC) - at
    what = f"{age / timedelta(hours=1):.1f} hours old"
    return Finding(check, subject, Severity.OK if age < STALE else Severity.WARNING, what, "" if age < STALE else cure)


def _keys_of(site: Site, store: Store, name: str, sealed_to: str | None) -> Iterator[Finding]:
    """Tell that a passphrase was lost before it is needed; a recipient's private key is not on this machine."""
    if sealed_to is None:
        cure = "Set `backup.connection` or `backup.recipient`, or keep the keys by other means."
        yield Finding("backup", f"{name} keys", Severity.WARNING, "it has no keys", cure)
    elif sealed_to == PASSPHRASE:
        passphrase = (
            site.secrets.get(site.settings.backup.connection).password if site.settings.backup.connection else None
        )
        try:
            unseal(name, read_small_part(store, name, BackupPart.KEYS), Opener(passphrase=passphrase))
        except BackupError as error:
            cure = "Give `backup.connection` the passphrase that people know, then: nightshift backup create"
            yield Finding("backup", f"{name} keys", Severity.WARNING, error.detail, cure)
        else:
            yield Finding("backup", f"{name} keys", Severity.OK, "the passphrase of `backup.connection` opens them")
    else:
        yield Finding("backup", f"{name} keys", Severity.OK, "encrypted to the recipient; try its private key yearly")


def look_at_restores(site: Site) -> Iterator[Finding]:
    """Yield the restores of the ledger that no person has accepted: nothing is collected until then."""
    for restore in restores_of(site.ledger, pending=True):
        what = f"restored at {restore.noted_at:%Y-%m-%d %H:%M} UTC by {restore.noted_by}; nothing is collected"
        cure = "Read the report, then: nightshift backup report --accept"
        yield Finding("restore", restore.backup or "", Severity.WARNING, what, cure)


def look_at_keys(settings: SiteSettings) -> Iterator[Finding]:
    """Yield the public key of each repository. It is made with the repository, so its absence is no fault."""
    for repository in settings.repositories.values():
        fqrn, key = repository.fqrn, repository.public_key
        if key.is_file():
            yield Finding("public key", fqrn, Severity.OK, str(key))
        else:
            note = "made when the repository is created; else copy its .pub file there"
            yield Finding("public key", fqrn, Severity.WARNING, f"{key} (not there yet)", note)


def look_at_ledger(site: Site) -> Iterator[Finding]:
    """Open the ledger, which makes its tables where there are none."""
    name = site.settings.ledger
    try:
        name = shown_address(ledger_address(site.settings, site.secrets))
        name = shown(site.ledger.url)
    except (LedgerError, SettingsError) as error:
        yield Finding("ledger", name, Severity.ERROR, "cannot be used", str(error))
    else:
        yield Finding("ledger", name, Severity.OK, "tables up to date")
