"""`nightshift repo repair --catalog-layout` and `--counters`: catalogs are rewritten, as one revision; data stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from include.cli.repository.open import bars, holder, open_site, printable, refusing, seconds_now

if TYPE_CHECKING:
    from include.cvmfs.commit.rewrite import Rewriter, Rewritten, Sender
    from include.cvmfs.coordination.generation import Look
    from include.cvmfs.format.catalog import PackedCatalog
    from include.cvmfs.format.catalogs import CatalogCache
    from include.cvmfs.format.layout import Layout
    from include.cvmfs.format.manifest import Manifest
    from include.nightlies.rules.publication import Publication
    from include.publishers.capabilities import Operation
    from include.site.site import Site

R = TypeVar("R", bound="Rewriter")


def mend_layout(fqrn: str, *, mtime_ns: bool, dry_run: bool, as_json: bool) -> None:
    """Bring all catalogs to one layout, and name the prepared changesets that this makes invalid."""
    from include.cvmfs.commit.rewrite import Unifier
    from include.cvmfs.format.layout import Layout
    from include.publishers.capabilities import Operation

    layout = Layout.MTIME_NS if mtime_ns else Layout.PLAIN

    def unifier(
        catalogs: CatalogCache, keep: Callable[[PackedCatalog], None], progress: Callable[[int], None]
    ) -> Unifier:
        return Unifier(catalogs, layout, keep, progress)

    with refusing():
        site = open_site()
        stale = _invalidated(site, fqrn, layout)
        _, done, facts = _rewritten(site, fqrn, unifier, Operation.REPAIR, dry_run=dry_run)
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
    from include.cvmfs.check.restore import Recounter
    from include.publishers.capabilities import Operation

    with refusing():
        recounter, _, facts = _rewritten(open_site(), fqrn, Recounter, Operation.RECOUNT, dry_run=dry_run)
    wrong = [miscount for path in sorted(recounter.miscounts) for miscount in recounter.miscounts[path]]
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
    from include.site.site import switching

    with bars() as show:
        store = site.repository_store(fqrn)
        seen = look(store)
        manifest = site.head(fqrn).manifest
        sender = None if dry_run else Sender(store)
        keep = _forget if sender is None else sender.keep
        rewriter = rewriter_of(CatalogCache(store), keep, lambda done: show("catalogs", done, 0))
        if sender is not None:
            # a caller that may not or cannot make the revision is refused before anything is rewritten
            with switching(site, fqrn, operation, holder=holder(), leased=False):
                pass
        done = rewriter.tree(NestedRef("", manifest.root, 0), now=seconds_now())
        if sender is not None and done.catalogs:
            manifest, done = _made(site, fqrn, rewriter, operation, sender, seen)
    facts: dict[str, Any] = {
        "dry_run": dry_run, "revision": manifest.revision, "root_hash": str(manifest.root),
        "catalogs": done.catalogs, "bytes": done.bytes, "sent": 0 if sender is None else sender.sent,
    }  # fmt: skip
    return rewriter, done, facts


def _made(
    site: Site, fqrn: str, rewriter: Rewriter, operation: Operation, sender: Sender, seen: Look
) -> tuple[Manifest, Rewritten]:
    from include.cvmfs.commit.rewrite import switch_rewritten
    from include.nightlies.records import publications as records
    from include.site.site import switching

    def note() -> None:
        """Recorded before the switch: a death right after the switch leaves nothing that looks strange."""
        records.rehash(site.ledger, rewriter.replaced())

    with switching(site, fqrn, operation, holder=holder(), leased=True) as (store, signer):
        head, done = switch_rewritten(
            store, fqrn, rewriter, sender, seen=seen, signer=signer, now=seconds_now(), before_switch=note
        )
    return head.manifest, done


def _invalidated(site: Site, fqrn: str, layout: Layout) -> list[Publication]:
    """Prepared changesets of another layout: they are prepared again when their turn to be published comes."""
    from include.cvmfs.errors import CvmfsError
    from include.cvmfs.format.catalogs import CatalogCache
    from include.cvmfs.format.hashes import CATALOG, ObjectHash
    from include.nightlies.records import publications as records

    catalogs, found = CatalogCache(site.repository_store(fqrn)), []
    for publication in records.waiting_changesets(site.ledger, fqrn):
        try:
            catalog = catalogs.open(ObjectHash.parse(publication.nested_hash or "", suffix=CATALOG))
        except CvmfsError:
            continue  # no catalog of ours, or lost: publishing it reports that
        if catalog.layout is not layout:
            found.append(publication)
        catalog.close()
    return found


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
