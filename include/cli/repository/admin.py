"""`nightshift repo create`, `repair`, `resign` and `import-keys`: what the keeper of a repository's keys does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from include.cli.repository.open import (
    AsJson,
    Configured,
    DryRun,
    bars,
    by_hand,
    open_site,
    printable,
    refusing,
    seconds_now,
    switching,
)
from include.cli.repository.repair import (
    faults_of,
    mend_all,
    mend_files,
    mend_manifest,
    mend_objects,
    mended_text,
    say_faults,
)
from include.cvmfs.errors import CvmfsError
from include.publishers.capabilities import Operation

if TYPE_CHECKING:
    from include.cvmfs.commit.rewrite import Rewriter, Rewritten, Sender
    from include.cvmfs.coordination.generation import Look
    from include.cvmfs.format.catalog import PackedCatalog
    from include.cvmfs.format.catalogs import CatalogCache
    from include.cvmfs.format.layout import Layout
    from include.cvmfs.format.manifest import Manifest
    from include.nightlies.rules.publication import Publication
    from include.site.site import Site

R = TypeVar("R", bound="Rewriter")


def mend_layout(fqrn: str, *, mtime_ns: bool, dry_run: bool, as_json: bool) -> None:
    """Bring all catalogs to one layout, and name the prepared changesets that this makes invalid."""
    from include.cvmfs.commit.rewrite import Unifier
    from include.cvmfs.format.layout import Layout

    layout = Layout.MTIME_NS if mtime_ns else Layout.PLAIN

    def unifier(
        catalogs: CatalogCache, keep: Callable[[PackedCatalog], None], progress: Callable[[int], None]
    ) -> Unifier:
        return Unifier(catalogs, layout, keep, progress)

    with refusing():
        site = open_site()
        stale = _invalidated(site, fqrn, layout)
        _, done, facts = _rewritten(site, fqrn, unifier, Operation.REPAIR, dry_run=dry_run)
        if done.catalogs:
            what = f"{fqrn}: {done.catalogs} catalogs to {layout.value}, revision {facts['revision']}"
            by_hand(site, "REPAIR", what, dry_run=dry_run)
    facts |= {
        "layout": layout.value, "mtime_ns_lost": done.mtime_ns,
        "invalidated": [{"path": publication.destination, "run": publication.run_id} for publication in stale],
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        _say(fqrn, facts)


def mend_counters(fqrn: str, *, dry_run: bool, as_json: bool) -> None:
    """Give all catalogs the counters that are counted, and name each that is wrong."""
    from include.cvmfs.check.check_objects import Recounter

    with refusing():
        site = open_site()
        recounter, done, facts = _rewritten(site, fqrn, Recounter, Operation.RECOUNT, dry_run=dry_run)
        wrong = [miscount for path in sorted(recounter.miscounts) for miscount in recounter.miscounts[path]]
        if done.catalogs:
            what = f"{fqrn}: {len(wrong)} counters, revision {facts['revision']}"
            by_hand(site, "REPAIR", what, dry_run=dry_run)
    if as_json:
        counters = [{**asdict(miscount), "path": printable(miscount.path) or "/"} for miscount in wrong]
        typer.echo(json.dumps({**facts, "counters": counters}, indent=1))
        return
    for miscount in wrong:
        typer.echo(f"{printable(miscount.path) or '/'}: {miscount}")
    number = facts["catalogs"]
    if not number:
        typer.echo(f"all counters of {fqrn} are right; nothing to do")
        return
    verb = "would be rewritten" if dry_run else f"rewritten in revision {facts['revision']}"
    of = f"{len(wrong)} counters of {len(recounter.miscounts)} catalogs"
    typer.echo(f"{of} are wrong; {number} catalogs of {fqrn} ({facts['bytes']} bytes) {verb}")


def _rewritten(
    site: Site,
    fqrn: str,
    rewriter_of: Callable[[CatalogCache, Callable[[PackedCatalog], None], Callable[[int], None]], R],
    operation: Operation,
    *,
    dry_run: bool,
) -> tuple[R, Rewritten, dict[str, Any]]:
    """Rewrite the catalogs before the lease, and make the revision under one on the whole repository.

    What was stored is found again: a run that was killed is repeated. A dry run stores nothing.
    """
    from include.cvmfs.commit.rewrite import Sender
    from include.cvmfs.coordination.generation import look
    from include.cvmfs.format.catalog import NestedRef
    from include.cvmfs.format.catalogs import CatalogCache

    with bars() as show:
        store = site.repository_store(fqrn)
        before = look(store)
        manifest = site.head(fqrn).manifest
        sender = None if dry_run else Sender(store)
        keep = _forget if sender is None else sender.keep
        rewriter = rewriter_of(CatalogCache(store), keep, lambda done: show("catalogs", done, 0))
        if sender is not None:
            # a caller that may not or cannot make the revision is refused before anything is rewritten
            with switching(site, fqrn, operation, leased=False):
                pass
        done = rewriter.tree(NestedRef("", manifest.root, 0), now=seconds_now())
        if sender is not None and done.catalogs:
            manifest, done = _made(site, fqrn, rewriter, operation, sender, before)
    facts: dict[str, Any] = {
        "dry_run": dry_run, "revision": manifest.revision, "root_hash": str(manifest.root),
        "catalogs": done.catalogs, "bytes": done.bytes, "sent": 0 if sender is None else sender.sent,
    }  # fmt: skip
    return rewriter, done, facts


def _made(
    site: Site, fqrn: str, rewriter: Rewriter, operation: Operation, sender: Sender, before: Look
) -> tuple[Manifest, Rewritten]:
    from include.cvmfs.commit.rewrite import switch_rewritten
    from include.nightlies.records import publications as records

    def note() -> None:
        """Recorded before the switch: a death right after the switch leaves nothing that looks strange."""
        records.rehash(site.ledger, rewriter.replaced())

    with switching(site, fqrn, operation, leased=True) as (store, signer):
        head, done = switch_rewritten(
            store, fqrn, rewriter, sender, seen=before, signer=signer, now=seconds_now(), before_switch=note
        )
    return head.manifest, done


def _invalidated(site: Site, fqrn: str, layout: Layout) -> list[Publication]:
    """Prepared changesets of another layout: they are prepared again when their turn to be published comes."""
    from include.cvmfs.format.catalogs import CatalogCache
    from include.cvmfs.format.hashes import CATALOG, ObjectHash
    from include.nightlies.records import publications as records

    catalogs, faults = CatalogCache(site.repository_store(fqrn)), []
    for publication in records.waiting_changesets(site.ledger, fqrn):
        try:
            catalog = catalogs.open(ObjectHash.parse(publication.nested_hash or "", suffix=CATALOG))
        except CvmfsError:
            continue  # no catalog of ours, or lost: publishing it reports that
        if catalog.layout is not layout:
            faults.append(publication)
        catalog.close()
    return faults


def _forget(_: object) -> None: ...


def _say(fqrn: str, facts: dict[str, Any]) -> None:
    dry_run, number = facts["dry_run"], facts["catalogs"]
    if not number:
        typer.echo(f"all catalogs of {fqrn} have {facts['layout']}; nothing to do")
    else:
        verb = "would be rewritten" if dry_run else f"rewritten in revision {facts['revision']}"
        typer.echo(f"{number} catalogs of {fqrn} ({facts['bytes']} bytes) {verb} with {facts['layout']}")
        lost = facts["mtime_ns_lost"]
        typer.echo(f"{lost} values of mtime_ns {'would be' if dry_run else 'are'} lost")
    for entry in facts["invalidated"]:
        what = f"{printable(entry['path'])} of run {printable(entry['run'])}"
        typer.echo(f"prepared in another layout, will be prepared again when it is published: {what}")


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
        bool, typer.Option("--empty-history", help="If the tags cannot be read: keep the current revision alone.")
    ] = False,
    manifest: Annotated[
        bool, typer.Option("--manifest", help="If the manifest cannot be read: sign one for the newest revision.")
    ] = False,
    objects: Annotated[
        Path | None,
        typer.Option("--objects", metavar="SOURCE", help="Send lost objects again from this folder, tarball or zip."),
    ] = None,
    at: Annotated[
        str, typer.Option("--at", metavar="PATH", help="Path where SOURCE is published; brings its catalogs back, too.")
    ] = "/restored",
    contents: Annotated[
        bool, typer.Option("--contents", "--full", help="With --objects: read every object to find the damaged ones.")
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Remove temporary files older than one day (folder stores only).")
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
        site = open_site()
        with refusing(), switching(site, fqrn, Operation.REPAIR) as (store, signer):
            mend_files(store, fqrn, signer, history=history, metadata=metadata, reflog=reflog)
        what = mended_text(history=history, metadata=metadata, reflog=reflog)
        by_hand(site, "REPAIR", f"{fqrn}: {what}")


def _remove_unfinished(fqrn: str, *, dry_run: bool) -> None:
    from include.storage.file import remove_abandoned

    with refusing():
        site = open_site()
        store = site.repository_store(fqrn)
        abandoned = remove_abandoned(store, datetime.now(UTC), dry_run=dry_run)
        if abandoned:
            what = f"{fqrn}: {', '.join(write.name for write in abandoned)}"
            by_hand(site, "UNFINISHED", what, "older than a day", dry_run=dry_run)
    for write in abandoned:
        typer.echo(
            f"{'would remove' if dry_run else 'removed'} {write.name}, {write.size} bytes, of {write.since:%Y-%m-%d}"
        )
    typer.echo(f"{len(abandoned)} unfinished files {'would be ' if dry_run else ''}removed from {store.url}")


def resign(
    fqrn: Configured,
    days: Annotated[int, typer.Option("--days", "-d", min=1, max=365, help="Days until it expires.")] = 30,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Folder of the master key; default: the configuration's.")
    ] = None,
    certificate: Annotated[
        list[Path] | None, typer.Option("--certificate", metavar="FILE", help="A certificate to add to the others.")
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
        what = f"{fqrn}, until {whitelist.expires:%Y-%m-%d}, {len(whitelist.fingerprints)} certificates"
        by_hand(site, "WHITELIST", what, dry_run=dry_run)
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
        Path, typer.Option("--from", metavar="FOLDER", help="Folder in which the stock tools keep the keys.")
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
        if done.copied:
            what = f"{fqrn}: {', '.join(kind.value for kind in done.copied)} to {folder}"
            by_hand(site, "KEYS", what, dry_run=dry_run)
    kinds = {"copied": done.copied, "present": done.present, "absent": done.absent}
    if as_json:
        named = {word: [f"{fqrn}{kind.value}" for kind in refs] for word, refs in kinds.items()}
        typer.echo(json.dumps({"repository": fqrn, "dry_run": dry_run, "revision": done.revision, **named}, indent=1))
        return
    words = {"copied": f"{'would copy' if dry_run else 'copied'} to {folder}", "present": "there already"}
    for word, refs in kinds.items():
        for kind in refs:
            typer.echo(f"{fqrn}{kind.value}: {words.get(word, f'not in {source}')}")
    typer.echo(f"they are the keys of {fqrn}, verified at its revision {done.revision}")
