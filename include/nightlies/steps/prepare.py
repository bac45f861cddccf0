"""Prepare the trees of a batch without a lease: each becomes a changeset in the ledger, its objects in the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from include.cvmfs.commit.group import rebase
from include.cvmfs.commit.metadata_objects import store_all
from include.cvmfs.coordination.generation import Look, look
from include.cvmfs.errors import DestinationError
from include.cvmfs.format.catalog import PackedCatalog
from include.cvmfs.ingest.changeset import Changeset, objects_of
from include.cvmfs.ingest.prepare import PrepareProgress
from include.cvmfs.revision.repository import Repository
from include.ledger.engine import Bind
from include.nightlies.errors import FailedBefore, PublicationUnknown
from include.nightlies.records import builds, damage, progress, publications as records
from include.nightlies.records.damage import Damage
from include.nightlies.rules.publication import Figures, Move, Phase, Publication, Skip, State
from include.nightlies.steps.sources import opened, source_limits
from include.nightlies.steps.values import Attempt, Batch, BatchOutcome, Item
from include.publishers.capabilities import Operation
from include.publishers.errors import NotSupported
from include.publishers.required_objects import is_free, is_tree, missing_directories, occupied
from include.settings.model import PublisherKind
from include.site.changes import TreeToPrepare, journal_of, prepare_for
from include.site.site import Site


def rebased_changeset(
    site: Site, repository: Repository, seen: Look, item: Item, *, now: datetime, dry_run: bool
) -> Changeset:
    """Write the catalogs of the tree at ``item.inherits`` for the item's destination, and store them.

    ``seen`` was looked up before ``repository`` was opened. Raises DestinationError if the tree is gone, NotSupported
    for a repository with a publisher node, and what reading catalogs and storing raise.
    """
    fqrn, source = repository.fqrn, item.inherits or ""
    require_native(site, fqrn, item.destination)
    there = repository.revision.nested_at(source)
    if there is None:
        raise DestinationError(source, f"the source tree no longer exists; {item.name} cannot be inherited from it")
    packed: list[tuple[str, bytes]] = []

    def keep(catalog: PackedCatalog) -> None:
        packed.append((catalog.hash.key, catalog.data))

    layout = repository.revision.root.layout
    tree = rebase(repository.catalogs, there, item.destination, keep, layout=layout)
    if not dry_run:
        store_all(site.repository_store(fqrn), packed)
    return Changeset(
        repository=fqrn,
        destination=item.destination,
        root=tree.reference.hash,
        root_size=tree.reference.size,
        root_entry=tree.root_entry,
        statistics=tree.statistics,
        catalogs=tree.catalogs,
        objects_new=tree.catalogs,
        objects_reused=tree.statistics.total.regular,
        bytes_uploaded=tree.bytes,
        source=source,
        created=now,
        source_sha256=item.sha256,
        base_root=repository.manifest.root,
        base_revision=repository.manifest.revision,
        generation=seen.completed,
        swept=seen.swept,
        notes=(f"inherited from {source}, by its catalogs alone",),
        stored=not dry_run,
    )


def require_native(site: Site, fqrn: str, path: str) -> None:
    """Raises NotSupported where catalogs cannot be written by us, before anything is done."""
    if site.settings.repository(fqrn).publisher is PublisherKind.CVMFS_SERVER:
        what = f"{path}: {Operation.RENAME.value}: cvmfs_server works on files and knows no catalogs"
        raise NotSupported(fqrn, f"{what}; use publisher: native, or let the index list all artifacts", path=path)


Progress = Callable[[Item, PrepareProgress], None]

log = logging.getLogger(__name__)

PROGRESS_EVERY = timedelta(seconds=2)
"""Interval at which the progress of a preparation is written to the ledger; a shorter one leaves no row."""


def prepare_batch(site: Site, attempt: Attempt, batch: Batch, *, progress: Progress | None = None) -> BatchOutcome:
    """Prepare every item that is not prepared yet; one that fails is recorded with its reason, and the others go on.

    Raises an outage that the attempt outlasts.
    """
    outcome = BatchOutcome()
    preparation: Preparation | None = None
    for item in batch.items:
        publication = records.publication(site.ledger, batch.key(item))
        try:
            if publication is None:
                raise PublicationUnknown(str(batch.key(item)))
            if publication.state is State.FAILED and publication.phase is not Phase.PREPARE:
                raise FailedBefore(item.name, publication.reason)
            if publication.state.good or publication.state in {State.PREPARED, State.PUBLISHING}:
                log.info("%s: %s already, %s", item.name, publication.state.value, publication.reason)
                outcome.done.append(publication)
                continue
            preparation = preparation or Preparation.begin(site, attempt, batch, progress)
            outcome.done.append(_prepare_one(preparation, item, publication))
        except Exception as error:
            if attempt.outlasts(error):
                raise
            # whatever is wrong with one artifact, the others go on
            outcome.failures[item.name] = error
            log.warning("%s: %s", item.name, error)
    return outcome


@dataclass(frozen=True, slots=True)
class Preparation:
    """Context in which an attempt prepares the items of a batch. ``seen`` was read before ``head``."""

    site: Site
    attempt: Attempt
    batch: Batch
    seen: Look
    head: Repository
    progress: Progress | None = None

    @classmethod
    def begin(cls, site: Site, attempt: Attempt, batch: Batch, progress: Progress | None = None) -> Preparation:
        """Read the repository's state as it is now. Raises what opening a repository raises."""
        # in this order: what a manifest read later preserves was not collected before
        seen = look(site.repository_store(batch.repository))
        return cls(site, attempt, batch, seen, site.head(batch.repository), progress)

    def changeset_of(self, item: Item, publication: Publication, lost: Collection[str] = ()) -> Changeset:
        """Make an item's changeset and keep it in the ledger.

        What an earlier revision preserves and what an interrupted try has sent is not sent again; unless it is
        condemned, damaged, or among the keys that are known to be ``lost``. For a repository with a publisher node the
        tree is packed on this machine instead, and sent when it is published.
        """
        now, dry_run = self.attempt.clock(), self.batch.dry_run
        if item.inherits is not None:
            return self._kept(
                rebased_changeset(self.site, self.head, self.seen, item, now=now, dry_run=dry_run)
            )  # fmt: skip
        fqrn, ledger = self.batch.repository, self.site.ledger
        settings = self.site.settings.repository(fqrn)
        damages = damage.of_repository(ledger, fqrn) if settings.server is None else ()
        then = partial(self.progress, item) if self.progress else None
        noted = _ProgressRecorder(ledger, publication, self.attempt, then)
        tree = TreeToPrepare(
            item.destination,
            opened(self.site, item, settings.limits),
            now,
            known_from=records.earlier_destinations(ledger, publication),
            damaged={*lost, *(found.key for found in damages)},
            limits=source_limits(settings.limits),
            progress=noted,
            dry_run=dry_run,
        )
        journal = journal_of(self.site, fqrn, self.seen, tree, item.source, item.sha256)
        with journal or nullcontext(), noted:
            changeset = self._kept(prepare_for(self.site, self.head, self.seen, tree, journal))
            self._mended(changeset, damages)
            if journal is not None:
                journal.remove()
        return changeset

    def _mended(self, changeset: Changeset, damages: Sequence[Damage]) -> None:
        """Take parts of the changeset off the list of damage: they were sent again."""
        if changeset.stored and damages:
            needed = objects_of(changeset, self.head.catalogs)
            sent = [found for found in damages if found.identity in needed]
            damage.look_again(self.site.ledger, changeset.repository, self.head.store, sent)

    def _kept(self, changeset: Changeset) -> Changeset:
        if changeset.stored:
            builds.save_changeset(self.site.ledger, builds.ChangesetRecord.of(changeset))
        return changeset


