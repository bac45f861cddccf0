"""`nightshift repo gc` deletes the objects that nothing needs; `repair --objects` sends again what a store has lost."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from include.cli.main import typeable
from include.cli.repository.open import (
    AsJson,
    Configured,
    DryRun,
    bars,
    by_hand,
    holder,
    open_site,
    printable,
    refusing,
    seconds_now,
    switching,
    time_text,
)
from include.cli.repository.write import source_at
from include.publishers.capabilities import Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from include.cvmfs.collect.report import NotDue
    from include.cvmfs.commit.repair import FileFault
    from include.cvmfs.format.keys import Signer
    from include.site.site import Site
    from include.storage.store import Store


def mend_all(fqrn: str, *, dry_run: bool) -> None:
    """Read every single file, and mend what can be mended without a loss. Exits with 1 if something is left."""
    with refusing():
        site = open_site()
        faults = faults_of(site, fqrn)
        mendable = [fault.cure for fault in faults if fault.option]
        if mendable and not dry_run and not any(fault.first for fault in faults):
            say_faults(faults)
            with switching(site, fqrn, Operation.REPAIR) as (store, signer):
                metadata, reflog = (any(option in cure for cure in mendable) for option in ("--metadata", "--reflog"))
                mend_files(store, fqrn, signer, metadata=metadata, reflog=reflog)
            by_hand(site, "REPAIR", f"{fqrn}: {mended_text(metadata=metadata, reflog=reflog)}")
            faults = faults_of(site, fqrn)
    if faults:
        say_faults(faults)
        raise typer.Exit(1)
    typer.echo(f"all single files of {fqrn} can be read; the objects: nightshift repo check {fqrn}")


def faults_of(site: Site, fqrn: str) -> list[FileFault]:
    """Each single file that is lost or cannot be used, with its cure; what the others need comes first."""
    from include.cvmfs.commit.repair import examine

    key = site.settings.repository(fqrn).public_key
    keys = [key.read_bytes()] if key is not None and key.is_file() else []
    return examine(site.repository_store(fqrn), fqrn, keys, now=datetime.now(UTC))


def say_faults(faults: Sequence[FileFault]) -> None:
    for fault in faults:
        typer.echo(typeable(printable(str(fault))), err=True)


def mend_files(
    store: Store, fqrn: str, signer: Signer, *, history: bool = False, metadata: bool = False, reflog: bool = False
) -> None:
    """Mend what is asked for, in the order in which one needs the other."""
    from include.cvmfs.commit.commit import read_head
    from include.cvmfs.commit.metadata_objects import stale_checksum
    from include.cvmfs.commit.repair import empty_history, repair_metadata, repair_reflog

    now = seconds_now()
    if history:
        head, replaced = empty_history(store, fqrn, signer=signer, now=now)
        new = f"are those of revision {head.manifest.revision} alone" if replaced else "can be read; nothing to do"
        typer.echo(f"the tags of {fqrn} {new}")
    if metadata:
        head, lost = repair_metadata(store, fqrn, signer=signer, now=now)
        emptied = "; the meta info was lost and is empty now" if lost else ""
        typer.echo(f"certificate of {fqrn} stored again for revision {head.manifest.revision}{emptied}")
    if reflog:
        head, added = repair_reflog(store, fqrn, signer=signer, now=now)
        typer.echo(f"reflog of {fqrn} matches revision {head.manifest.revision} again; {added} references added")
    named = read_head(store, fqrn).manifest.reflog
    if named is not None and (stale := stale_checksum(fqrn, named)) is not None:
        typer.echo(f"warning: {stale}", err=True)


def mended_text(*, history: bool = False, metadata: bool = False, reflog: bool = False) -> str:
    """Return what `mend_files` was asked for, for the audit."""
    asked = {"tags emptied": history, "metadata": metadata, "reflog": reflog}
    return ", ".join(kind for kind, chosen in asked.items() if chosen)


def mend_manifest(fqrn: str, *, dry_run: bool) -> None:
    """Sign a manifest for the newest revision that the reflog leads to, where none can be read."""
    from include.cvmfs.commit.repair import rebuild_manifest

    with refusing():
        site = open_site()
        collectable = site.settings.repository(fqrn).garbage_collectable
        with switching(site, fqrn, Operation.REPAIR) as (store, signer):
            made = rebuild_manifest(
                store, fqrn, signer=signer, now=seconds_now(), garbage_collectable=collectable, dry_run=dry_run
            )
        by_hand(site, "REPAIR", f"{fqrn}: manifest, revision {made.revision}", dry_run=dry_run)
    verb = "would name" if dry_run else "names"
    typer.echo(f"the manifest of {fqrn} {verb} revision {made.revision}, root {made.root}, {time_text(made.timestamp)}")


def mend_objects(fqrn: str, source: Path, destination: str, *, contents: bool, as_json: bool) -> None:
    """Check, send, read back, and keep the list of damaged objects. Exits with 1 if something is still missing."""
    from include.cvmfs.check.check import CheckProgress, check
    from include.cvmfs.check.check_objects import restore_objects
    from include.nightlies.records import damage
    from include.publishers.base import tree_options

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
        damage.forget(site.ledger, fqrn, [lost.hash.key for lost in done.mended])
        if done.mended:
            by_hand(site, "REPAIR", f"{fqrn}: {len(done.mended)} objects sent again")
    if as_json:
        outcome = {"mended": done.mended, "missing": done.missing}
        typer.echo(json.dumps({name: [lost.as_dict() for lost in these] for name, these in outcome.items()}, indent=1))
    else:
        for lost in done.missing:
            typer.echo(f"still missing: {lost.hash.key}, needed by {printable(lost.path) or '/'}")
        typer.echo(f"{len(done.mended)} objects of {fqrn} sent again, {len(done.missing)} still missing")
    if done.missing:
        raise typer.Exit(1)


def gc(
    fqrn: Configured,
    dry_run: DryRun = False,
    grace_days: Annotated[
        float | None, typer.Option("--grace-days", min=0, help="Days that a revision stays after it was superseded.")
    ] = None,
    all_orphans: Annotated[
        bool, typer.Option("--all-orphans", help="Look for orphans in the whole store, not in a seventh of it.")
    ] = False,
    accept: Annotated[
        str, typer.Option("--accept", metavar="REASON", help="Go on although much fewer objects stay than before.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Run also when nothing became deletable.")] = False,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Append the deletion log, in the form of cvmfs_server.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Collect the garbage of a repository while others publish. Exit code 1: something was not deleted, or is lost."""
    from include.cvmfs.collect.report import UNNEEDED, NotDue
    from include.nightlies.records.damage import note_collection
    from include.site.collecting import collect, options_of

    with refusing(), bars() as show, contextlib.ExitStack() as opened:
        site = open_site()
        options = options_of(
            site, fqrn, holder(), grace_days=grace_days, accept=accept, all_orphans=all_orphans, force=force,
            dry_run=dry_run, progress=show,
            log=opened.enter_context(log.open("a")) if log is not None and not dry_run else None,
        )  # fmt: skip
        report = collect(site, fqrn, options)
        if isinstance(report, NotDue):
            typer.echo(_skipped(fqrn, report, as_json=as_json))
            return
        if not dry_run:
            note_collection(site.ledger, report, now=datetime.now(UTC))
        by_hand(site, "COLLECTION", report.lines()[0], accept or UNNEEDED, dry_run=dry_run)
    typer.echo(json.dumps(report.as_dict(), indent=1) if as_json else "\n".join(report.lines()))
    if not report.ok:
        raise typer.Exit(1)


def _skipped(fqrn: str, skipped: NotDue, *, as_json: bool) -> str:
    due = f"{skipped.due:%Y-%m-%dT%H:%M:%SZ}"
    if as_json:
        return json.dumps({"repository": fqrn, "skipped": skipped.reason, "next_due": due}, indent=1)
    return f"{fqrn}: {skipped.reason}; next due at {due}"
