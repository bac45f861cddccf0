"""`nightshift settings`: shows and checks the configuration, and prints the policies of its stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.cli.main import typeable
from include.cli.repository.open import refusing
from include.monitoring.findings import Depth, Finding, Severity
from include.settings.errors import InvalidSettings, SettingsFileMissing
from include.settings.load import load, settings_path
from include.settings.model import SiteSettings, StoreSettings
from include.settings.scheduling import pools as pools_of, to_import
from include.settings.secrets import EnvSecrets, Secrets
from include.storage.buckets import GRANTS, PolicyServer, Role, bucket_policy, user_policy
from include.storage.errors import StoreError
from include.storage.kinds import S3, kind_of

HINTS = {
    PolicyServer.AWS: "make the users in IAM, without policies of their own",
    PolicyServer.RADOSGW: "radosgw-admin user create --uid={user} --display-name={user}",
    PolicyServer.SEAWEEDFS: 'in the file of -s3.config: {{"name": "{user}", "credentials": [...], "actions": []}}',
}


def roles(
    store: Annotated[str, typer.Option("--store", help="A store of the configuration.")],
    server: Annotated[
        PolicyServer, typer.Option(help="Kind of server, which decides the form of user names.")
    ] = PolicyServer.RADOSGW,
    account: Annotated[str, typer.Option(help="AWS: the account's twelve digits. radosgw: the users' tenant.")] = "",
    user_prefix: Annotated[str, typer.Option(help="Prefix of the users' names.")] = "nightshift-",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document: the bucket's and each user's.")] = False,
    owner: Annotated[
        str, typer.Option(help="Connection with the key of the bucket's owner: set the policy, and make the bucket.")
    ] = "",
) -> None:
    """Print the bucket policy that gives each role its rights, and no other's; only with --owner it is set."""
    settings = load()
    if owner and kind_of(settings.store(store).url) is not S3:
        typer.echo(f"# store {store}: no bucket, and so no policy")
        return
    try:
        document = policies(settings, store, server, account=account, user_prefix=user_prefix)
    except StoreError as error:
        raise typer.BadParameter(f"store {store}: {error}") from None
    if owner:
        with refusing():
            _set_policy(settings.store(store).model_copy(update={"connection": owner}), server, document, account)
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


def _set_policy(store: StoreSettings, server: PolicyServer, document: Mapping[str, Any], account: str) -> None:
    from include.site.site import credentials_of, options_of
    from include.storage.buckets import allow_roles, ensure_bucket

    key, options = credentials_of(store, EnvSecrets()), options_of(store)
    assert key is not None  # noqa: S101 - its connection is named
    ensure_bucket(store.url, key, options)
    if not document["repositories"]:
        return
    principals = {Role(role): server.principal(user, account) for role, user in document["users"].items()}
    allow_roles(store.url, key, options, repositories=document["repositories"], principals=principals)


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


@app.command()
def check(
    as_json: AsJson = False,
    stores: Annotated[bool, typer.Option(help="Also try each store, by racing writers.")] = True,
) -> None:
    """Check the file, its connections, the ledger and each store. Exit code 1 on any problem."""
    findings = check_site(EnvSecrets(), try_stores=stores)
    problems = [finding for finding in findings if finding.severity is Severity.ERROR]
    if as_json:
        checked = [
            {
                "kind": finding.check,
                "name": finding.subject,
                "seen": finding.seen,
                "problem": finding.cure if finding in problems else None,
                "notes": _notes(finding),
            }
            for finding in findings
        ]
        typer.echo(json.dumps({"file": str(settings_path()), "good": not problems, "checked": checked}, indent=1))
    else:
        _print(findings, problems)
    raise typer.Exit(1 if problems else 0)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Show the configuration as it is understood: defaults filled in, variables expanded, paths absolute."""
    settings = load()
    if as_json:
        typer.echo(settings.model_dump_json(indent=1))
        return

    typer.echo(f"# {settings_path()}")
    typer.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def pools(
    as_json: AsJson = False,
    cores: Annotated[
        int | None,
        typer.Option(
            min=1, envvar="NIGHTSHIFT_WORKER_CORES", help="Cores of all workers together. Default: this machine's."
        ),
    ] = None,
) -> None:
    """Show the pools that the tasks run in. With --json as `airflow pools import` reads them."""
    pools = pools_of(load(), cores=cores)
    if as_json:
        typer.echo(json.dumps(to_import(pools), indent=1))
        return
    table = Table("pool", "slots", "purpose", box=None, pad_edge=False)
    for pool in pools:
        table.add_row(pool.name, str(pool.slots), pool.description)
    Console(highlight=False, soft_wrap=True).print(table)


def check_site(secrets: Secrets, *, try_stores: bool = True) -> list[Finding]:
    """Check everything that the configuration names; nothing is raised for what is wrong with it."""
    from include.cli.airflow_connections import defined_in_airflow, look_at_lab
    from include.monitoring.checks import checks_of
    from include.site.site import Site

    file = str(settings_path())
    try:
        settings = load()
    except InvalidSettings as error:
        return [
            Finding("file", f"line {problem.line}", Severity.ERROR, problem.key, problem.text)
            for problem in error.problems
        ]
    except SettingsFileMissing as error:
        return [Finding("file", file, Severity.ERROR, "missing", error.what)]
    summary = f"{len(settings.slots)} slots, {len(settings.repositories)} repositories"
    findings = [Finding("file", file, Severity.OK, summary)]
    findings += [replace(finding, cure=f"{finding.seen}. {finding.cure}") for finding in look_at_lab()]
    site, asked = Site(settings, secrets), defined_in_airflow(settings, secrets)
    for depth in (Depth.FILE, Depth.RACE) if try_stores else (Depth.FILE,):
        # one after the other: what a store was seen to keep decides about its repositories
        for check in checks_of(site, depth=depth, asked=asked):
            findings += check.look()
    return findings


def _notes(finding: Finding) -> list[str]:
    warned = finding.severity.value == "warning"
    return [*finding.notes, *([finding.cure] if warned else ())]


def _print(findings: Sequence[Finding], problems: Sequence[Finding]) -> None:
    screen = Console(highlight=False)
    if not screen.is_terminal:
        screen.width = _UNFOLDED  # a line in a log or a pipe is neither folded nor cut
    table = Table("", "what", "name", "seen", box=None, pad_edge=False)
    for finding in findings:
        mark = "[red]WRONG[/]" if finding in problems else "[green]ok[/]"
        table.add_row(mark, finding.check, *(Text(text, overflow="fold") for text in (finding.subject, finding.seen)))
    screen.print(table)
    lines = [f"note: {finding.check} {finding.subject}: {note}" for finding in findings for note in _notes(finding)]
    lines += [f"{_place(finding)}: {finding.cure}" for finding in problems]
    for line in lines:
        screen.print(typeable(line), markup=False, soft_wrap=True)
    screen.print(f"{len(problems)} problems" if problems else "no problems found")


def _place(finding: Finding) -> str:
    if finding.check != "file":
        return f"{finding.check} {finding.subject}"
    line = finding.subject.removeprefix("line ")
    return finding.subject if line == finding.subject else f"{settings_path()}:{line}: {finding.seen}"
