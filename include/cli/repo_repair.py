"""`nightshift repo repair --objects`: find what a repository's store has lost, and send again what a tree can give."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import typer

from include.cli.repo_open import bars, open_site, printable, refusing
from include.cli.repo_write import source_at


def mend_objects(fqrn: str, source: Path, destination: str, *, contents: bool, as_json: bool) -> None:
    """Check, send, read back, and keep the list of damaged objects. Exits with 1 if something is still missing."""
    from include.cvmfs.check.check import CheckProgress, check
    from include.cvmfs.check.restore import restore_objects
    from include.nightlies.records import damage
    from include.publishers.prepare_options import tree_options

    with refusing():
        site, now = open_site(), datetime.now(UTC)
        settings = site.settings.repository(fqrn)
        repository = site.head(fqrn)
        with bars() as show:

            def progress(step: CheckProgress) -> None:
                show(step.step, step.done, step.total)

            report = check(repository, contents=contents, now=now, progress=progress)
        done = restore_objects(
            site.repository_store(fqrn),
            report.lost,
            lambda: source_at(source, settings.limits),
            fqrn=fqrn,
            destination=destination,
            now=now,
            options=tree_options(settings.prepare, repository),
        )
        damage.note_report(site.ledger, report, everything=True, now=now)
        damage.forget(site.ledger, fqrn, [one.hash.key for one in done.mended])
    if as_json:
        found = {"mended": done.mended, "missing": done.missing}
        typer.echo(json.dumps({name: [one.as_dict() for one in these] for name, these in found.items()}, indent=1))
    else:
        for one in done.missing:
            typer.echo(f"still missing: {one.hash.key}, needed by {printable(one.path) or '/'}")
        typer.echo(f"{len(done.mended)} objects of {fqrn} sent again, {len(done.missing)} still missing")
    if done.missing:
        raise typer.Exit(1)
