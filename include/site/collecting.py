"""A garbage collection of a repository of the site: its keys, its rules and brakes, and that it writes alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from include.cvmfs.collect.collect import GarbageCollection
from include.cvmfs.collect.report import CollectionOptions, CollectionReport, CollectionRules, NotDue, read_record
from include.cvmfs.collect.sweep import SwitchingSide
from include.cvmfs.coordination.generation import CHANGESET_LIFE
from include.cvmfs.errors import CollectionBusy, CollectionRefused, CvmfsError, ReflogError
from include.cvmfs.format.database import RefType
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.keys import Certificate, Signer, fingerprint, parse_certificate
from include.cvmfs.format.objects import load
from include.cvmfs.revision.repository import ManifestVerifier
from include.errors import NightshiftError
from include.gateway.service.commits import ownership
from include.ledger.acts import restores_of
from include.publishers.capabilities import Operation, PublishRoute, require
from include.settings.model import RepositorySettings
from include.settings.traits import recorded_traits
from include.site.site import Site, switching
from include.site.stock_collecting import collect_behind
from include.storage.errors import NotFound, StoreError
from include.storage.probe import may_delete
from include.storage.store import Store

STOCK_CONFIG = Path("/etc/cvmfs/repositories.d")
_RENEWED = timedelta(minutes=1)

log = logging.getLogger(__name__)


def require_sole_writer(
    site: Site, fqrn: str, side: SwitchingSide, signer: Signer, *, accept: str = "", config: Path = STOCK_CONFIG
) -> list[str]:
    """Return what a report is to say of it. ``accept``: the reason to go on although others may write.

    ``config``: where the stock tools of this machine have their repositories. Raises CollectionRefused naming every
    sign of another writer, and StoreError.
    """
    settings = site.settings.repository(fqrn)
    signs = [
        *_by_stock_tools_alone(settings, config),
        *_by_another_gateway(site, settings, side.store),
        *_by_another_key(side, signer),
    ]
    if not signs:
        return []
    what = f"others may publish into it without Nightshift's gateway: {'; '.join(signs)}"
    if accept:
        return [f"{what}; accepted: {accept}"]
    hint = "let all publishers use the gateway, or run it with --accept REASON while no other publisher runs"
    raise CollectionRefused(fqrn, what, hint=hint)


def _by_stock_tools_alone(settings: RepositorySettings, config: Path) -> Iterator[str]:
    if settings.reflog_checksum is not None:
        yield (
            f"cvmfs_server of this machine works on it, since `reflog_checksum` is set to {settings.reflog_checksum}"
            " (remove that once cvmfs_server does not have the repository any more)"
        )
    file = config / settings.fqrn / "server.conf"
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    values = dict(line.strip().partition("=")[::2] for line in lines if "=" in line)
    upstream = values.get("CVMFS_UPSTREAM_STORAGE", "").strip("'\"")
    if values.get("CVMFS_REPOSITORY_TYPE", "stratum0").strip("'\"") == "stratum0" and not upstream.startswith("gw,"):
        yield f"cvmfs_server of this machine may write to its storage ({file}); remove it with: cvmfs_server rmfs -p"


def _by_another_gateway(site: Site, settings: RepositorySettings, store: Store) -> Iterator[str]:
    try:
        with site.gateway(settings.fqrn) as client:
            if not client.judges_bases():
                yield f"{client.url} is a stock gateway, in spite of `gateway_kind`"
    except NightshiftError as fault:  # behind a gateway that does not answer, nothing is published
        log.info("%s: the gateway was not asked for its kind: %s", settings.fqrn, fault)
    document = store.head(ownership.KEY)
    if document is None or datetime.now(UTC) - document.modified > _RENEWED:
        return
    try:
        owner = ownership.GatewayOwner.parse(store.get(ownership.KEY))
    except NotFound:
        return
    yield f"a gateway that does without conditional writes owns it ({owner or 'unknown'}); let it probe the store again"


def _by_another_key(side: SwitchingSide, signer: Signer) -> Iterator[str]:
    """The certificate of the manifest, and those that came into the reflog since the last collection."""
    own, store = _print(signer.certificate), side.store
    try:
        named = side.read()
    except ReflogError:
        return  # the collection rebuilds it, and reports it
    last = read_record(store)[0].last
    suspects = {named.manifest.certificate}
    if last is not None:
        since = int(last.ended.timestamp())
        suspects |= {ref.hash for ref in named.refs if ref.type is RefType.CERTIFICATE and ref.timestamp > since}
    for name in suspects:
        if name is None:
            continue
        try:
            other = _print(parse_certificate(load(store, name.with_suffix(RefType.CERTIFICATE.suffix))))
        except CvmfsError as fault:
            yield f"a manifest was signed with certificate {name}, which cannot be read ({fault})"
            continue
        if other != own:
            yield f"a manifest was signed with certificate {name}, which is not that of this machine's key"


def _print(certificate: Certificate) -> ObjectHash:
    return fingerprint(certificate, Algorithm.SHA1).hash


def options_of(
    site: Site,
    fqrn: str,
    holder: str,
    *,
    grace_days: float | None = None,
    audited: int | None = None,
    accept: str = "",
    all_orphans: bool = False,
    force: bool = False,
    **more: Any,
) -> CollectionOptions:
    """The options of one run: the settings of the repository, and what is given in their place.

    A grace is never shorter than clients may keep a manifest, than a preparation may last, and than the replicas need:
    their longest lag with the snapshot that follows it. Without any grace (0) none of this counts. To accept what the
    brakes found, and to look for all orphans, is to collect although nothing is due. ``more``: other fields.
    """
    repository = site.settings.repository(fqrn)
    settings = repository.collection
    grace = settings.grace if grace_days is None else timedelta(days=grace_days)
    if grace:
        clients = timedelta(seconds=site.head(fqrn).manifest.ttl)
        grace = max(grace, clients, CHANGESET_LIFE, repository.snapshot_grace)
    rules = CollectionRules(
        grace, careful=settings.careful, largest_loss=settings.largest_loss, accept=accept, all_orphans=all_orphans
    )
    force = force or bool(accept) or all_orphans
    return CollectionOptions(holder, rules, settings.audited if audited is None else audited, force=force, **more)


def collect(site: Site, fqrn: str, options: CollectionOptions) -> CollectionReport | NotDue:
    """Collect a repository's garbage; the sweep of a collection that died is finished first. A dry run writes nothing.

    Behind a stock gateway, and on a node without any, the stock tools are asked to collect.

    Raises CollectionRefused before anything is deleted for what is not as it should be, CollectionBusy while another
    collection is at work, NotSupported where the signing key is elsewhere, Forbidden for a key that may not delete,
    StoreError, TransactionOpen while another publishes on a node, and what ``collect_behind`` raises.
    """
    require_collectable(site, fqrn)
    way = site.way_of_switching(fqrn)
    if way is not PublishRoute.NATIVE_OURS:
        require(way, Operation.COLLECT, fqrn=fqrn, path="")
        if way is PublishRoute.SERVER_LOCAL:
            return _collect_on_node(site, fqrn, options)
        return collect_behind(site, fqrn, options)
    return _rehearse(site, fqrn, options) if options.dry_run else _collect(site, fqrn, options)


def _collect(site: Site, fqrn: str, options: CollectionOptions) -> CollectionReport | NotDue:
    store = site.collector_store(fqrn)
    may_delete(store)
    with switching(site, fqrn, Operation.COLLECT, holder=options.holder, leased=False) as (manifests, signer):
        public_key = site.settings.repository(fqrn).public_key
        side = SwitchingSide(manifests, fqrn, signer, ManifestVerifier(signer, lambda: [public_key.read_bytes()]))
        notes = require_sole_writer(site, fqrn, side, signer, accept=options.rules.accept)
        while True:
            with GarbageCollection(
                store, side, folder=_folder(site, fqrn), rules=options.rules, progress=options.progress
            ) as collection:
                if not options.force and (skipped := collection.not_due()) is not None:
                    return skipped
                report = _run(collection, options)
            if not report.resumed or report.failed:
                break
            notes += [*report.notes, f"{report.deleted} objects deleted by that sweep"]
            options = replace(options, force=True)  # what it left is collected now
    report.notes += notes
    try:
        if store.versioning():
            report.notes.append("the bucket keeps old versions: deleted objects still take up space")
    except StoreError as fault:
        report.notes.append(f"whether the bucket keeps old versions is not known: {fault}")
    return report


def _collect_on_node(site: Site, fqrn: str, options: CollectionOptions) -> CollectionReport:
    """Let ``cvmfs_server`` collect on the node of a repository without a gateway, in a transaction of its own."""
    site.require_thawed(fqrn)
    started = datetime.now(UTC)
    report = CollectionReport(fqrn, started=started, dry_run=options.dry_run)
    lines = site.server(fqrn).collect(older_than=started - options.rules.grace, listed=True, dry_run=options.dry_run)
    report.read_stock_output(lines, None if options.dry_run else options.log)
    report.ended = datetime.now(UTC)
    report.seconds["collect"] = (report.ended - started).total_seconds()
    return report


def _rehearse(site: Site, fqrn: str, options: CollectionOptions) -> CollectionReport:
    store = site.collector_store(fqrn)
    with switching(site, fqrn, Operation.COLLECT, holder="", leased=False) as (manifests, signer):
        side = SwitchingSide(manifests, fqrn, signer)
        notes = require_sole_writer(site, fqrn, side, signer, accept=options.rules.accept)
        with GarbageCollection(
            store, side, folder=_folder(site, fqrn), rules=options.rules, progress=options.progress, dry_run=True
        ) as collection:
            collection.mark()
            collection.condemn()
            collection.report.notes += notes
            return collection.report


def _run(collection: GarbageCollection, options: CollectionOptions) -> CollectionReport:
    try:
        if not collection.begin():
            collection.sweep(options.log)
            return collection.end()
        collection.mark()
        if collection.condemn():
            collection.spare()
            collection.sweep(options.log)
        collection.audit(options.audited)
        return collection.end()
    except CollectionBusy:
        raise
    except BaseException:
        collection.abandon()
        raise


def require_restores_accepted(site: Site, fqrn: str) -> None:
    """Call this before anything is removed by what the ledger knows. Raises CollectionRefused, LedgerError."""
    pending = restores_of(site.ledger, pending=True)
    if pending:
        when = f"{pending[-1].noted_at:%Y-%m-%d %H:%M} UTC"
        what = f"the ledger was restored from a backup at {when}, and its report is not accepted"
        hint = "see `nightshift backup report`, then accept it: nightshift backup report --accept"
        raise CollectionRefused(fqrn, what, hint=hint)


def require_collectable(site: Site, fqrn: str) -> None:
    """Check settings, manifest, and the records of store and ledger; nothing is tried.

    Raises CollectionRefused, StoreError, LedgerError.
    """
    require_restores_accepted(site, fqrn)
    settings = site.settings.repository(fqrn)
    if not settings.garbage_collectable:
        what = "its settings do not allow garbage collection"
        raise CollectionRefused(fqrn, what, hint="set `garbage_collectable: true` if it is to be collected")
    if not site.head(fqrn).manifest.garbage_collectable:
        what = "its manifest does not allow garbage collection"
        raise CollectionRefused(fqrn, what, hint="create it with `garbage_collectable: true`")
    if site.way_of_switching(fqrn) is not PublishRoute.NATIVE_OURS or site.repository_store(fqrn).is_local:
        return
    traits = recorded_traits(site.ledger, site.settings.store(settings.store))
    if traits is None or not traits.replace:
        what = f"the store {settings.store} was not seen to keep conditions on a replacement"
        raise CollectionRefused(fqrn, what, hint="try it with: nightshift settings check --stores")


def _folder(site: Site, fqrn: str) -> Path:
    """Keeps what catalogs name, for the next collection on this machine."""
    return site.settings.paths.var / "collections" / fqrn