class _ProgressRecorder:
    """Keeps the ledger's progress of one preparation up to date, and passes it on. Use it as a context manager."""

    def __init__(
        self, ledger: Bind, publication: Publication, attempt: Attempt, then: Callable[[PrepareProgress], None] | None
    ) -> None:
        self._ledger = ledger
        self._publication = publication.id
        self._attempt = attempt
        self._then = then
        self._began = attempt.clock()
        self._noted = self._began

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        if self._noted > self._began:
            progress.forget(self._ledger, self._publication)

    def __call__(self, done: PrepareProgress) -> None:
        if self._then is not None:
            self._then(done)
        now = self._attempt.clock()
        if now - self._noted < PROGRESS_EVERY:
            return
        self._noted = now
        figures = (done.files, done.bytes, done.bytes_uploaded)
        seen = progress.NotedProgress(self._publication, self._attempt.number, self._began, *figures, now)
        progress.note(self._ledger, seen)


def _prepare_one(preparation: Preparation, item: Item, publication: Publication) -> Publication:
    attempt, batch, head = preparation.attempt, preparation.batch, preparation.head
    ledger, key = preparation.site.ledger, batch.key(item)
    attempt.move(ledger, key, Move(State.PREPARING, Phase.PREPARE, f"try {attempt.number}"))
    started = time.monotonic()
    try:
        changeset = preparation.changeset_of(item, publication)
        would = _would(head, batch, item, changeset) if batch.dry_run else ""
        if publication.artifact is not None:
            _require_ours(ledger, head, item, changeset)
    except Exception as error:
        if not attempt.outlasts(error):
            attempt.move(ledger, key, Move.failed(Phase.PREPARE, error))
        raise
    figures = figures_of(changeset, seconds=time.monotonic() - started)
    prepared = _said(changeset)
    if batch.dry_run:
        reason = f"dry run: {would}"
        return attempt.move(ledger, key, Move(State.SKIPPED, Phase.PREPARE, reason, figures, skip=Skip.DRY_RUN))
    log.info("%s: prepared %s", item.name, prepared)
    for note in changeset.notes:
        log.info("%s: %s", item.name, note)
    reason = "; ".join([f"prepared {prepared}", *changeset.notes])
    return attempt.move(ledger, key, Move(State.PREPARED, Phase.PREPARE, reason, figures))


