"""`nightshift lab`: the embedded services, up, down and how they are."""

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from include.lab import lifecycle
from include.lab.environment import ADMIN, Lab

app = typer.Typer(no_args_is_help=True)
console = Console(highlight=False, soft_wrap=True)
if not console.is_terminal:
    console.width = 160  # a table in a log is not folded

NOT_RUNNING = 3


@app.command()
def up(
    airflow: Annotated[
        bool, typer.Option(help="Airflow and its database too, or the store and the gateway only.")
    ] = True,
) -> None:
    """Start what does not run yet; return when everything answers as itself."""
    lab = Lab.from_environment()
    began = time.monotonic()
    timings = lifecycle.up(lab, airflow=airflow, say=console.print)
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in timings.steps.items())
    console.print(f"up after {time.monotonic() - began:.1f} s ({steps})")
    show_places(lab, airflow=airflow)


@app.command()
def down() -> None:
    """Stop everything, and prove that nothing is left."""
    lab = Lab.from_environment()
    began = time.monotonic()
    stopped = lifecycle.down(lab, say=console.print)
    console.print(f"stopped {stopped} services after {time.monotonic() - began:.1f} s" if stopped else "nothing ran")


@app.command()
def restart() -> None:
    """Start Airflow and the gateway anew, after code or settings changed; stores and databases stay up."""
    lab = Lab.from_environment()
    began = time.monotonic()
    lifecycle.restart(lab, say=console.print)
    console.print(f"up again after {time.monotonic() - began:.1f} s")


@app.command()
def retain(
    days: Annotated[int, typer.Option(min=1, help="How many days of runs, XComs and logs stay.")] = 60,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
) -> None:
    """Take away what Airflow keeps of old runs: rows of its database, and log files. The ledger stays as it is.

    Nothing goes that is as young as the oldest of what a run keeps that has not ended.
    """
    from include.lab.retain import DATABASE, clean_database, oldest_at_work, remove_logs

    lab = Lab.from_environment()
    before = datetime.now(UTC) - timedelta(days=days)
    environment = lab.environment()
    at_work = oldest_at_work(environment[DATABASE])
    if at_work is not None and at_work.since < before:
        console.print(f"less than asked for goes, because of {at_work}", markup=False)
        before = at_work.since
    console.print(clean_database(environment, before, dry_run=dry_run), markup=False)
    taken = remove_logs(lab.place.airflow_home / "logs", before, dry_run=dry_run)
    verb = "would go" if dry_run else "removed"
    console.print(f"{verb}: {taken.files} log files, {taken.bytes / 1e6:.1f} MB, of before {before:%Y-%m-%d %H:%M} UTC")


@app.command()
def status() -> None:
    """Show what runs, where, and whether it answers. Exit code 3 if anything does not."""
    lab = Lab.from_environment()
    table = Table("service", "state", "pid", "up", "answers", "where", box=None, pad_edge=False)
    states = lifecycle.status(lab)
    for one in states:
        answers = "as itself" if one.good else str(one.wrong)
        table.add_row(
            one.name,
            one.state.name.lower(),
            str(one.pid or ""),
            f"{one.seconds} s" if one.pid else "",
            answers,
            one.where,
        )
    console.print(table)
    if not all(one.good for one in states):
        raise typer.Exit(NOT_RUNNING)


def show_places(lab: Lab, *, airflow: bool) -> None:
    """Prints where the services are and how to log in."""
    table = Table(box=None, show_header=False, pad_edge=False)
    if airflow:
        table.add_row("Airflow", f"{lab.airflow_url}  login {ADMIN}, password {lab.secrets.admin_password}")
    table.add_row("S3 store", f"{lab.s3_url}  keys in {lab.place.secrets}")
    table.add_row("gateway", f"{lab.gateway_url}/api/v1")
    table.add_row("logs", str(lab.place.log))
    table.add_row("stop", "make down, or nightshift lab down")
    console.print(table)
