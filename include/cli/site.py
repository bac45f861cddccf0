"""Commands on the parts of a deployment: `nightshift site`, `store`, `notify` and `dags`.

`site`: health of the storage sites of the configuration, holds by hand, reports of readers. `store`: put a file into a
store. `notify test`: one message by each way of `notify:`. `dags on`: unpause the DAGs of Nightshift in Airflow.
"""

from __future__ import annotations

import getpass
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.repository.open import AsJson, holder, open_site, printable, refusing

if TYPE_CHECKING:
    from include.federation.states import SiteHealth

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="SITE", help="A site of the configuration.")]
Reason = Annotated[str, typer.Option("--reason", "-m", metavar="TEXT", help="Why; others read it.")]
HISTORY = timedelta(days=7)


@app.callback()
def _site() -> None:
    """Health of the storage sites, by probes, transfers and readers."""


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="SITE", help="One site, with its history.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of each site, since when and why; of one site its last changes, too.

    Exit code 0: all are used; 1: one has failed, or is held.
    """
    with refusing():
        from include.federation.records import changes_of, health_of

        site = open_site()
        names = [site.settings.remote_site(name).name] if name else sorted(site.settings.sites)
        health = health_of(site.ledger, names)
        history = changes_of(site.ledger, datetime.now(UTC) - HISTORY).get(name, []) if name else []
    if as_json:
        typer.echo(json.dumps({current.site: _values(current) for current in health.values()}, indent=1))
    else:
        for current in health.values():
            since = f" since {current.since:%Y-%m-%d %H:%M} UTC" if current.since else ""
            held = f"; held by {current.held_by}: {current.held_reason}" if current.held_by else ""
            reason = current.reason or ("nothing failed" if current.checked_at else "not judged yet")
            typer.echo(printable(f"{current.site:24} {current.state.value:8}{since}; {reason}{held}"))
        for change in history:
            typer.echo(printable(f"{change.at:%Y-%m-%d %H:%M} UTC  {change.change:9} {change.reason}"))
    raise typer.Exit(any(current.obstacle for current in health.values()))


def _values(health: SiteHealth) -> dict[str, Any]:
    return {
        "state": health.state.value,
        "since": health.since and health.since.isoformat(),
        "reason": health.reason,
        "checked_at": health.checked_at and health.checked_at.isoformat(),
        "held_by": health.held_by,
        "held_reason": health.held_reason,
    }


@app.command()
def probe(
    names: Annotated[list[str] | None, typer.Argument(metavar="SITE…", help="Default: all that have a probe.")] = None,
) -> None:
    """Probe sites now, and judge them by it, as the DAG `site_health` does.

    Exit code 0: all is well; 1: a probe failed, or a site could not be probed.
    """
    with refusing():
        from include.federation.records import NO_PROBE
        from include.federation.rounds import check_sites

        site = open_site()
        only = [site.settings.remote_site(name).name for name in names or ()]
        without = [name for name in only if site.settings.sites[name].probe is None]
        if without or not any(remote.probe for remote in site.settings.sites.values()):
            raise NO_PROBE(", ".join(without) or "all sites", "no `probe` is configured")
        now = partial(datetime.now, UTC)
        report = check_sites(site, now=now, only=only, say=lambda text: typer.echo(printable(text)))
    for name, why in report.unprobed.items():
        typer.echo(printable(f"{name}: not probed: {why}"))
    for fault in report.faults:
        typer.echo(printable(fault))
    for name, state in report.outcome.changed.items():
        typer.echo(printable(f"{name} is {state.value} now: {report.outcome.health[name].reason}"))
    if report.outcome.own_network:
        typer.echo(f"{', '.join(report.outcome.own_network)} turned bad together: our own network? None is marked.")
    failed = any(result.failed for results in report.probes.values() for result in results)
    raise typer.Exit(failed or bool(report.unprobed))


@app.command()
def hold(name: Name, reason: Reason) -> None:
    """Send nothing to a site until it is released, whatever its probes say."""
    with refusing():
        from include.federation import records

        site = open_site()
        checked = site.settings.remote_site(name).name
        records.hold(site.ledger, checked, by=getpass.getuser(), reason=reason, now=datetime.now(UTC))
    typer.echo(f"{name} is held; release it by: nightshift site release {name}")


@app.command()
def release(name: Name, reason: Reason = "") -> None:
    """End the hold of a site, or the failure of one that is not held; its next probes judge it afresh."""
    with refusing():
        from include.federation import records

        site = open_site()
        checked = site.settings.remote_site(name).name
        state = records.release(site.ledger, checked, by=getpass.getuser(), reason=reason, now=datetime.now(UTC)).state
    typer.echo(f"{name} is released; its state is {state.value}")


@app.command()
def readings(
    file: Annotated[typer.FileText, typer.Argument(help="A log with lines of include.reading; - for standard input.")],
) -> None:
    """Take the lines that readers left in their logs: they count for the health of sites, and are shown."""
    with refusing():
        from include.federation.records import note_results, results_of_readings

        site = open_site()
        results, damaged = results_of_readings(file, site.settings.sites)
        note_results(site.ledger, results, now=datetime.now(UTC))
    good, failed = (sum(getattr(result, name) for result in results) for name in ("good", "failed"))
    typer.echo(f"{good} files read, {failed} failures at sites" + (f", {damaged} damaged lines" if damaged else ""))


store_group = typer.Typer(no_args_is_help=True)


@store_group.callback()
def _store() -> None:
    """Stores of the site configuration."""


@store_group.command()
def put(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store of the configuration.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="File to store.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its key in the store; default: the file's name.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace another content under the key.")] = False,
) -> None:
    """Store a file, which is held in memory, and print its URL. Run again with the same file it changes nothing."""
    from include.storage.objects import put_object

    with refusing():
        stored = put_object(open_site().store(store), key or file.name, file.read_bytes(), replaces=replace)
    typer.echo(f"{stored.url}: {stored.size} bytes{', there already' if stored.unchanged else ''}")


notify_group = typer.Typer(no_args_is_help=True)
FAILED = 1


@notify_group.callback()
def _notify() -> None:
    """Notify people."""


@notify_group.command()
def test() -> None:
    """Send a test message by each way of `notify:`: each connection of Apprise.

    Connections come from the environment of this command (AIRFLOW_CONN_<ID>). Exit code 1 if a way fails or none is
    configured. Nothing is recorded: alerts that were sent or wait are as before.
    """
    from include.notify import Message, Notifier, NotifyEvent

    now = datetime.now(UTC)
    message = Message(
        key="test",
        event=NotifyEvent.TEST,
        severity="ok",
        title="test message",
        text=f"Sent by `nightshift notify test` of {holder()} at {now:%Y-%m-%d %H:%M} UTC. There is nothing to do.",
    )
    with refusing():
        site = open_site()
        results = Notifier.of(site).send(message)
    for way, fault in results.items():
        typer.echo(printable(f"{way}: {'ok' if fault is None else f'failed: {fault}'}"))
    if not results:
        typer.echo("no way is configured: no one is notified. Add apprise to `notify:`.", err=True)
    raise typer.Exit(FAILED if not results or any(results.values()) else 0)


dags_group = typer.Typer(no_args_is_help=True)


@dags_group.callback()
def _dags() -> None:
    """DAGs in Airflow."""


@dags_group.command()
def on(
    dags: Annotated[
        list[str] | None, typer.Argument(metavar="[DAG]...", help="Ids of DAGs; default: all that the site needs.")
    ] = None,
    connection: Annotated[
        str,
        typer.Option(
            help="Connection of a user of Airflow's API who may change DAGs; default: of the lab, else of the site."
        ),
    ] = "",
) -> None:
    """Unpause DAGs: those that run by themselves, and those that people and pages start.

    The last tick of a schedule that was missed begins at once then, from the `start` of its slot on. DAGs that Airflow
    has not read yet are waited for.
    """
    with refusing():
        from include.cli.airflow_connections import airflow_api, unpause

        site = open_site()
        api = airflow_api(site.settings, site.secrets, connection)
        unpaused = unpause(api, site.settings, dags or ())
    for dag_id in unpaused:
        typer.echo(f"unpaused {dag_id}")
    if not unpaused:
        typer.echo("none of them was paused")