def _require_ours(ledger: Bind, repository: Repository, item: Item, changeset: Changeset) -> None:
    """Raises DestinationError where a night would replace a tree that no run of this ledger published."""
    path, view = item.destination, repository.revision
    there = view.nested_at(path)
    if there is None or is_free(view, path, changeset.root):
        return
    if str(there.hash) not in records.known_hashes(ledger, repository.fqrn, path):
        what = f"holds the tree {there.hash}, which no run of this ledger published"
        raise DestinationError(path, f"{what}; look whose it is (nightshift repo list), remove it, and run again")


def _would(repository: Repository, batch: Batch, item: Item, changeset: Changeset) -> str:
    """Return what the real run would do with the changeset. Raises DestinationError, as it would."""
    path, view = item.destination, repository.revision
    if is_tree(view.nested_at(path), changeset.root):
        return f"revision {repository.manifest.revision} holds this very tree, nothing would be published"
    missing_directories(view, [path])  # raises if something is in the way
    if is_free(view, path, changeset.root):
        return f"would publish {_said(changeset)}"
    if not batch.replace:
        raise occupied(path)
    return f"would publish {_said(changeset)} and replace what is at its destination"


def figures_of(changeset: Changeset, *, seconds: float) -> Figures:
    """Return what the ledger keeps of a changeset beside the changeset itself."""
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


def _said(changeset: Changeset) -> str:
    return (
        f"{changeset.files} files, {changeset.bytes} bytes; {changeset.objects_new} objects new "
        f"({changeset.bytes_uploaded} bytes to upload), {changeset.objects_reused} known"
    )
