"""`nightshift notify test`: one message by each way of `notify:`."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from include.cli.repository.open import holder, open_site, refusing
from include.cvmfs.sources.source import printable

app = typer.Typer(no_args_is_help=True)
FAILED = 1


@app.callback()
def notify() -> None:
    """Notify people."""


@app.command()
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
