"""`nightshift repo create`, `repair`, `resign` and `import-keys`: what the keeper of a repository's keys does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from include.cli.repository.layout import mend_counters, mend_layout
from include.cli.repository.open import AsJson, Configured, DryRun, open_site, refusing, switching
from include.cli.repository.repair import faults_of, mend_all, mend_files, mend_manifest, mend_objects, say_faults


def create(
    fqrn: Configured,
    mtime_ns: Annotated[
        bool,
        typer.Option("--mtime-ns", help="Catalogs with nanoseconds; not for stock publishers and gateways up to 2.11."),
    ] = False,
) -> None:
    """Create a repository of the configuration: bucket, public reading, keys, whitelist and first revision.

    What is there already stays as it is; a creation that died half way is finished.
    """
    from include.site.bootstrap import found_repository, found_stores

    site = open_site()
    found_stores(site, {site.settings.repository(fqrn).store}, say=typer.echo)
    if not found_repository(site, fqrn, say=typer.echo, mtime_ns=mtime_ns):
        typer.echo(f"{fqrn} is there already")
        if faults := faults_of(site, fqrn):
            say_faults(faults)
            raise typer.Exit(1)


def repair(
    fqrn: Configured,
    reflog: Annotated[
        bool, typer.Option("--reflog", help="Rebuild the reflog from what the manifest leads to.")
    ] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Store the certificate again, and empty meta info if it is lost.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option("--empty-history", help="If the tags cannot be read: keep the current revision alone."),
    ] = False,
    manifest: Annotated[
        bool, typer.Option("--manifest", help="If the manifest cannot be read: sign one for the newest revision.")
    ] = False,
    objects: Annotated[
        Path | None,
        typer.Option("--objects", metavar="SOURCE", help="Send lost objects again from this folder, tarball or zip."),
    ] = None,
    at: Annotated[
        str, typer.Option("--at", metavar="PATH", help="Where SOURCE is published: brings its catalogs back, too.")
    ] = "/restored",
    contents: Annotated[
        bool, typer.Option("--contents", "--full", help="With --objects: read every object to find the damaged ones.")
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Remove what killed writers left in a store in a folder, a day ago.")
    ] = False,
    catalog_layout: Annotated[
        bool, typer.Option("--catalog-layout", help="Bring all catalogs to one layout, 15 columns, in one revision.")
    ] = False,
    mtime_ns: Annotated[
        bool, typer.Option("--mtime-ns", help="With --catalog-layout: 16 columns, so that nanoseconds stay.")
    ] = False,
    counters: Annotated[
        bool, typer.Option("--counters", help="Count again what catalogs state of their entries, in one revision.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Mend a repository that lost single files (needs the signing key here) or objects (needs their tree).

    Without an option every single file is read: what can be mended without a loss is mended, and for the rest the
    command is named. Exit code 1: something is still missing, each named.
    """
    from include.publishers.capabilities import Operation

    others = reflog or metadata or history or objects is not None
    if dry_run and others:
        kinds = "--manifest, --unfinished, --catalog-layout, --counters, and without an option"
        raise typer.BadParameter(f"--dry-run is for {kinds}")
    if mtime_ns and not catalog_layout:
        raise typer.BadParameter("--mtime-ns is for --catalog-layout alone")
    alone = catalog_layout, counters, manifest
    if sum((others, unfinished, *alone)) > 1 and any(alone):
        which = "--catalog-layout, --counters and --manifest"
        raise typer.BadParameter(f"{which} are not combined: make one repair after the other")
    if catalog_layout:
        mend_layout(fqrn, mtime_ns=mtime_ns, dry_run=dry_run, as_json=as_json)
    elif counters:
        mend_counters(fqrn, dry_run=dry_run, as_json=as_json)
    elif manifest:
        mend_manifest(fqrn, dry_run=dry_run)
    elif not (others or unfinished):
        mend_all(fqrn, dry_run=dry_run)
    if objects is not None:
        mend_objects(fqrn, objects, at, contents=contents, as_json=as_json)
    if unfinished:
        _remove_unfinished(fqrn, dry_run=dry_run)
    if reflog or metadata or history:
        with refusing(), switching(open_site(), fqrn, Operation.REPAIR) as (store, signer):
            mend_files(store, fqrn, signer, history=history, metadata=metadata, reflog=reflog)


