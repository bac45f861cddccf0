"""`nightshift nightly`: write a build's index, install it by its slot's DAG, report on it; undo or expire builds."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from include.cli.main import typeable
from include.cli.repository.open import AsJson, DryRun, holder, open_site, refusing
from include.cvmfs.sources.source import printable
from include.nightlies.errors import UndoRefused
from include.nightlies.rules.passes import today

if TYPE_CHECKING:
    from include.cli.airflow_connections import Snapshot
    from include.nightlies.removal.retention import RemovedBuilds, RetentionPlan
    from include.nightlies.removal.undo import Wish

SlotName = Annotated[str, typer.Option(help="Slot of the site configuration.")]
BuildId = Annotated[str, typer.Option("--build", help="The id of the build, as its index has it.")]
Projects = Annotated[list[str] | None, typer.Option("--project", help="Only this project; may be repeated.")]
Platforms = Annotated[list[str] | None, typer.Option("--platform", help="Only this platform; may be repeated.")]


def undo(
    slot: SlotName,
    build: BuildId,
    reason: Annotated[str, typer.Option(help="Reason, kept in the ledger.")],
    project: Projects = None,
    platform: Platforms = None,
    predecessor: Annotated[
        bool, typer.Option("--predecessor", help="Put what the newest earlier build has in its place.")
    ] = False,
    move_links: Annotated[
        bool, typer.Option("--move-links", help="Let links that lead to what goes lead to an earlier build.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this option the plan is only reported.")] = False,
) -> None:
    """Take a build back, or some of it, in one revision; what others published since stays.

    Without --yes nothing is changed. A build that links lead to is refused without --move-links. What is undone is
    not installed again by itself: see `redo`.
    """
    from include.nightlies.removal.undo import Replacement, plan_undo, undo as do_it
    from include.nightlies.steps.values import Attempt

    instead = Replacement.PREDECESSOR if predecessor else Replacement.NOTHING
    wish = replace(_wish(slot, build, reason, project, platform), instead=instead, move_links=move_links)
    site = open_site()
    if not yes:
        plan = plan_undo(site, wish)
        for line in plan.lines():
            typer.echo(line)
        if plan.refused:
            raise UndoRefused(build, plan.refused)
        typer.echo("nothing was changed; add --yes to do it")
        return
    plan, revision = do_it(site, Attempt(f"by hand/{holder()}", holder(), 1, _now), wish)
    for line in plan.lines():
        typer.echo(line)
    typer.echo(f"done in revision {revision}" if revision else "nothing was to be done")


def redo(slot: SlotName, build: BuildId, project: Projects = None, platform: Platforms = None) -> None:
    """Let the next run of a build install again what was undone of it; the repository is not changed by this."""
    from include.nightlies.removal.undo import redo as do_it

    site = open_site()
    count = do_it(site, _wish(slot, build, "", project, platform), now=_now(), by=holder())
    typer.echo(f"{count} artifacts of {build} may be installed again; run nightly_install for its date")


def retention(
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="Slot of the site configuration.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Remove what no rule keeps; without this, only list it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the builds of a slot that stay or go by its rules of retention, and why. Without --apply nothing is changed.

    What goes, goes in one revision. A backfill may install it again.
    """
    from include.nightlies.removal.retention import plan_retention, remove_expired
    from include.nightlies.steps.values import Attempt

    with refusing():
        site = open_site()
        plan = plan_retention(site, slot, now=_now())
        done = remove_expired(site, Attempt(f"by hand/{holder()}", holder(), 1, _now), plan) if apply else None
    if as_json:
        typer.echo(json.dumps(plan.to_json() | {"applied": done.to_json() if done else None}, indent=1))
        return
    _show(plan)
    if done is None:
        typer.echo("nothing was changed; add --apply to do it" if plan.expired else "nothing goes")
        return
    for directory, why in done.kept.items():
        typer.echo(printable(f"{directory} stays: {why}"))
    typer.echo(_outcome(done))


