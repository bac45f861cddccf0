"""Prepare the trees of a batch without a lease: each becomes a changeset in the ledger, its objects in the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from include.cvmfs.coordination.generation import Look, look
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.digests import hash_of_key, identity
from include.cvmfs.ingest.changeset import Changeset, objects_of
from include.cvmfs.ingest.prepare import Base, PrepareProgress, prepare
from include.cvmfs.ingest.upload_journal import JournaledStore, UploadJournal
from include.cvmfs.revision.repository import Repository
from include.cvmfs.revision.view import View
from include.nightlies.errors import PublicationUnknown
from include.nightlies.records import builds, damage
from include.nightlies.records import publications as records
from include.nightlies.records.damage import Damage
from include.nightlies.rules.outages import is_outage
from include.nightlies.rules.publication import Figures, Publication
from include.nightlies.rules.states import Phase, Skip, State
from include.nightlies.steps.errors import FailedBefore
from include.nightlies.steps.inherited_changeset import rebased_changeset
from include.nightlies.steps.known_objects import earlier_destinations, known_objects, leave_condemned
from include.nightlies.steps.sources import opened, source_limits
from include.nightlies.steps.values import Batch, BatchOutcome, Item
from include.publishers.connect import Connections
from include.publishers.destinations import is_free, is_tree, missing_directories, occupied
from include.publishers.prepare_options import tree_options

Clock = Callable[[], datetime]

log = logging.getLogger(__name__)

CONTENT_INDEX = "content-index.db"
SENT = "sent"
"""Below the site's ``var``; caches, shared by all preparations of a machine."""


def prepare_batch(
    connections: Connections,
    batch: Batch,
    *,
    try_number: int,
    clock: Clock,
    progress: Callable[[Item, PrepareProgress], None] | None = None,
    outlast: bool = False,
) -> BatchOutcome:
    """Prepare every item that is not prepared yet; one that fails is recorded with its reason, and the others go on.

    With ``outlast`` an outage is raised and nothing of it is recorded: the caller waits, and calls again.
    """
    outcome = BatchOutcome()
    repository: Repository | None = None
    seen = Look()
    for item in batch.items:
        publication = records.publication(connections.ledger, batch.key(item))
        try:
            if publication is None:
                raise PublicationUnknown(str(batch.key(item)))
            if publication.state is State.FAILED and publication.phase is not Phase.PREPARE:
                raise FailedBefore(item.name, publication.reason)
            if _nothing_to_do(publication):
                log.info("%s: %s already, %s", item.name, publication.state.value, publication.reason)
                outcome.done.append(publication)
                continue
            if repository is None:
                # in this order: what a manifest read later preserves was not collected before
                seen = look(connections.repository_store(batch.repository))
                repository = connections.head(batch.repository)
            outcome.done.append(
                _prepare_one(
                    connections, repository, seen, batch, item, publication, try_number, clock, progress,
                    outlast=outlast,
                )
            )  # fmt: skip
        except Exception as error:
            if outlast and is_outage(error):
                raise
            # whatever is wrong with one artifact, the others go on
            outcome.failures[item.name] = error
            log.warning("%s: %s", item.name, error)
    return outcome


def _nothing_to_do(publication: Publication) -> bool:
    return publication.state.good or publication.state in {State.PREPARED, State.PUBLISHING}


def _prepare_one(
    connections: Connections,
    repository: Repository,
    seen: Look,
    batch: Batch,
    item: Item,
    publication: Publication,
    try_number: int,
    clock: Clock,
    progress: Callable[[Item, PrepareProgress], None] | None,
    *,
    outlast: bool,
) -> Publication:
    ledger, key = connections.ledger, batch.key(item)

    def move(
        to: State,
        reason: str,
        figures: Figures | None = None,
        error: Exception | None = None,
        skip: Skip | None = None,
    ) -> Publication:
        return records.move(
            ledger, key, to, phase=Phase.PREPARE, try_number=try_number, now=clock(), reason=reason,
            figures=figures, error=error, skip=skip,
        )  # fmt: skip

    move(State.PREPARING, f"try {try_number}")
    started = time.monotonic()
    try:
        changeset = prepare_item(
            connections, repository, seen, batch, item, publication, clock=clock, progress=progress
        )
        would = _would(repository, batch, item, changeset) if batch.dry_run else ""
        if publication.artifact is not None:
            _require_ours(connections, repository, item, changeset)
    except Exception as error:
        if not (outlast and is_outage(error)):
            move(State.FAILED, str(error), error=error)
        raise
    figures = figures_of(changeset, seconds=time.monotonic() - started)
    said = _said(changeset)
    if batch.dry_run:
        return move(State.SKIPPED, f"dry run: {would}", figures, skip=Skip.DRY_RUN)
    log.info("%s: prepared %s", item.name, said)
    for note in changeset.notes:
        log.info("%s: %s", item.name, note)
    return move(State.PREPARED, "; ".join([f"prepared {said}", *changeset.notes]), figures)


def _require_ours(connections: Connections, repository: Repository, item: Item, changeset: Changeset) -> None:
    """Raises DestinationError where a night would replace a tree that no run of this ledger published."""
    path, view = item.destination, View(repository.catalogs, repository.manifest.root)
    there = view.nested_at(path)
    if there is None or is_free(view, path, changeset.root):
        return
    if str(there.hash) not in records.known_hashes(connections.ledger, repository.fqrn, path):
        what = f"holds the tree {there.hash}, which no run of this ledger published"
        raise DestinationError(path, f"{what}; look whose it is (nightshift repo list), remove it, and run again")


