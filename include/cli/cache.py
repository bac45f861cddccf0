"""`nightshift cache`: shared caches of the configuration, made, warmed, trimmed, verified and repaired."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.repository.open import AsJson, DryRun, bars, open_site, printable, refusing

if TYPE_CHECKING:
    from include.aliencache.warm import WarmProgress

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="CACHE", help="A cache of the configuration.")]
GB = 1e9


@app.callback()
def group() -> None:
    """Shared caches (alien caches) of the site configuration."""


@app.command()
def init(name: Name) -> None:
    """Make a cache of an empty folder, or the folders that one lacks. Run again it changes nothing."""
    with refusing():
        from include.site.caching import cache_of

        settings = open_site().settings.cache(name)
        made = cache_of(settings).initialise()
    typer.echo(f"{settings.path}: {'made' if made else 'complete already'}; clients: nightshift cache config {name}")


@app.command()
def status(name: Name, as_json: AsJson = False) -> None:
    """Look at a cache: objects, bytes, space, ages, what the group cannot read, and foreign files.

    Exit code 0: well; 1: a mark is passed, or something needs a repair; 2: it cannot be read.
    """
    with refusing():
        from include.site.caching import look_at_cache

        look = look_at_cache(open_site(), name)
    if as_json:
        typer.echo(json.dumps(look.to_json(), indent=1))
    else:
        free = look.bytes_free / look.bytes_total if look.bytes_total else 0
        typer.echo(f"objects      {look.objects} of {look.bytes / GB:.3f} GB")
        inodes = "not counted" if look.inodes_free is None else look.inodes_free
        typer.echo(f"free         {look.bytes_free / GB:.3f} GB ({free:.1%}), inodes {inodes}")
        typer.echo(f"mark passed  {'yes: nightshift cache trim ' + name if look.above else 'no'}")
        typer.echo(f"use known by {look.use or 'nothing'}")
        for fqrn, crumb in look.breadcrumbs.items():
            typer.echo(f"breadcrumb   {fqrn} {crumb or 'cannot be read'}")
        _say_ages(look.ages)
        for what, names in (("missing", look.missing), ("other group", look.other_group), ("foreign", look.foreign)):
            if names:
                shown = ", ".join(printable(item) for item in names[:10])
                typer.echo(f"{what:12} {len(names)}: {shown}")
        if look.unreadable:
            typer.echo(f"unreadable   {look.unreadable} objects for the group: nightshift cache repair {name}")
        for note in look.notes:
            typer.echo(f"note         {printable(note)}")
    raise typer.Exit(bool(look.above or look.missing or look.unreadable))


def _say_ages(ages: list[tuple[int, int]]) -> None:
    from include.aliencache.scan import DAYS

    most = max((size for _, size in ages), default=0)
    labels = [f"< {days:g} d" for days in DAYS] + [f">= {DAYS[-1]:g} d"]
    for label, (count, size) in zip(labels, ages, strict=True):
        if count:
            bar = "#" * max(1, round(40 * size / most)) if most else ""
            typer.echo(f"used {label:>8} {count:9d} {size / GB:10.3f} GB {bar}")


@app.command()
def warm(
    name: Name,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH…", help="Absolute paths; / for all. Default: the settings'.")
    ] = None,
    fqrn: Annotated[str | None, typer.Option("--repository", metavar="FQRN", help="One of the cache's.")] = None,
    dirtab: Annotated[
        Path | None, typer.Option("--dirtab", exists=True, dir_okay=False, help="Paths as cvmfs_preload has them.")
    ] = None,
    catalogs: Annotated[bool, typer.Option("--catalogs", help="Only catalogs, of all that is chosen.")] = False,
    tag: Annotated[str | None, typer.Option("--tag", "-n", help="The revision of this tag, not the newest.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, max=64, help="Objects that are fetched at once.")] = 8,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fetch what jobs will read into a cache, before they start. Interrupted, run it again: it goes on.

    Several may warm at once, on any machines that mount the cache: each object is fetched once.
    """
    with refusing(), bars() as show:
        from include.aliencache.contents import Wanted
        from include.aliencache.errors import NOTHING_WANTED
        from include.aliencache.warm import WarmOptions
        from include.cvmfs.sources.dirtab import Dirtab
        from include.site.caching import warm_cache

        site = open_site()
        settings = site.settings.cache(name)
        chosen = tuple(paths or (() if dirtab or catalogs else settings.warm))
        if not (chosen or dirtab or catalogs):
            raise NOTHING_WANTED(name, "no paths were given, and the settings have none (`warm:`)")
        rules = Dirtab.parse(dirtab.read_bytes(), str(dirtab)) if dirtab else None
        options = WarmOptions(Wanted(chosen, rules, catalogs_only=catalogs), tag, workers, dry_run=dry_run)

        def progress(done: WarmProgress) -> None:
            show("MB", done.bytes >> 20, done.bytes_total >> 20)

        report = warm_cache(site, name, fqrn or settings.repositories[0], options, progress=progress)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
        return
    rate = report.bytes_fetched / report.seconds / 1e6 if report.seconds else 0
    typer.echo(
        f"revision {report.revision} of {report.repository}: {report.objects} objects of {report.bytes / GB:.3f} GB, "
        f"{'to fetch' if dry_run else 'fetched'} {report.fetched} ({report.bytes_fetched / GB:.3f} GB), "
        f"present {report.present}, in {report.seconds:.1f} s ({rate:.0f} MB/s)"
    )
    _notes(report.notes)


