"""`nightshift who`: who and what published a path, and whether that is what stands there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.repo_open import AsJson, connections, printable, refusing

if TYPE_CHECKING:
    from include.provenance.deed import Deed
    from include.publishers.connect import Connections

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
    """Say who and what published a path, or the nearest one above it. Exit code 1 if the ledger knows nobody.

    What the store's signed document says is checked with the keys that are at hand.
    """
    from include.provenance.records import check, nearest

    with refusing():
        site = connections()
        fqrns, path = _place(site, where)
        found = [
            {**deed.to_json(), "document": key, "checked": check(site, deed, key).verdict, "now": _now(site, deed)}
            for fqrn in fqrns
            for deed, key in nearest(site.ledger, fqrn, path, limit=history)
        ]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    elif not found:
        typer.echo(printable(f"nobody is known to have published {path or '/'} or anything above it"))
    for place, one in enumerate(found if not as_json else ()):
        if place:
            typer.echo("")
        for name, value in one.items():
            if value is not None and name != "format":
                typer.echo(printable(f"{name.replace('_', ' '):16} {value}"))
    raise typer.Exit(0 if found else NOBODY)


def _place(site: Connections, where: str) -> tuple[list[str], str]:
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
    fqrns = [site.site.repository(fqrn).fqrn] if fqrn else sorted(site.site.repositories)
    return fqrns, "" if clean == "/" else clean


def _now(site: Connections, deed: Deed) -> str:
    """What stands there now."""
    from include.cvmfs.errors import CvmfsError
    from include.storage.errors import StoreError

    try:
        there: Any = site.head(deed.repository).nested_at(deed.path)
    except (CvmfsError, StoreError, OSError) as error:
        return f"not known: {error}"
    if there is None:
        return "no such tree any more"
    return "this very tree" if str(there.hash) == deed.nested_hash else "another tree"
