"""`nightshift repo create`, `repair`, `resign` and `import-keys`: what the keeper of a repository's keys does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from include.cli.repo_mend import mend_objects
from include.cli.repo_open import AsJson, Configured, DryRun, connections, refusing, seconds_now, switching


def create(fqrn: Configured) -> None:
    """Create a repository of the configuration: bucket, public reading, keys, whitelist and first revision.

    What is there already stays as it is; a creation that died half way is finished.
    """
    from include.publishers.found import found_repository, found_stores

    site = connections()
    found_stores(site, {site.site.repository(fqrn).store}, say=typer.echo)
    if not found_repository(site, fqrn, say=typer.echo):
        typer.echo(f"{fqrn} is there already")


def repair(
    fqrn: Configured,
    reflog: Annotated[
        bool, typer.Option("--reflog", help="Rebuild the reflog from what the manifest leads to.")
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
    as_json: AsJson = False,
) -> None:
    """Mend a repository that lost its reflog (needs the signing key here) or objects (needs a tree that has them).

    Exit code 1: objects are still missing, each named.
    """
    from include.cvmfs.repair import repair_reflog

    if objects is not None:
        mend_objects(fqrn, objects, at, contents=contents, as_json=as_json)
    if not reflog and objects is None:
        raise typer.BadParameter("say what to repair: --reflog, or --objects SOURCE")
    if not reflog:
        return
    with refusing(), switching(connections(), fqrn) as (store, signer):
        head, added = repair_reflog(store, fqrn, signer=signer, now=seconds_now())
    typer.echo(f"reflog of {fqrn} matches revision {head.manifest.revision} again; {added} references added")


def resign(
    fqrn: Configured,
    days: Annotated[int, typer.Option("--days", "-d", min=1, max=365, help="How long it is to last.")] = 30,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Folder of the master key; default: the configuration's.")
    ] = None,
    certificate: Annotated[
        list[Path] | None,
        typer.Option("--certificate", metavar="FILE", help="A certificate to list beside the others."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Sign the whitelist for another while. For the holder of the master key, which no publisher or gateway needs."""
    from include.cvmfs.keys import KeyFile, load_master, parse_certificate
    from include.cvmfs.resign import resign as run_resign

    with refusing():
        site = connections()
        folder = keys or site.site.gateway.keys
        path = KeyFile.MASTER.path(folder, fqrn)
        master = load_master(folder, fqrn)
        listed = tuple(parse_certificate(file.read_bytes()) for file in certificate or ())
        whitelist = run_resign(
            site.repository_store(fqrn), fqrn, master, now=datetime.now(UTC), validity=timedelta(days=days),
            certificates=listed, dry_run=dry_run,
        )  # fmt: skip
    if as_json:
        facts = {
            "repository": fqrn,
            "dry_run": dry_run,
            "expires": whitelist.expires.isoformat(),
            "fingerprints": [str(one) for one in whitelist.fingerprints],
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
    from include.cvmfs.keyimport import import_keys as run_import

    with refusing():
        site = connections()
        url, folder = site.site.repository(fqrn).public_url, site.site.gateway.keys
        done = run_import(url, fqrn, source, folder, now=datetime.now(UTC), dry_run=dry_run)
    kinds = {"copied": done.copied, "present": done.present, "absent": done.absent}
    if as_json:
        named = {word: [f"{fqrn}{kind.value}" for kind in found] for word, found in kinds.items()}
        typer.echo(json.dumps({"repository": fqrn, "dry_run": dry_run, "revision": done.revision, **named}, indent=1))
        return
    said = {"copied": f"{'would copy' if dry_run else 'copied'} to {folder}", "present": "there already"}
    for word, found in kinds.items():
        for kind in found:
            typer.echo(f"{fqrn}{kind.value}: {said.get(word, f'not in {source}')}")
    typer.echo(f"they are the keys of {fqrn}, verified at its revision {done.revision}")
