"""`nightshift repo`: check, read and change repositories, by URL with nothing configured, or by configured name."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from include.cli.main import typeable
from include.cli.repository import admin, read, repair, tags, write
from include.cli.repository.open import (
    AsJson,
    Fqrn,
    Keys,
    TagName,
    Target,
    bars,
    open_site,
    open_target,
    printable,
    refusing,
    seconds_now,
    switching,
    time_text,
)

if TYPE_CHECKING:
    from include.cvmfs.check.check import CheckReport
    from include.cvmfs.revision.repository import Repository

app = typer.Typer(no_args_is_help=True)
COMMANDS: tuple[Callable[..., None], ...] = (
    admin.create, admin.repair, admin.resign, admin.import_keys,
    read.ls, read.cat, read.stat, read.get, read.diff,
    read.replicas, read.client_config, read.redirect_config,
    read.check_servers,
    write.publish, write.remove, write.rename, write.symlink, write.dirtab, tags.rollback,
    repair.gc,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
app.add_typer(tags.app, name="tag", help="Name revisions, and take names away.")
app.command("tags")(tags.listed)


@app.command()
def check(
    target: Target,
    key: Keys = None,
    fqrn: Fqrn = None,
    tag: TagName = None,
    quick: Annotated[bool, typer.Option("--quick", help="Catalogs only: no data objects are looked for.")] = False,
    contents: Annotated[
        bool, typer.Option("--contents", "--full", help="Read every data object and compare its hash.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend the reflog if it is wrong; needs the signing key, and a name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check all of it. Exit code 0: no problems; 1: problems, each printed; 2: unreadable or not trusted."""
    from include.cvmfs.check.findings import Subject

    if quick and contents:
        raise typer.BadParameter("--quick and --full exclude each other")
    with refusing():
        report = _checked(target, key, fqrn, quick=quick, contents=contents, tag=tag)
        if repair and any(problem.subject is Subject.REFLOG for problem in report.problems):
            _mend_reflog(target)
            report = _checked(target, key, fqrn, quick=quick, contents=contents, tag=tag)
        _note_damage(target, report, everything=not quick and tag is None)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=1))
    else:
        _print_report(report)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def info(target: Target, key: Keys = None, fqrn: Fqrn = None, as_json: AsJson = False) -> None:
    """Show the manifest, which keys confirm it, and how much the catalogs count."""
    from include.cvmfs.commit.create import expiry_warning

    with refusing():
        repository = open_target(target, key, fqrn)
        facts = _facts(repository)
        whitelist = repository.trusted.whitelist
        warning = expiry_warning(whitelist, datetime.now(UTC)) if whitelist else None
    if as_json:
        typer.echo(json.dumps({**facts, "warnings": [warning] if warning else []}, indent=1))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {'-' if value is None else value}")
    if warning:
        typer.echo(f"warning: {warning}", err=True)


def _checked(
    target: str, keys: list[Path] | None, fqrn: str | None, *, quick: bool, contents: bool, tag: str | None
) -> CheckReport:
    from include.cvmfs.check.check import CheckProgress, check as run_check

    with bars() as show:

        def progress(step: CheckProgress) -> None:
            show(step.step, step.done, step.total)

        repository = open_target(target, keys, fqrn)
        now = datetime.now(UTC)
        return run_check(repository, quick=quick, contents=contents, tag=tag, now=now, progress=progress)


def _note_damage(target: str, report: CheckReport, *, everything: bool) -> None:
    """Note lost objects of a configured repository in the ledger, for the preparations of its nights."""
    from include.ledger.errors import LedgerError
    from include.nightlies.records import damage
    from include.settings.load import load

    if "/" in target or Path(target).is_dir() or target not in load().repositories:
        return
    try:
        damage.note_report(open_site().ledger, report, everything=everything, now=datetime.now(UTC))
    except LedgerError as fault:
        typer.echo(f"nightshift: what was found is not noted for the next nights: {fault}", err=True)


def _mend_reflog(fqrn: str) -> None:
    from include.cvmfs.commit.repair import repair_reflog
    from include.publishers.capabilities import Operation

    with switching(open_site(), fqrn, Operation.REPAIR) as (store, signer):
        _, added = repair_reflog(store, fqrn, signer=signer, now=seconds_now())
    typer.echo(f"mended the reflog of {fqrn}: {added} references added", err=True)


def _print_report(report: CheckReport) -> None:
    from include.cvmfs.check.findings import Subject

    for problem in report.problems:
        typer.echo(str(problem))
    if hidden := report.problem_count - len(report.problems):
        typer.echo(f"… and {hidden} problems more")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}")
    if any(problem.subject is Subject.COUNTERS for problem in report.problems):
        typer.echo(
            f"wrong counters are counted again by: {typeable(f'nightshift repo repair {report.fqrn} --counters')}"
        )
    trust = "signatures verified" if report.verified else "NOT verified against a key: give one with --key"
    objects = f", {report.objects} data objects" if report.objects else ""
    typer.echo(
        f"{report.fqrn}, revision {report.revision}, root {report.root}: {report.entries} entries, "
        f"{report.catalogs} catalogs{objects}; {trust}"
    )
    typer.echo(report.verdict)


def _facts(repository: Repository) -> dict[str, Any]:
    manifest, whitelist = repository.manifest, repository.trusted.whitelist
    total = repository.revision.root.statistics.total
    meta = repository.meta()
    return {
        "repository": manifest.fqrn,
        "url": repository.store.url,
        "verified": repository.verified,
        "revision": manifest.revision,
        "published": time_text(manifest.timestamp),
        "root_hash": str(manifest.root),
        "root_catalog_bytes": manifest.root_size,
        "ttl_s": manifest.ttl,
        "garbage_collectable": manifest.garbage_collectable,
        "certificate": str(manifest.certificate) if manifest.certificate else None,
        "whitelist_expires": whitelist.expires.isoformat() if whitelist else None,
        "history": str(manifest.history) if manifest.history else None,
        "tags": len(repository.tags()),
        "reflog": str(manifest.reflog) if manifest.reflog else None,
        "description": printable(meta.description) if meta else None,
        "files": total.regular,
        "symlinks": total.symlink,
        "directories": total.dir - total.nested,
        "nested_catalogs": total.nested,
        "file_bytes": total.file_size,
        "chunked_files": total.chunked,
    }
