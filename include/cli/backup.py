"""`nightshift backup`: create, list, check and restore backups of a site; the report after a restore."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.repository.open import AsJson, holder, open_site, printable, refusing

if TYPE_CHECKING:
    from include.backup.archive import OpenedBackup, Opener, SealTo
    from include.settings.model import SiteSettings
    from include.settings.secrets import EnvSecrets

app = typer.Typer(no_args_is_help=True)
Folder = Annotated[
    Path | None, typer.Option("--folder", metavar="FOLDER", help="Another place than the configuration's store.")
]
Name = Annotated[str, typer.Argument(metavar="BACKUP", help="A file, a name of `nightshift backup list`, or `latest`.")]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", metavar="FILE", help="Its first line is the passphrase of the keys.")
]
PrivateKey = Annotated[
    Path | None, typer.Option("--private-key", metavar="FILE", help="PEM file of the recipient's private key.")
]
VARIABLE = "NIGHTSHIFT_PRIVATE_KEY_PASSPHRASE"
"""Environment variable with the passphrase of the private key itself, where it has one."""


@app.callback()
def group() -> None:
    """Back up ledger, gateway state, keys and settings of a site, and restore them."""


@app.command()
def create(
    folder: Folder = None,
    master_key: Annotated[
        bool, typer.Option("--master-key", help="With the master keys, which belong on no machine that publishes.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Leave the keys out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a backup, check it, and put it into the store of backups. Services may be at work.

    Keys are encrypted to the passphrase or the recipient of the configuration, or to that of the file. Old backups are
    deleted as `backup.keep` says, unless a folder is given.
    """
    from include.backup import create as making
    from include.backup.archive import SealTo
    from include.settings.load import settings_path

    with refusing():
        site = open_site()
        store = making.backup_store(site.settings, site.secrets, folder)
        to: SealTo | None = making.seal_to(site.settings, site.secrets) if not no_keys else None
        if passphrase_file is not None and not no_keys:
            to = SealTo(passphrase=_first_line(passphrase_file))
        manifest = making.create(
            site, store, now=datetime.now(UTC), to=to, master=master_key, settings_file=settings_path()
        )
        gone = making.prune(site, store, keep=site.settings.backup.keep) if folder is None else ()
    if as_json:
        typer.echo(manifest.format().decode())
        return
    typer.echo(f"{manifest.name}: {manifest.size} bytes in {store.url}, checked")
    for note in manifest.notes:
        typer.echo(printable(f"not in it: {note}"))
    for name in gone:
        typer.echo(f"deleted: {name}")


@app.command("list")
def listed(folder: Folder = None, as_json: AsJson = False) -> None:
    """List the backups, the newest first. The ledger is not needed. Exit code 1 if one cannot be read."""
    from include.backup.archive import read_manifest
    from include.backup.create import backup_store, names_in
    from include.backup.errors import BackupError

    unread = 0
    documents = []
    lines = []
    with refusing():
        store = backup_store(*_configured(), folder)
        for name in names_in(store):
            try:
                manifest = read_manifest(store, name)
            except BackupError as error:
                unread += 1
                documents.append({"name": name, "fault": str(error)})
                lines.append(f"{name}  {printable(str(error.detail))}")
                continue
            documents.append(json.loads(manifest.format()))
            versions = f"ledger {manifest.ledger}, Nightshift {manifest.nightshift}"
            size, keys = manifest.size / (1 << 20), manifest.sealed_to or "none"
            lines.append(f"{name}  {size:8.1f} MiB  {versions}, keys: {keys}")
    if as_json:
        typer.echo(json.dumps(documents, indent=1))
    else:
        # whole names, to be copied: a table would cut them
        typer.echo("\n".join(lines) or f"no backup in {store.url}")
    raise typer.Exit(1 if unread else 0)


@app.command()
def check(
    backup: Name = "latest",
    folder: Folder = None,
    passphrase_file: PassphraseFile = None,
    private_key: PrivateKey = None,
) -> None:
    """Read a backup as a whole, compare its sums, and open its keys. Changes nothing.

    The keys are opened with the passphrase of the configuration, or with what is given; do this with what people keep,
    before it is needed.
    """
    from include.backup.restore import require_opener

    with refusing(), _opened(backup, folder) as (content, settings):
        content.manifest.require_readable()
        content.check()
        manifest = content.manifest
        typer.echo(f"{manifest.name}: whole, {manifest.size} bytes, made at {manifest.created:%Y-%m-%d %H:%M:%S} UTC")
        for note in manifest.notes:
            typer.echo(printable(f"not in it: {note}"))
        if manifest.sealed_to is None:
            return
        opener = _opener(settings, passphrase_file, private_key)
        require_opener(content, opener)
        typer.echo(f"its keys can be opened: {', '.join(manifest.keys)}")