def _show(plan: RetentionPlan) -> None:
    """The builds as a table, then the tags."""
    typer.echo(f"{plan.repository}, revision {plan.revision}, slot {plan.slot}")
    rows = [("BUILD", "DATE", "CHANGED (UTC)", "MB", "", "REASON")]
    for decision in plan.decisions:
        build = decision.build
        day = f"{build.key.date}{'' if build.dated else '?'}"
        size = f"{build.bytes / 1e6:,.1f}"
        changed = f"{build.changed_at:%Y-%m-%d %H:%M}"
        rows.append((build.key.build_id, day, changed, size, "remove" if decision.remove else "keep", decision.reason))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for build_id, day, changed, size, what, reason in rows:
        cells = (build_id.ljust(widths[0]), day.ljust(widths[1]), changed.ljust(widths[2]), size.rjust(widths[3]))
        typer.echo(printable("  ".join([*cells, what.ljust(widths[4]), reason])))
    for tag in plan.tags:
        held = f"its revision {tag.revision} holds {len(tag.builds)} builds, {len(tag.only)} of them gone since"
        named = f"names {', '.join(tag.names)}; " if tag.names else ""
        typer.echo(printable(f"tag {tag.name}: {named}{held}; {'goes' if tag.goes else 'stays'}: {tag.reason}"))
    for line in plan.notes:
        typer.echo(printable(line))
    count = len(plan.expired)
    typer.echo(f"{count} of {len(plan.decisions)} builds go, {plan.bytes / 1e6:,.1f} MB of files")


def _outcome(done: RemovedBuilds) -> str:
    if done.revision is None:
        return "nothing was removed"
    return f"{len(done.removed)} builds removed in revision {done.revision}"


def _wish(slot: str, build: str, reason: str, project: list[str] | None, platform: list[str] | None) -> Wish:
    from include.nightlies.removal.undo import Wish

    return Wish(slot, build, reason, tuple(project or ()), tuple(platform or ()))


def _now() -> datetime:
    return datetime.now(UTC)


app = typer.Typer(no_args_is_help=True)
console = Console(highlight=False)
if not console.is_terminal:
    console.width = 200  # a table in a log is not folded

PLAIN_EVERY_S = 5.0

app.command()(undo)
app.command()(redo)
app.command()(retention)


@app.callback()
def group() -> None:
    """Nights of the slots in the site configuration."""


@app.command()
def install(
    slot: Annotated[str, typer.Option(help="Slot of the site configuration.")],
    date_text: Annotated[
        str, typer.Option("--date", help="Build date, YYYY-MM-DD; default: today, where the slot is.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run, and print what became of the night.")] = False,
    allow_future: Annotated[
        bool, typer.Option("--allow-future", help="Install a build whose date is later than today.")
    ] = False,
    connection: Annotated[
        str,
        typer.Option(
            help="Connection of a user of Airflow's API who may start runs; default: that of the lab, else of the site."
        ),
    ] = "",
) -> None:
    """Install the build of a date that a build system left in the slot's store, by the slot's DAG.

    What is in the repository already stays; a run of that build that is under way is joined. With --wait the exit code
    is that of `summary`: 1 if something required is missing, or the run failed.
    """
    from include.cli.airflow_connections import NIGHT_S, airflow_api, follow, install as start
    from include.monitoring.render import read_summary, to_text

    site = open_site()
    chosen, now = site.settings.slot(slot), datetime.now(UTC)
    day = day_of(date_text) if date_text else today(chosen.timezone, now)
    api = airflow_api(site.settings, site.secrets, connection)
    dag_id = f"nightly_install_{slot}"
    run_id = start(api, chosen, day, now=now, say=_say, allow_future=allow_future)
    if not wait:
        _say(f"{api.url}/dags/{dag_id}/runs/{run_id}")
        return
    with Screen() as screen:
        ended = follow(api, dag_id, run_id, show=screen.run, timeout_s=NIGHT_S)
    _say(f"run {run_id} of {dag_id}: {ended.state}")
    night = read_summary(site.ledger, chosen, day, now=datetime.now(UTC))
    typer.echo(to_text(night), nl=False)
    raise typer.Exit(0 if night.good and ended.state == "success" else 1)