def _would(repository: Repository, batch: Batch, item: Item, changeset: Changeset) -> str:
    """What the real run would do with the changeset. Raises DestinationError, as it would."""
    path, view = item.destination, View(repository.catalogs, repository.manifest.root)
    if is_tree(view.nested_at(path), changeset.root):
        return f"revision {repository.manifest.revision} holds this very tree, nothing would be published"
    missing_directories(view, [path])  # raises if something is in the way
    if is_free(view, path, changeset.root):
        return f"would publish {_said(changeset)}"
    if not batch.replace:
        raise occupied(path)
    return f"would publish {_said(changeset)} and replace what is at its destination"


def prepare_item(
    connections: Connections,
    repository: Repository,
    seen: Look,
    batch: Batch,
    item: Item,
    publication: Publication,
    *,
    clock: Clock,
    progress: Callable[[Item, PrepareProgress], None] | None = None,
    lost: Collection[str] = (),
) -> Changeset:
    """Make an item's changeset and keep it in the ledger. ``seen`` was looked up before ``repository`` was opened.

    What an earlier revision preserves and what an interrupted try has sent is not sent again; unless it is condemned,
    damaged, or among the keys that are known to be ``lost``. For a repository with a publisher node the tree is packed
    on this machine instead, and sent when it is published.
    """
    settings = connections.site.repository(batch.repository)
    if item.inherits is not None:
        changeset = rebased_changeset(connections, repository, seen, item, now=clock(), dry_run=batch.dry_run)
        if changeset.stored:
            builds.save_changeset(connections.ledger, _record(changeset))
        return changeset
    source = opened(connections, item, settings.limits)
    packing = connections.packing(batch.repository, repository)
    if packing is not None:
        changeset = packing.pack(
            source,
            destination=item.destination,
            now=clock(),
            base=Base(repository.manifest.root, repository.manifest.revision, seen.completed),
            limits=source_limits(settings.limits),
            progress=(lambda done: progress(item, done)) if progress else None,
            dry_run=batch.dry_run,
        )
        if changeset.stored:
            builds.save_changeset(connections.ledger, _record(changeset))
        return changeset
    store, now, manifest = connections.repository_store(batch.repository), clock(), repository.manifest
    known = known_objects(repository, earlier_destinations(connections.ledger, publication))
    with ExitStack() as stack:
        journal = None
        if not batch.dry_run and not store.is_local:  # where the store is files, to look is to write
            about = (store.url, item.destination, item.source, item.sha256)
            journal = UploadJournal(connections.site.paths.var / SENT, about=about, generation=seen.completed, now=now)
            stack.enter_context(journal)
            for one in journal.known:
                known.add(one)
            store = JournaledStore(store, journal)
        leave_condemned(known, seen, repository)
        damages = damage.of_repository(connections.ledger, batch.repository)
        for key in {*lost, *(one.key for one in damages)}:
            known.discard(identity(hash_of_key(key)))
        changeset = prepare(
            source,
            store=store,
            fqrn=batch.repository,
            destination=item.destination,
            now=now,
            options=replace(
                tree_options(settings.prepare, repository),
                connections=connections.site.store(settings.store).connections,
                limits=source_limits(settings.limits),
                index=connections.site.paths.var / CONTENT_INDEX,
            ),
            known=known,
            base=Base(manifest.root, manifest.revision, seen.completed),
            progress=(lambda done: progress(item, done)) if progress else None,
            dry_run=batch.dry_run,
        )
        if changeset.stored:
            builds.save_changeset(connections.ledger, _record(changeset))
            _mended(connections, repository, changeset, damages)
        if journal is not None:
            journal.remove()
    return changeset


def _mended(connections: Connections, repository: Repository, changeset: Changeset, damages: Sequence[Damage]) -> None:
    """What was damaged and is part of the changeset was sent again: then it is damaged no more."""
    if damages:
        needed = objects_of(changeset, repository.catalogs)
        sent = [one for one in damages if one.identity in needed]
        damage.look_again(connections.ledger, changeset.repository, repository.store, sent)


def figures_of(changeset: Changeset, *, seconds: float) -> Figures:
    """What the ledger keeps of a changeset beside the changeset itself."""
    return Figures(
        # the sum of what really was read: a publication by hand announces none
        artifact_sha256=changeset.source_sha256,
        changeset=changeset.digest if changeset.stored else None,
        nested_hash=str(changeset.root),
        files=changeset.files,
        bytes=changeset.bytes,
        objects_new=changeset.objects_new,
        objects_reused=changeset.objects_reused,
        bytes_uploaded=changeset.bytes_uploaded,
        seconds={"prepare": round(seconds, 3)},
    )


def _record(changeset: Changeset) -> builds.ChangesetRecord:
    return builds.ChangesetRecord(
        digest=changeset.digest,
        repository=changeset.repository,
        destination=changeset.destination,
        source_sha256=changeset.source_sha256 or "",
        root_hash=str(changeset.root),
        generation=changeset.generation,
        base_revision=changeset.base_revision,
        body=changeset.format().decode(),
        created_at=changeset.created,
    )


def _said(changeset: Changeset) -> str:
    return (
        f"{changeset.files} files, {changeset.bytes} bytes; {changeset.objects_new} objects new "
        f"({changeset.bytes_uploaded} bytes to upload), {changeset.objects_reused} known"
    )