@app.command()
def restore(
    backup: Name,
    folder: Folder = None,
    passphrase_file: PassphraseFile = None,
    private_key: PrivateKey = None,
    no_keys: Annotated[bool, typer.Option("--no-keys", help="Leave the keys as they are.")] = False,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Restore the keys, and nothing else.")] = False,
    replace_keys: Annotated[
        bool, typer.Option("--replace-keys", help="With --keys-only: rename other keys that have the same names.")
    ] = False,
) -> None:
    """Restore ledger, gateway state, keys and a missing configuration, while all services are stopped.

    What exists is never overwritten. A restore that was killed is run again, and goes on. Then see
    `nightshift backup report`. With --keys-only services may be at work, and no report is needed.
    """
    from include.backup.restore import RestoreOptions, restore as restored, restore_keys, restore_settings
    from include.settings.load import load, settings_path
    from include.settings.secrets import EnvSecrets

    if (keys_only and no_keys) or (replace_keys and not keys_only):
        raise typer.BadParameter("--keys-only goes without --no-keys, and --replace-keys with --keys-only only")
    if keys_only:
        with refusing(), _opened(backup, folder) as (content, _):
            settings = load()
            opens = _opener(settings, passphrase_file, private_key)
            options = RestoreOptions(holder(), opens, replaces_keys=replace_keys)
            for line in restore_keys(content, settings, options, now=datetime.now(UTC)):
                typer.echo(printable(line))
        typer.echo("A gateway reads its keys again on SIGHUP.")
        return
    with refusing(), _opened(backup, folder) as (content, _):
        content.manifest.require_readable()
        content.check()
        if restore_settings(content, settings_path()):
            typer.echo(f"settings {settings_path()}: restored")
        settings = load()
        opener = None if no_keys else _opener(settings, passphrase_file, private_key)
        options = RestoreOptions(holder(), opener)
        for line in restored(content, settings, EnvSecrets(), options, now=datetime.now(UTC)):
            typer.echo(printable(line))
    typer.echo("Nothing is collected until the report is accepted. See it: nightshift backup report")


@app.command()
def report(
    accepts: Annotated[
        bool, typer.Option("--accept", help="Verify copies that exist, and let collections begin again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a restored ledger with repositories, FTS and storages; list what a person has to decide.

    Run it before services are started. Exit code 1 if there is something to decide and it was not accepted.
    """
    from include.backup.report import RestoreOutcome, make_report

    with refusing():
        made = make_report(open_site(), by=holder(), now=datetime.now(UTC), accepts=accepts)
    decisions = sum(line.outcome is RestoreOutcome.DECIDE for line in made.lines)
    if as_json:
        typer.echo(json.dumps(made.to_json(), indent=1))
    else:
        for each in made.restores:
            what = (
                f"restored from {each.backup or 'elsewhere'} at {each.noted_at:%Y-%m-%d %H:%M} UTC by {each.noted_by}"
            )
            typer.echo(printable(f"{what}; what came after the backup may be missing"))
        for line in made.lines:
            typer.echo(printable(f"{line.outcome.value:10}  {line.subject}: {line.text}"))
        if not made.restores:
            typer.echo("no restore of the ledger waits for a person")
        elif accepts:
            typer.echo("accepted: builds expire and garbage is collected again")
        else:
            typer.echo(f"{decisions} to decide. Then: nightshift backup report --accept")
    raise typer.Exit(1 if decisions and not accepts else 0)


def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Report what would be changed; change nothing.")] = False,
) -> None:
    """Bring a site to this version: copy and migrate the ledger, and take its files from other accounts.

    With --check: what changes, and what has to be stopped and started in which order. Exit code 0: nothing to change,
    1: something. Without: 0: all is done, 1: the mode of a file could not be changed. 2: refused, nothing was changed.
    Run again, it changes nothing.
    """
    from include.backup import upgrade as upgrading
    from include.settings.load import settings_path

    with refusing():
        settings, secrets = _configured()
        if check:
            plan = upgrading.plan_upgrade(settings, secrets, settings_path())
            for line in plan.lines():
                typer.echo(printable(line))
            if plan.fault is not None:
                raise plan.fault
            raise typer.Exit(1 if plan.changes else 0)
        plan = upgrading.plan_upgrade(settings, secrets, settings_path())
        if plan.fault is None and not plan.changes:
            typer.echo("nothing to change")
        for line in upgrading.upgrade(settings, secrets, settings_path()):
            typer.echo(printable(line))
        raise typer.Exit(1 if upgrading.plan_upgrade(settings, secrets, settings_path()).changes else 0)


@contextmanager
def _opened(name: str, folder: Path | None) -> Iterator[tuple[OpenedBackup, SiteSettings | None]]:
    """A backup by its name in the store, or in a file; without a configuration only the latter."""
    from include.backup.archive import opened
    from include.backup.create import WORK, backup_store, fetched, names_in
    from include.backup.errors import BACKUP_UNKNOWN
    from include.settings.errors import SettingsFileMissing
    from include.settings.load import load

    file = Path(name)
    if "/" in name or file.is_file():
        try:
            settings = load()
        except SettingsFileMissing:
            settings = None
        with opened(file) as content:
            yield content, settings
        return
    settings, secrets = _configured()
    store = backup_store(settings, secrets, folder)
    if name == "latest":
        name = next(iter(names_in(store)), "")
        if not name:
            raise BACKUP_UNKNOWN("latest", f"there is none in {store.url}")
    with fetched(store, name, settings.paths.var / WORK) as copy, opened(copy) as content:
        yield content, settings


def _configured() -> tuple[SiteSettings, EnvSecrets]:
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets

    return load(), EnvSecrets()


def _opener(settings: SiteSettings | None, passphrase_file: Path | None, private_key: Path | None) -> Opener:
    from include.backup.archive import Opener
    from include.settings.errors import MissingConnection
    from include.settings.secrets import EnvSecrets

    if private_key is not None:
        return Opener(private_key=_read(private_key), key_passphrase=os.environ.get(VARIABLE))
    if passphrase_file is not None:
        return Opener(passphrase=_first_line(passphrase_file))
    connection = settings.backup.connection if settings is not None else None
    try:
        return Opener(passphrase=EnvSecrets().get(connection).password if connection else None)
    except MissingConnection:
        return Opener()


def _first_line(file: Path) -> str:
    try:
        return _read(file).decode().split("\n", 1)[0].rstrip("\r")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not text") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from None
