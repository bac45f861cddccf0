"""Artifacts that a partial build takes from another one: as trees of its own that share every object, or as links."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from include.cvmfs.errors import CollectionRunning, DestinationError, RepositoryFrozen
from include.cvmfs.format.paths import link_target
from include.cvmfs.revision.revision import Revision
from include.gateway.errors import PathBusy, RepositoryDisabled
from include.ledger.engine import Bind
from include.nightlies.errors import NotApproved, PublicationUnknown
from include.nightlies.records import publications as records
from include.nightlies.rules.approval import link_digest
from include.nightlies.rules.publication import Figures, Move, Phase, Publication, Skip, State
from include.nightlies.steps.approve import require_approved
from include.nightlies.steps.links import LinkChange, set_links
from include.nightlies.steps.prepare import prepare_batch, require_native
from include.nightlies.steps.provenance import vouch
from include.nightlies.steps.publish import PublishOutcome, publish_batch, reserve_run
from include.nightlies.steps.values import Attempt, Batch, BatchOutcome, Item
from include.site.changes import contents_of
from include.site.site import Site

_PREPARE = ((State.PREPARING, Phase.PREPARE), (State.PREPARED, Phase.PREPARE))
_PUBLISH = ((State.PUBLISHING, Phase.PUBLISH),)

log = logging.getLogger(__name__)


def prepare_inherited(site: Site, attempt: Attempt, batch: Batch) -> BatchOutcome:
    """Return what there is to do before approval can be asked for: trees become changesets; links wait as they are.

    One that fails is recorded with its reason and stops no other; an outage that the attempt outlasts is raised.
    """
    trees, linked = _parted(batch)
    outcome = prepare_batch(site, attempt, trees)
    if not batch.dry_run:
        for item in linked.items:
            found = records.publication(site.ledger, batch.key(item))
            if found is not None and found.state in (State.PLANNED, State.PREPARING):
                _move(site.ledger, attempt, batch, item, _PREPARE)
    return outcome


def inherit_batch(site: Site, attempt: Attempt, batch: Batch, *, prepared: bool = False) -> PublishOutcome:
    """Take everything of the batch; neither a busy path nor a failure stops the others.

    `prepared`: `prepare_inherited` did its part, and approval may be asked for since. A tree's catalogs are written
    before any lease, and it goes in like any other. Links are set in one revision where that is possible. Raises
    PathBusy and CollectionRunning if the places cannot be reserved yet, and an outage that the attempt outlasts.
    """
    trees, linked = _parted(batch)
    outcome = PublishOutcome()
    if trees.items:
        made = BatchOutcome()
        if not prepared:
            made = prepare_batch(site, attempt, trees)
        outcome.failures |= made.failures
        if batch.dry_run:
            outcome.done += made.done
        else:
            reserve_run(site, attempt, [trees])
            good = replace(trees, items=tuple(item for item in trees.items if item.name not in made.failures))
            published = publish_batch(site, attempt, good)
            outcome.done += published.done
            outcome.failures |= published.failures
            outcome.busy |= published.busy
    if linked.items:
        _link(site, attempt, linked, outcome)
    return outcome


def _parted(batch: Batch) -> tuple[Batch, Batch]:
    """The trees, and what becomes links."""
    trees = tuple(item for item in batch.items if not item.linked)
    return replace(batch, items=trees), replace(batch, items=tuple(item for item in batch.items if item.linked))


def _link(site: Site, attempt: Attempt, batch: Batch, outcome: PublishOutcome) -> None:
    ledger = site.ledger
    items: dict[str, Item] = {}
    for item in batch.items:
        found = records.publication(ledger, batch.key(item))
        if found is not None and (found.state.good or found.state is State.SKIPPED):
            vouch(site, attempt, batch, item, found)
            outcome.done.append(found)
        else:
            items[item.destination] = item
    refused: dict[str, Exception] = {}

    def wanted(view: Revision, places: Sequence[str]) -> Mapping[str, str]:
        targets = {}
        for place in places:
            source = items[place].inherits or ""
            entry, there = view.lookup(place), view.nested_at(source)
            if there is None:
                refused[place] = DestinationError(source, "the path does not exist; a link cannot lead there")
            elif (unasked := _not_approved(site, batch, items[place], str(there.hash))) is not None:
                refused[place] = unasked
            elif entry is not None and not entry.is_symlink:
                refused[place] = DestinationError(place, "the path exists and is no link; remove it first")
            elif entry is None or link_target(place, entry.symlink) != source:
                targets[place] = source
        return targets

    try:
        for place in items:
            require_native(site, batch.repository, place)
        if batch.dry_run:
            head = site.head(batch.repository)
            wanted(head.revision, list(items))
        else:
            site.require_thawed(batch.repository)
            _begin(ledger, attempt, replace(batch, items=tuple(items.values())))
            set_links(site, attempt, batch.repository, LinkChange(list(items), wanted, nested=batch.nested))
    except (PathBusy, CollectionRunning) as busy:
        outcome.busy |= {item.name: busy for item in items.values()}
        return
    except (RepositoryFrozen, RepositoryDisabled):
        raise
    except Exception as error:
        if attempt.outlasts(error):
            raise
        # it is recorded with each, and the run goes on with its own artifacts
        refused |= dict.fromkeys(items, error)
    for place, item in items.items():
        try:
            done = _settled(site, attempt, batch, item, refused.get(place))
            outcome.done.append(done)
            vouch(site, attempt, batch, item, done)
        except Exception as error:  # noqa: BLE001 - as for artifacts of the build's own
            outcome.failures[item.name] = error
            log.warning("%s: %s", item.name, error)


def _begin(ledger: Bind, attempt: Attempt, batch: Batch) -> None:
    """Record that the links are under way, as any tree is that is prepared and published."""
    for item in batch.items:
        found = records.publication(ledger, batch.key(item))
        if found is None:
            raise PublicationUnknown(str(batch.key(item)))
        if found.state not in (State.PREPARED, State.PUBLISHING):
            _move(ledger, attempt, batch, item, _PREPARE)
        _move(ledger, attempt, batch, item, _PUBLISH)


def _move(ledger: Bind, attempt: Attempt, batch: Batch, item: Item, steps: Sequence[tuple[State, Phase]]) -> None:
    for state, phase in steps:
        reason = f"a link to {item.inherits}, try {attempt.number}"
        attempt.move(ledger, batch.key(item), Move(state, phase, reason))


def _not_approved(site: Site, batch: Batch, item: Item, root: str) -> NotApproved | None:
    """Return why this link must not be set to the tree that is there now; None if it may be."""
    if batch.dry_run:
        return None
    digest = link_digest(batch.repository, item.destination, target=item.inherits or "", root=root)
    try:
        require_approved(site, batch.run, batch.repository, item.name, digest)
    except NotApproved as error:
        return error
    return None


def _settled(site: Site, attempt: Attempt, batch: Batch, item: Item, fault: Exception | None) -> Publication:
    ledger, key, phase = site.ledger, batch.key(item), Phase.PREPARE if batch.dry_run else Phase.PUBLISH
    if fault is not None:
        attempt.move(ledger, key, Move.failed(phase, fault))
        raise fault
    if batch.dry_run:
        reason = f"dry run: would be a link to {item.inherits}"
        return attempt.move(ledger, key, Move(State.SKIPPED, phase, reason, skip=Skip.DRY_RUN))
    head = site.head(batch.repository)
    source = item.inherits or ""
    there = head.revision.nested_at(source)
    inside = contents_of(head.revision, source)
    figures = Figures(
        revision_after=head.manifest.revision, root_hash=str(head.manifest.root),
        nested_hash=str(there.hash) if there else None, files=inside.files, bytes=inside.bytes,
        objects_new=0, bytes_uploaded=0,
    )  # fmt: skip
    return attempt.move(ledger, key, Move(State.PUBLISHED, phase, f"inherited: a link to {source}", figures))
