"""`nightshift nightly undo` and `redo`: take a build back, or some of it, and let it be installed again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
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
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only said what would be done.")] = False,
) -> None:
    """Take a build back, or some of it, in one revision; what others published since stays.

    Without --yes nothing is changed. A build that links lead to is refused without --move-links. What is undone is
    not installed again by itself: see `redo`.
    """
    from include.cli.repo_open import holder
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
        typer.echo("nothing was changed; say --yes to do it")
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


def _wish(slot: str, build: str, reason: str, project: list[str] | None, platform: list[str] | None) -> Wish:
    from include.nightlies.undo.plan import Wish

    return Wish(slot, build, reason, tuple(project or ()), tuple(platform or ()))


def _now() -> datetime:
    return datetime.now(UTC)