@app.command("index")
def write_index(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="PROJECT-PLATFORM.tar.gz or PROJECT/PLATFORM.zip …")],
    slot: Annotated[str, typer.Option(help="Slot of the site configuration; default: its only one.")] = "",
    date_text: Annotated[
        str, typer.Option("--date", help="Build date, YYYY-MM-DD; default: today, where the slot is.")
    ] = "",
    build: Annotated[str, typer.Option("--build", help="The id of the build; default: its date.")] = "",
    platform: Annotated[str, typer.Option(help="Platform of archives whose name has none.")] = "",
    upload: Annotated[
        bool, typer.Option("--upload", help="Store the archives beside the index; each is held in memory.")
    ] = False,
    replace_others: Annotated[
        bool, typer.Option("--replace", help="Replace another index or archive of that build date.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Write the index of a build from a folder of archives, as a build system leaves it in the slot's store.

    Without --upload the folder is in that store. Run again with the same archives it changes nothing.
    """
    from include.nightlies.steps.sources import named_archives, write_index

    with refusing():
        site = open_site()
        slots = site.settings.slots
        if not slot and len(slots) != 1:
            raise typer.BadParameter(
                f"give it: {', '.join(slots) or 'the configuration has no slot'}", param_hint="--slot"
            )
        chosen = site.settings.slot(slot or next(iter(slots)))
        day = day_of(date_text) if date_text else today(chosen.timezone, datetime.now(UTC))
        archives = named_archives(folder, chosen.platforms, platform)
        written = write_index(
            site, chosen, day, archives, build_id=build, upload=upload, replace=replace_others, dry_run=dry_run
        )
    for artifact in written.index.artifacts:
        sent = ", uploaded" if artifact.url in written.uploaded else ""
        _say(printable(f"{artifact.name}: {artifact.url}, {artifact.size} bytes{sent}"))
    state = "unchanged" if written.unchanged else "not written: --dry-run" if dry_run else "written"
    _say(printable(f"{written.url}: {len(written.index.artifacts)} artifacts, {state}"))
    if chosen.index_signature is not None:
        _say(f"sign it now, as {written.url}{chosen.index_signature.suffix}: the slot has `index_signature`")
    if not dry_run:
        _say(typeable(f"nightshift nightly install --slot {chosen.name} --date {day} --wait"))


@app.command()
def summary(
    date_text: Annotated[
        str, typer.Option("--date", help="Build date, YYYY-MM-DD; default: today, where the slot is.")
    ] = "",
    slot: Annotated[str, typer.Option(help="Slot; default: all of the site configuration.")] = "",
    keep: Annotated[bool, typer.Option("--keep", help="Also write it to the files of that night's summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Say what became of a night, as the ledger has it now. Exit code 1 if something required is missing."""
    from include.monitoring.render import read_summary, store_summary, to_text

    now = datetime.now(UTC)
    with refusing():
        site = open_site()
        chosen = [site.settings.slot(slot)] if slot else list(site.settings.slots.values())
        nights = [
            read_summary(
                site.ledger, chosen_slot, day_of(date_text) if date_text else today(chosen_slot.timezone, now), now=now
            )
            for chosen_slot in chosen
        ]
        files = [store_summary(site.settings.paths.var, night) for night in nights] if keep else []
    if as_json:
        typer.echo(json.dumps([night.to_json() for night in nights], indent=1))
    else:
        typer.echo("\n".join(to_text(night) for night in nights), nl=False)
        for file in files:
            typer.echo(f"kept in {file}")
    raise typer.Exit(0 if all(night.good for night in nights) else 1)


def day_of(text: str) -> date:
    """The date of an option `--date`. Raises BadParameter."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a date: write YYYY-MM-DD", param_hint="--date") from None


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


class Screen:
    """Bars on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._archives = 0
        self._last = ("", 0.0)

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        _say(text)

    def packed(self, name: str) -> None:
        self._archives += 1
        if self._live:
            self._live.update(Text(f"packed {self._archives} archives, last {name}"))

    def run(self, snapshot: Snapshot) -> None:
        if self._live:
            self._live.update(_bars(snapshot))
            return
        line = "  ".join(str(kind) for kind in snapshot.kinds)
        told, at = self._last
        if line != told and (snapshot.ended or time.monotonic() - at >= PLAIN_EVERY_S):
            self._last = (line, time.monotonic())
            console.print(f"{snapshot.state}, {snapshot.busy} at once: {line}", soft_wrap=True)


def _bars(snapshot: Snapshot, width: int = 30) -> Table:
    title = f"{snapshot.state}, {snapshot.busy} at once"
    table = Table(box=None, show_header=False, pad_edge=False, title=title, title_justify="left")
    for kind in snapshot.kinds:
        filled = width * kind.ended // max(1, kind.total)
        bar = Text("█" * filled + "░" * (width - filled), style="red" if kind.failed else "green")
        states = ", ".join(f"{count} {state}" for state, count in kind.states.items())
        table.add_row(kind.task_id, bar, f"{kind.ended}/{kind.total}", states)
    return table
