"""`nightshift lab`: the embedded services, up, down and how they are."""

import time
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