@app.command()
def trim(name: Name, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Trim a cache to its second marks if one of the first is passed: what was used last longest ago goes.

    Exit code 0: no mark is passed now; 1: one still is; 2: it cannot be trimmed.
    """
    with refusing(), bars() as show:
        from include.site.caching import trim_cache

        report = trim_cache(open_site(), name, dry_run=dry_run, progress=show)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        verb = "would remove" if dry_run else "removed"
        typer.echo(
            f"{verb} {report.removed} of {report.objects} objects, {report.bytes_removed / GB:.3f} of "
            f"{report.bytes / GB:.3f} GB, and {report.temporary_removed} old temporary files, in {report.seconds:.1f} s"
        )
        typer.echo(f"use known by {report.use}; free {report.free_before / GB:.3f} -> {report.free_after / GB:.3f} GB")
        for reason, count in report.reasons.items():
            typer.echo(f"{count:10d}  {reason}")
        _notes(report.notes)
    raise typer.Exit(report.still_above)


@app.command()
def verify(
    name: Name,
    level: Annotated[
        str, typer.Option("--level", metavar="size|name|sum|fetch", help="How far: each has those before it.")
    ] = "name",
    share: Annotated[int, typer.Option("--share", min=1, max=256, help="One folder in so many, others each day.")] = 1,
    delete: Annotated[bool, typer.Option("--delete", help="Delete damaged objects instead of keeping them.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Find objects that are not what their names say: clients serve whatever they find in a cache.

    Exit code 0: no damage; 1: some objects were damaged; 2: it cannot be verified.
    """
    with refusing(), bars() as show:
        from include.aliencache.verify import Level, VerifyOptions
        from include.site.caching import verify_cache

        if level.upper() not in Level.__members__:
            raise typer.BadParameter(f"{level!r} is not one of size, name, sum and fetch")
        options = VerifyOptions(Level[level.upper()], share, datetime.now(UTC).toordinal() % share, delete, dry_run)
        report = verify_cache(open_site(), name, options, progress=show)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        typer.echo(
            f"{report.objects} objects: {report.good} good, {report.damaged_count} damaged, {report.not_judged} not "
            f"judged at level {report.level}, in {report.seconds:.1f} s"
        )
        for damaged in report.damaged[:20]:
            typer.echo(f"damaged {damaged}")
        _notes(report.notes)
    raise typer.Exit(report.damaged_count > 0)


@app.command()
def repair(name: Name, dry_run: DryRun = False) -> None:
    """Make missing folders, and give the group what it cannot read; what cannot be given is deleted."""
    with refusing():
        from include.aliencache.verify import repair_cache
        from include.site.caching import cache_of

        done = repair_cache(cache_of(open_site().settings.cache(name)), dry_run=dry_run)
    made, given, deleted = ("would make", "give", "delete") if dry_run else ("made", "gave", "deleted")
    typer.echo(f"{made} {done.folders} folders, {given} {done.given} objects to the group, {deleted} {done.deleted}")


@app.command()
def config(
    name: Name,
    stratum1: Annotated[
        list[str] | None, typer.Option("--stratum1", help="URL of a server, with @fqrn@; several are tried in order.")
    ] = None,
    redirects: Annotated[bool, typer.Option("--follow-redirects", help="Its stratum 1 redirects.")] = False,
) -> None:
    """Print the configuration of the clients of a cache: the file for the domain of its repositories."""
    with refusing():
        from include.replicas.configs import cache_config
        from include.settings.load import load

        settings = load()
        typer.echo(cache_config(settings, name, servers=stratum1 or (), redirects=redirects), nl=False)


def _notes(notes: list[Any]) -> None:
    for note in notes:
        typer.echo(f"note: {printable(str(note))}", err=True)
