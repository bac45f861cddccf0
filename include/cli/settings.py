"""`nightshift settings`: is the configuration right, and do the stores keep what Nightshift relies on?"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.ledger.errors import LedgerError
from include.settings.errors import InvalidSettings, MissingConnection, SettingsError, SettingsFileMissing
from include.settings.load import load, settings_path
from include.settings.model import SiteSettings, StoreSettings
from include.settings.secrets import EnvSecrets, Secrets, ledger_address
from include.settings.urls import base_url
from include.storage.errors import StoreError
from include.storage.kinds import kind_of
from include.storage.options import Traits
from include.storage.roles import GRANTS, PolicyServer, Role, bucket_policy, user_policy

if TYPE_CHECKING:
    from sqlalchemy import Engine

HINTS = {
    PolicyServer.AWS: "make the users in IAM, without policies of their own",
    PolicyServer.RADOSGW: "radosgw-admin user create --uid={user} --display-name={user}",
    PolicyServer.SEAWEEDFS: 'in the file of -s3.config: {{"name": "{user}", "credentials": [...], "actions": []}}',
}


def roles(
    store: Annotated[str, typer.Option("--store", help="A store of the configuration.")],
    server: Annotated[PolicyServer, typer.Option(help="How the server names its users.")] = PolicyServer.RADOSGW,
    account: Annotated[str, typer.Option(help="AWS: the account's twelve digits. radosgw: the users' tenant.")] = "",
    user_prefix: Annotated[str, typer.Option(help="What the users' names begin with.")] = "nightshift-",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document: the bucket's and each user's.")] = False,
) -> None:
    """Print the bucket policy that gives each role its rights, and no other's. It changes nothing."""
    settings = load()
    try:
        document = policies(settings, store, server, account=account, user_prefix=user_prefix)
    except StoreError as error:
        raise typer.BadParameter(f"store {store}: {error}") from None
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    for role, user in document["users"].items():
        rights = "; ".join(
            f"{grant.name.lower()} {' '.join(grant.below or ())}".rstrip() for grant in GRANTS[Role(role)]
        )
        typer.echo(f"# {role}: user {user}: {rights}")
    typer.echo(f"# users without any rights of their own: {HINTS[server].format(user=user_prefix + '...')}")
    for note in notes(server):
        typer.echo(f"# {note}")
    typer.echo(json.dumps(document["bucket_policy"], indent=1))


def policies(
    settings: SiteSettings, store: str, server: PolicyServer, *, account: str = "", user_prefix: str = ""
) -> dict[str, Any]:
    """Return the policies that a store's owner has to set, for all its repositories. Raises StoreError without S3."""
    url = settings.store(store).url
    repositories = sorted(repository.fqrn for repository in settings.repositories.values() if repository.store == store)
    users: dict[Role, str] = {role: f"{user_prefix}{role.value}" for role in Role if role is not Role.READER}
    principals = {role: server.principal(user, account) for role, user in users.items()}
    return {
        "store": store,
        "url": url,
        "server": server.value,
        "repositories": repositories,
        "users": {role.value: user for role, user in users.items()},
        "bucket_policy": bucket_policy(url, repositories, principals),
        "user_policies": {role.value: user_policy(url, repositories, role) for role in users},
        "notes": list(notes(server)),
    }


def notes(server: PolicyServer) -> tuple[str, ...]:
    """Return notes on a server that cannot enforce something, or does it in its own way."""
    match server:
        case PolicyServer.RADOSGW:
            return (
                "requests that delete many objects need the right on the bucket too; each object is judged as well",
                "an object belongs to whom wrote it last: the bucket's owner reads it by the readers' rule only",
            )
        case PolicyServer.SEAWEEDFS:
            return ("a user with any action of the file has them in addition to the policy: leave them empty",)
    return ()


app = typer.Typer(no_args_is_help=True)
app.command()(roles)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
_UNFOLDED = 10_000


@dataclass(frozen=True, slots=True)
class CheckedSetting:
    """A checked thing; `problem`: None when it is right; `notes`: what follows from what was seen."""

    kind: str
    name: str
    seen: str
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "seen": self.seen,
            "problem": self.problem,
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class SettingsReport:
    """Everything that was checked."""

    file: str
    checked: list[CheckedSetting] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return all(setting.problem is None for setting in self.checked)