def _remove_unfinished(fqrn: str, *, dry_run: bool) -> None:
    from include.storage.file import remove_abandoned

    with refusing():
        store = open_site().repository_store(fqrn)
        found = remove_abandoned(store, datetime.now(UTC), dry_run=dry_run)
    for write in found:
        typer.echo(
            f"{'would remove' if dry_run else 'removed'} {write.name}, {write.size} bytes, of {write.since:%Y-%m-%d}"
        )
    typer.echo(f"{len(found)} unfinished files {'would be ' if dry_run else ''}removed from {store.url}")


def resign(
    fqrn: Configured,
    days: Annotated[int, typer.Option("--days", "-d", min=1, max=365, help="How long it is to last.")] = 30,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Folder of the master key; default: the configuration's.")
    ] = None,
    certificate: Annotated[
        list[Path] | None,
        typer.Option("--certificate", metavar="FILE", help="A certificate to add to the others."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Sign the whitelist for another while, or make a lost one again. For the holder of the master key.

    One that is lost or damaged is made again with the certificate in the folder of the keys and those of --certificate.
    """
    from include.cvmfs.commit.create import resign as run_resign
    from include.cvmfs.format.keys import KeyFile, load_master, parse_certificate

    with refusing():
        site = open_site()
        folder = keys or site.settings.gateway.keys
        path = KeyFile.MASTER.path(folder, fqrn)
        master = load_master(folder, fqrn)
        listed = tuple(parse_certificate(file.read_bytes()) for file in certificate or ())
        kept = KeyFile.CERTIFICATE.path(folder, fqrn)
        own = parse_certificate(kept.read_bytes()) if kept.exists() else None
        whitelist = run_resign(
            site.repository_store(fqrn), fqrn, master, now=datetime.now(UTC), validity=timedelta(days=days),
            certificates=listed, own=own, dry_run=dry_run,
        )  # fmt: skip
    if as_json:
        facts = {
            "repository": fqrn,
            "dry_run": dry_run,
            "expires": whitelist.expires.isoformat(),
            "fingerprints": [str(fingerprint) for fingerprint in whitelist.fingerprints],
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    verb = "would be" if dry_run else "is"
    number = len(whitelist.fingerprints)
    typer.echo(
        f"the whitelist of {fqrn} {verb} in force until {whitelist.expires:%Y-%m-%d %H:%M} UTC, signed with {path}; "
        f"it lists {number} certificate{'' if number == 1 else 's'}"
    )


def import_keys(
    fqrn: Configured,
    source: Annotated[
        Path, typer.Option("--from", metavar="FOLDER", help="Where the stock tools keep the keys.")
    ] = Path("/etc/cvmfs/keys"),
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take over the keys of a repository that stock tools made, once they are seen to be those of the live one."""
    from include.cvmfs.commit.create import import_keys as run_import

    with refusing():
        site = open_site()
        url, folder = site.settings.repository(fqrn).public_url, site.settings.gateway.keys
        done = run_import(url, fqrn, source, folder, now=datetime.now(UTC), dry_run=dry_run)
    kinds = {"copied": done.copied, "present": done.present, "absent": done.absent}
    if as_json:
        named = {word: [f"{fqrn}{kind.value}" for kind in found] for word, found in kinds.items()}
        typer.echo(json.dumps({"repository": fqrn, "dry_run": dry_run, "revision": done.revision, **named}, indent=1))
        return
    words = {"copied": f"{'would copy' if dry_run else 'copied'} to {folder}", "present": "there already"}
    for word, found in kinds.items():
        for kind in found:
            typer.echo(f"{fqrn}{kind.value}: {words.get(word, f'not in {source}')}")
    typer.echo(f"they are the keys of {fqrn}, verified at its revision {done.revision}")
