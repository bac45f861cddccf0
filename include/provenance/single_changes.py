"""Provenance records of single changes: by hand, which belong to no run, and by tasks of others' DAGs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from include.cvmfs.errors import CvmfsError
from include.ledger.acts import Act, ActKind, named, note_act
from include.ledger.errors import LedgerError
from include.provenance.records import ChangeKind, ProvenanceRecord, begun, newest, note
from include.publishers.base import Published
from include.site.changes import TreePublication
from include.site.site import Site
from include.storage.errors import StoreError

BY_HAND = "by hand"

log = logging.getLogger(__name__)


def note_by_hand(
    site: Site,
    done: TreePublication,
    *,
    source: str,
    holder: str,
    now: datetime,
    run: str | None = None,
    again: bool = False,
) -> None:
    """Have a publication in the ledger and signed in the store, if it changed anything. Raises nothing.

    ``run``: the run of a DAG that made it; None: it was made by hand. ``again``: an earlier try of the run may have
    published what this one found, and have died before it was recorded.
    """
    published, changeset = done.published, done.changeset
    if published is None or (published.unchanged and not again):
        return
    nested, reason = str(published.nested_hash) if published.nested_hash else None, None
    if published.unchanged:
        try:
            last = newest(site.ledger, changeset.repository, published.path)
        except LedgerError as error:
            log.warning("who published %s%s is not known: %s", changeset.repository, published.path, error)
            return
        if last is not None and last.nested_hash == nested:
            return
        reason = "found by a later try of the run"
    note(
        site,
        replace(
            _begun(site, changeset.repository, published, holder, now, run),
            path=published.path,
            nested_hash=nested,
            changeset=changeset.digest,
            source=source,
            artifact_sha256=changeset.source_sha256,
            reason=reason,
        ),
    )


def note_removed(
    site: Site, fqrn: str, paths: Sequence[str], done: Published, *, holder: str, now: datetime, run: str | None = None
) -> None:
    """Have it known who took places away; ``run`` as for a publication. Raises nothing."""
    if done.unchanged:
        return
    for path in paths:
        note(site, replace(_begun(site, fqrn, done, holder, now, run), path=_clean(path), kind=ChangeKind.REMOVED))
    what = f"{fqrn}, revision {done.revision}: {named(paths)}"
    note_act(site.ledger, Act(now, ActKind.REMOVAL, what, holder, BY_HAND if run is None else "task of a DAG", run))


def note_renamed(
    site: Site, fqrn: str, source: str, target: str, done: Published, *, holder: str, now: datetime
) -> None:
    """Have it known who moved something, at both places. Raises nothing."""
    if done.unchanged:
        return
    common = _begun(site, fqrn, done, holder, now)
    old, new = _clean(source), _clean(target)
    note(site, replace(common, path=old, kind=ChangeKind.REMOVED, leads_to=new))
    try:
        there = site.head(fqrn).revision.nested_at(new)
    except (CvmfsError, StoreError, OSError):
        there = None  # recorded without its catalog's hash
    nested = str(there.hash) if there is not None else None
    note(site, replace(common, path=new, kind=ChangeKind.MOVED, came_from=old, nested_hash=nested))


def note_linked(site: Site, fqrn: str, path: str, target: str, done: Published, *, holder: str, now: datetime) -> None:
    """Record who set a link, and its target, word for word. Raises nothing."""
    if not done.unchanged:
        common = _begun(site, fqrn, done, holder, now)
        note(site, replace(common, path=_clean(path), kind=ChangeKind.LINK, leads_to=target))


def note_written(
    site: Site, fqrn: str, path: str, content: bytes, source: str, done: Published, *, holder: str, now: datetime
) -> None:
    """Record who wrote a file, from where, with the checksum of its content. Raises nothing."""
    if not done.unchanged:
        common = _begun(site, fqrn, done, holder, now)
        sha256 = hashlib.sha256(content).hexdigest()
        note(site, replace(common, path=path, source=source, artifact_sha256=sha256))


def _begun(
    site: Site, fqrn: str, done: Published, holder: str, now: datetime, run: str | None = None
) -> ProvenanceRecord:
    run_id = run or f"{BY_HAND}/{now.isoformat()}"
    common = begun(site, fqrn, revision=done.revision, run_id=run_id, holder=holder, at=now)
    return replace(common, root_hash=str(done.root_hash))


def _clean(path: str) -> str:
    return path.rstrip("/")