@app.command()
def check(
    as_json: AsJson = False,
    stores: Annotated[bool, typer.Option(help="Also try each store, by racing writers.")] = True,
) -> None:
    """Check the file, its connections, the ledger and each store. Exit code 1 on any problem."""
    report = check_site(EnvSecrets(), try_stores=stores)
    if as_json:
        document = {
            "file": report.file,
            "good": report.good,
            "checked": [setting.to_json() for setting in report.checked],
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        _print(report)
    raise typer.Exit(0 if report.good else 1)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show the configuration as it is understood: defaults filled in, variables expanded, paths absolute."""
    settings = load()
    if as_json:
        typer.echo(settings.model_dump_json(indent=1))
        return
    import yaml

    typer.echo(f"# {settings_path()}")
    typer.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def pools(
    as_json: AsJson = False,
    cores: Annotated[
        int | None,
        typer.Option(min=1, envvar="NIGHTSHIFT_WORKER_CORES", help="Of all workers together; else this machine's."),
    ] = None,
) -> None:
    """Show the pools that the tasks run in. With --json as `airflow pools import` reads them."""
    from include.settings.pools import pools as pools_of
    from include.settings.pools import to_import

    found = pools_of(load(), cores=cores)
    if as_json:
        typer.echo(json.dumps(to_import(found), indent=1))
        return
    table = Table("pool", "slots", "purpose", box=None, pad_edge=False)
    for pool in found:
        table.add_row(pool.name, str(pool.slots), pool.description)
    Console(highlight=False, soft_wrap=True).print(table)


def check_site(secrets: Secrets, *, try_stores: bool = True) -> SettingsReport:
    """Check everything that the configuration names; nothing is raised for what is wrong with it."""
    report = SettingsReport(str(settings_path()))
    try:
        settings = load()
    except InvalidSettings as error:
        report.checked += [
            CheckedSetting(
                "file", f"line {problem.line}", problem.key, f"{problem.what}{_given(problem.given)}. {problem.cure}"
            )
            for problem in error.problems
        ]
        return report
    except SettingsFileMissing as error:
        report.checked.append(CheckedSetting("file", report.file, "missing", error.what))
        return report
    report.checked.append(
        CheckedSetting("file", report.file, f"{len(settings.slots)} slots, {len(settings.repositories)} repositories")
    )
    report.checked += _check_connections(settings, secrets)
    report.checked += _check_lab()
    report.checked += _check_schedules(settings)
    report.checked += _check_keys(settings)
    ledger, checked = _check_ledger(settings, secrets)
    report.checked.append(checked)
    traits: dict[str, Traits] = {}
    if try_stores:
        for store in settings.stores.values():
            report.checked.append(_try_store(settings, store, secrets, ledger, traits))
            report.checked += try_collector(settings, store, secrets)
    report.checked += _check_repositories(settings, traits, tried=try_stores)
    if try_stores:
        report.checked += _check_revisions(settings, secrets, set(traits))
    return report


def _given(given: str | None) -> str:
    return f" (given: {given})" if given is not None else ""


def _check_connections(settings: SiteSettings, secrets: Secrets) -> Iterable[CheckedSetting]:
    from include.cli.airflow_connections import defined_in_airflow
    from include.monitoring.checks import look_at_connections, named
    from include.monitoring.findings import Severity

    gateways = {repository.gateway for repository in settings.repositories.values()}
    names = named(settings, settings.repositories, settings.stores)
    for finding in look_at_connections(settings, secrets, names, defined_in_airflow(settings, secrets)):
        seen, name = finding.seen, finding.subject
        if finding.severity is Severity.ERROR:
            yield CheckedSetting("connection", name, f"for {names[name]}", finding.cure)
            continue
        if finding.severity is Severity.OK:
            try:
                seen = f"{_login(settings, secrets, name, at_gateway=name in gateways)}, {finding.seen}"
            except MissingConnection:
                pass  # in Airflow only
            except SettingsError as error:
                yield CheckedSetting("connection", name, f"for {names[name]}", str(error))
                continue
        yield CheckedSetting("connection", name, seen, notes=(finding.cure,) if finding.cure else ())


def _check_lab() -> Iterable[CheckedSetting]:
    """Compare the configuration with the programs that run with it."""
    from include.cli.airflow_connections import look_at_lab

    for finding in look_at_lab():
        yield CheckedSetting("lab", finding.subject, finding.seen, f"{finding.seen}. {finding.cure}")


def _login(settings: SiteSettings, secrets: Secrets, name: str, *, at_gateway: bool) -> str:
    found = secrets.get(name)
    login = f"login {found.login}" if found.login else "no login"
    return f"{login} at {base_url(found, port=settings.gateway.port)}" if at_gateway else login


def _check_schedules(settings: SiteSettings) -> Iterable[CheckedSetting]:
    from include.monitoring.schedules import left_out

    for slot in settings.slots.values():
        if slot.schedule and (missing := left_out(slot.schedule, slot.timezone, datetime.now(UTC))):
            seen = f"{slot.schedule} in {slot.timezone}"
            note = (
                f"{missing:%Y-%m-%d %H:%M} does not exist there, since the clock is put forward over it; "
                "that night begins as much later. Choose a time of day outside of the change."
            )
            yield CheckedSetting("schedule", slot.name, seen, notes=(note,))


def _check_keys(settings: SiteSettings) -> Iterable[CheckedSetting]:
    for repository in settings.repositories.values():
        # made together with the repository, so its absence is no fault of the file
        there = repository.public_key.is_file()
        notes = () if there else ("made when the repository is created; else copy its .pub file there",)
        seen = f"{repository.public_key}{'' if there else ' (not there yet)'}"
        yield CheckedSetting("public key", repository.fqrn, seen, notes=notes)


def _check_ledger(settings: SiteSettings, secrets: Secrets) -> tuple[Engine | None, CheckedSetting]:
    from include.ledger.engine import shown, shown_address
    from include.settings.traits import open_site_ledger

    name = settings.ledger
    try:
        name = shown_address(ledger_address(settings, secrets))
        engine = open_site_ledger(settings, secrets)
    except (LedgerError, SettingsError) as error:
        return None, CheckedSetting("ledger", name, "cannot be used", str(error))
    return engine, CheckedSetting("ledger", shown(engine.url), "tables up to date")


def _try_store(
    settings: SiteSettings, store: StoreSettings, secrets: Secrets, ledger: Engine | None, traits: dict[str, Traits]
) -> CheckedSetting:
    from include.settings.traits import record_traits
    from include.site.site import try_store

    try:
        seen = try_store(settings, secrets, store.name)
    except SettingsError as error:
        return CheckedSetting("store", store.name, f"{store.url}: not tried", str(error))
    except StoreError as error:
        cure = "Check its URL, endpoint and connection, and that the bucket is there."
        return CheckedSetting("store", store.name, f"{store.url}: cannot be used", f"{error}. {cure}")
    if seen is None:
        return CheckedSetting("store", store.name, f"{store.url}: read only, not tried")
    traits[store.name] = seen
    if ledger is not None:
        record_traits(ledger, store, seen, now=datetime.now(UTC))
    notes = (*_consequences(seen), *_unfinished(settings, store, secrets))
    return CheckedSetting("store", store.name, f"{store.url}: {_words(seen)}", notes=notes)


def try_collector(settings: SiteSettings, store: StoreSettings, secrets: Secrets) -> Iterable[CheckedSetting]:
    """Try whether the collector's own key may delete; where it has none, the publishers' was tried."""
    from include.site.site import plain_store
    from include.storage.probe import may_delete

    if store.collector_connection is None:
        return
    for fqrn in sorted(
        repository.fqrn for repository in settings.repositories.values() if repository.store == store.name
    ):
        try:
            opened = plain_store(settings, secrets, store.name, Role.COLLECTOR).child(fqrn)
            may_delete(opened)
            versions = opened.versioning()
        except SettingsError as error:
            yield CheckedSetting("collector", fqrn, "not tried", str(error))
        except StoreError as error:
            cure = (
                f"Correct connection {store.collector_connection!r}, or the bucket's policy: nightshift settings roles"
            )
            yield CheckedSetting("collector", fqrn, "cannot delete objects", f"{error}. {cure}")
        else:
            notes = ("the bucket keeps old versions: deleted objects still take up space",) if versions else ()
            yield CheckedSetting("collector", fqrn, "may delete objects", notes=notes)


def _unfinished(settings: SiteSettings, store: StoreSettings, secrets: Secrets) -> Iterable[str]:
    """Return leftovers of killed writers; none where uploads may not be listed."""
    from include.site.site import plain_store
    from include.storage.file import abandoned, described

    with contextlib.suppress(StoreError):
        opened = plain_store(settings, secrets, store.name)
        if found := abandoned(opened, datetime.now(UTC)):
            yield described(found, opened)


def _words(traits: Traits) -> str:
    kept = {
        "put-if-absent": traits.put_if_absent,
        "replace-if-unchanged": traits.replace,
        "bulk delete": traits.bulk_delete,
        "anonymous read": traits.anonymous_read,
    }
    marks: dict[bool | None, Callable[[str], str]] = {
        True: lambda what: f"{what} kept",
        False: lambda what: f"{what} NOT kept",
        None: lambda what: f"{what} not tried",
    }
    return ", ".join(marks[value](what) for what, value in kept.items())


def _consequences(traits: Traits) -> Iterable[str]:
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


def _check_repositories(settings: SiteSettings, traits: dict[str, Traits], *, tried: bool) -> Iterable[CheckedSetting]:
    from include.settings.traits import require_single_writer

    for repository in settings.repositories.values():
        store = settings.store(repository.store)
        seen = f"manifest writers: {repository.manifest_writers}"
        if repository.server is not None:
            node = repository.server
            yield CheckedSetting("repository", repository.fqrn, f"published on {node.user}@{node.host}:{node.port}")
        elif not kind_of(store.url).writable:
            problem = f"store {store.name}, {store.url}, can only be read, so nothing can be published to it"
            yield CheckedSetting("repository", repository.fqrn, seen, f"{problem}. Name a store with s3:// or file://.")
        elif tried:
            writers = [f"gateway {number + 1}" for number in range(repository.manifest_writers)]
            verdict = require_single_writer(
                traits.get(store.name), store=store.name, fqrn=repository.fqrn, writers=writers
            )
            yield CheckedSetting("repository", repository.fqrn, seen, None if verdict.allowed else verdict.reason)


def _check_revisions(settings: SiteSettings, secrets: Secrets, answering: set[str]) -> Iterable[CheckedSetting]:
    """Compare the settings with what the repositories are in the stores that answer; what is absent is passed over."""
    from include.cvmfs.commit.commit import read_head
    from include.cvmfs.errors import CvmfsError
    from include.cvmfs.format.catalogs import CatalogCache
    from include.publishers.base import NO_NANOSECONDS, holds_nanoseconds
    from include.site.site import Site

    site = Site(settings, secrets)
    for repository in (configured for configured in settings.repositories.values() if configured.store in answering):
        try:
            store = site.repository_store(repository.fqrn)
            manifest = read_head(store, repository.fqrn).manifest
            layout = CatalogCache(store).open_nested("", manifest.root).layout
        except (CvmfsError, StoreError, SettingsError, LedgerError, OSError):
            continue
        algorithm = manifest.root.algorithm.name.lower()
        seen = f"revision {manifest.revision}, {algorithm}, catalogs of {layout.value}"
        notes: tuple[str, ...] = ()
        if algorithm != repository.hash.value:
            what = f"`hash: {repository.hash.value}` has no effect: the repository was created with {algorithm}"
            notes = (f"{what}, which its new objects are hashed with",)
        wrong = repository.prepare.mtime_ns and not holds_nanoseconds(layout)
        yield CheckedSetting(
            "repository", repository.fqrn, seen, NO_NANOSECONDS.format(layout.value) if wrong else None, notes
        )


def _print(report: SettingsReport) -> None:
    from include.cli.main import typeable

    screen = Console(highlight=False)
    if not screen.is_terminal:
        screen.width = _UNFOLDED  # a line in a log or a pipe is neither folded nor cut
    table = Table("", "what", "name", "seen", box=None, pad_edge=False)
    for setting in report.checked:
        mark = "[green]ok[/]" if setting.problem is None else "[red]WRONG[/]"
        name, seen = (Text(text, overflow="fold") for text in (setting.name, setting.seen))
        table.add_row(mark, setting.kind, name, seen)
    screen.print(table)
    for setting in report.checked:
        for note in setting.notes:
            screen.print(typeable(f"note: {setting.kind} {setting.name}: {note}"), markup=False, soft_wrap=True)
    problems = [setting for setting in report.checked if setting.problem is not None]
    for setting in problems:
        text = f"{_place(report, setting)}: {typeable(setting.problem or '')}"
        screen.print(text, markup=False, soft_wrap=True)
    screen.print(f"{len(problems)} problems" if problems else "no problems found")


def _place(report: SettingsReport, setting: CheckedSetting) -> str:
    if setting.kind != "file":
        return f"{setting.kind} {setting.name}"
    line = setting.name.removeprefix("line ")
    return report.file if line == setting.name else f"{report.file}:{line}: {setting.seen}"
