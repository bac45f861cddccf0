"""`nightshift repo repair --catalog-layout`: all catalogs of a repository in one layout, as one revision."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from include.cli.repository.open import bars, holder, open_site, printable, refusing, seconds_now

if TYPE_CHECKING:
    from include.cvmfs.commit.unify_layout import Sender, Unified, Unifier
    from include.cvmfs.coordination.generation import Look
    from include.cvmfs.format.layout import Layout
    from include.cvmfs.format.manifest import Manifest
    from include.nightlies.rules.publication import Publication
    from include.site.site import Site


def mend_layout(fqrn: str, *, mtime_ns: bool, dry_run: bool, as_json: bool) -> None:
    """Rewrite the catalogs before the lease, and make the revision under one on the whole repository.

    What was stored is found again: a run that was killed is repeated. A dry run stores nothing.
    """
    from include.cvmfs.commit.unify_layout import Sender, Unifier
    from include.cvmfs.coordination.generation import look
    from include.cvmfs.format.catalog import NestedRef
    from include.cvmfs.format.catalogs import CatalogCache
    from include.cvmfs.format.layout import Layout
    from include.publishers.capabilities import Operation
    from include.site.direct_switch import switching

    layout = Layout.MTIME_NS if mtime_ns else Layout.PLAIN
    with refusing(), bars() as show:
        site = open_site()
        store = site.repository_store(fqrn)
        seen = look(store)
        manifest = site.head(fqrn).manifest
        sender = None if dry_run else Sender(store)
        keep = _forget if sender is None else sender.keep
        unifier = Unifier(CatalogCache(store), layout, keep, lambda done: show("catalogs", done, 0))
        if sender is not None:
            # a caller that may not or cannot make the revision is refused before anything is rewritten
            with switching(site, fqrn, Operation.REPAIR, holder=holder(), leased=False):
                pass
        done = unifier.tree(NestedRef("", manifest.root, 0), now=seconds_now())
        stale = _invalidated(site, fqrn, layout)
        if sender is not None and done.rewritten:
            manifest, done = _made(site, fqrn, unifier, sender, seen)
    facts: dict[str, Any] = {
        "dry_run": dry_run, "layout": layout.value, "revision": manifest.revision, "root_hash": str(manifest.root),
        "catalogs": done.rewritten, "bytes": done.bytes, "mtime_ns_lost": done.mtime_ns,
        "sent": 0 if sender is None else sender.sent,
        "invalidated": [{"path": publication.destination, "run": publication.run_id} for publication in stale],
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        _say(fqrn, facts)


def _made(site: Site, fqrn: str, unifier: Unifier, sender: Sender, seen: Look) -> tuple[Manifest, Unified]:
    from include.cvmfs.commit.unify_layout import unify
    from include.nightlies.records import publications as records
    from include.publishers.capabilities import Operation
    from include.site.direct_switch import switching

    def note() -> None:
        """Recorded before the switch: a death right after the switch leaves nothing that looks strange."""
        records.rehash(site.ledger, unifier.replaced())

    with switching(site, fqrn, Operation.REPAIR, holder=holder(), leased=True) as (store, signer):
        head, done = unify(
            store, fqrn, unifier, sender, seen=seen, signer=signer, now=seconds_now(), before_switch=note
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
