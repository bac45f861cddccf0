"""`nightshift nightly run`: a night of the demonstration, and the account of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from include.cli.nightly import Screen, console, day_of

if TYPE_CHECKING:
    from lab.night import NightReport


def add_to(app: typer.Typer) -> None:
    """Adds the command to its group."""
    app.command()(run)


def run(
    date_text: Annotated[
        str, typer.Option("--date", help="Build date, YYYY-MM-DD; default: today, where the slot is.")
    ] = "",
    slot: Annotated[str, typer.Option(help="A slot with `demonstration: true`; default: the first one.")] = "",
    rebuild: Annotated[bool, typer.Option(help="Pack the build again even if it is in its store.")] = False,
    allow_future: Annotated[
        bool, typer.Option("--allow-future", help="Install a build whose date is later than today.")
    ] = False,
) -> None:
    """Demonstrate a night: start the services, pack this machine's software, install it, print the account.

    Only a slot with `demonstration: true` is written to; `install` installs a build of any other. The services stay
    up: read the repository at its URL, then stop them with `make down`.
    """
    from include.nightlies.rules.passes import today
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets
    from lab.environment import Lab, adopt
    from lab.night import Viewer, Wishes, demonstration_slot, run_night

    name = demonstration_slot(load(), slot).name
    lab = Lab.from_environment()
    adopt()  # the first night has only now made the secrets
    settings = load()
    day = day_of(date_text) if date_text else today(settings.slot(name).timezone, datetime.now(UTC))
    with Screen() as screen:
        viewer = Viewer(say=screen.say, packed=screen.packed, run=screen.run)
        report = run_night(lab, settings, EnvSecrets(), Wishes(name, day, rebuild, allow_future), viewer)
    path = lab.place.var / "last-night.json"
    report.write(path)
    show(report)
    console.print(f"\nThe same in {path}. The services stay up; make down stops them.", soft_wrap=True)
    if not report.good:
        raise typer.Exit(1)


def show(report: NightReport) -> None:
    """Prints the table of artifacts, the totals, and how to mount the repository."""
    table = Table(box=None, pad_edge=False)
    for heading in ("project", "platform", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("files", "MB", "new", "reused", "s", "lease s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("reason")
    for line in report.lines:
        figures = (line.files, f"{line.bytes / 1e6:.1f}", line.objects_new, line.objects_reused)
        times = (f"{line.seconds:.1f}", f"{line.lease_held_s:.2f}")
        reason = Text(line.reason, overflow="fold")
        table.add_row(line.project, line.platform, line.state, *map(str, figures), *times, reason)
    console.print(table)
    states = f"{report.published} published, {report.unchanged} unchanged, {report.failed} failed of {report.expected}"
    objects = f"{report.total('objects_new')} new objects, {report.total('objects_reused')} reused"
    console.print(
        f"\n{report.slot} {report.date}: {states}; {report.total('files')} files, {objects}; {report.wall_s:.0f} s"
    )
    console.print(f"{report.repository} revision {report.revision}, root {report.root_hash}", soft_wrap=True)
    console.print(report.url, soft_wrap=True)
    for problem in report.problems:
        console.print(f"check: {problem}", soft_wrap=True)
    if not report.problems:
        console.print("check: no problems found")
    console.print("\nTo mount it, /etc/cvmfs/default.local:")
    console.print(report.client_configuration(), soft_wrap=True)
