"""`nightshift nightly undo`, `redo` and `retention`: builds that go, by a person's wish or by rules, and come again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.repository.open import AsJson, holder, open_site, printable, refusing

if TYPE_CHECKING:
    from include.nightlies.retention.plan import RemovedBuilds, RetentionPlan
    from include.nightlies.undo.plan import Wish

SlotName = Annotated[str, typer.Option(help="Slot of the site configuration.")]
BuildId = Annotated[str, typer.Option("--build", help="The id of the build, as its index has it.")]
Projects = Annotated[list[str] | None, typer.Option("--project", help="Only this project; may be repeated.")]
Platforms = Annotated[list[str] | None, typer.Option("--platform", help="Only this platform; may be repeated.")]


def undo(
    slot: SlotName,
    build: BuildId,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")],
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
    from include.nightlies.attempt import Attempt
    from include.nightlies.errors import UndoRefused
    from include.nightlies.undo.plan import Instead
    from include.nightlies.undo.undo import plan_undo
    from include.nightlies.undo.undo import undo as do_it
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets
    from include.site.site import Site

    instead = Instead.PREDECESSOR if predecessor else Instead.NOTHING
    wish = replace(_wish(slot, build, reason, project, platform), instead=instead, move_links=move_links)
    site = Site(load(), EnvSecrets())
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
    from include.nightlies.undo.undo import redo as do_it
    from include.settings.load import load
    from include.settings.secrets import EnvSecrets
    from include.site.site import Site

    site = Site(load(), EnvSecrets())
    count = do_it(site, _wish(slot, build, "", project, platform), now=_now())
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
    import json

    from include.nightlies.attempt import Attempt
    from include.nightlies.retention.remove import plan_retention, remove_expired

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
    from include.nightlies.undo.plan import Wish

    return Wish(slot, build, reason, tuple(project or ()), tuple(platform or ()))


def _now() -> datetime:
    return datetime.now(UTC)
