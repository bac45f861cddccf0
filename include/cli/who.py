"""`nightshift who`: who and what published a path, and whether that is what the path has now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.repository.open import AsJson, open_site, printable, refusing

if TYPE_CHECKING:
    from include.care.provenance.query import PathProvenance
    from include.site.site import Site

NOBODY = 1


def who(
    where: Annotated[
        str,
        typer.Argument(
            metavar="[FQRN:]PATH", help="As r.example.org:/sw/app, /cvmfs/r.example.org/sw/app, or /sw/app."
        ),
    ],
    history: Annotated[
        int, typer.Option("--history", "-n", min=1, help="How many publications, the newest first.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Say who and what published a path, or the nearest tree above it, who moved a link, or who took it away.

    A link on the way is followed, and what was inherited or moved is traced to where it was published first. The
    signed document in the store is compared with the ledger and checked with the keys that are at hand. Exit code 1
    if no publisher is known, 2 if that cannot be found out.
    """
    from include.care.provenance.query import ask, lines

    with refusing():
        site = open_site()
        fqrns, path = _place(site, where)
        asked = [ask(site, fqrn, path, limit=history) for fqrn in fqrns]
    found = [answer for each in asked for answer in each.answers]
    if as_json:
        typer.echo(json.dumps([answer.to_json() for answer in found], indent=1))
    for line in lines(found) if not as_json else ():
        typer.echo(printable(line))
    if not found:
        typer.echo(printable(_nobody(asked, path or "/")), err=as_json)
    raise typer.Exit(0 if found else NOBODY)


def _nobody(asked: Sequence[PathProvenance], path: str) -> str:
    there = ", ".join(reply.repository for reply in asked if reply.stands)
    unread = ", ".join(reply.repository for reply in asked if reply.stands is None)
    message = f"no publisher is known for {path} or anything above it"
    message += f"; it is in {there} all the same: not by Nightshift, or before it kept this" if there else ""
    message += f"; {unread} cannot be read" if unread else ""
    return message if there or unread else f"{message}; the path does not exist"


def _place(site: Site, where: str) -> tuple[list[str], str]:
    """The repositories that are meant, and the path in them."""
    fqrn, colon, path = where.partition(":")
    if not colon:
        fqrn, path = "", where
        if where.startswith("/cvmfs/"):
            fqrn, _, rest = where.removeprefix("/cvmfs/").partition("/")
            path = f"/{rest}"
    if not path.startswith("/"):
        raise typer.BadParameter(f"{where!r}: write an absolute path, as r.example.org:/sw/app")
    clean = "/" + "/".join(part for part in path.split("/") if part)
    fqrns = [site.settings.repository(fqrn).fqrn] if fqrn else sorted(site.settings.repositories)
    return fqrns, "" if clean == "/" else clean
