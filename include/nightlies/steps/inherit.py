"""What a partial build takes from another one: as trees of its own that share every object, or as links."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from include.cvmfs.errors import DestinationError, RepositoryFrozen
from include.cvmfs.revision.view import View
from include.gateway.errors import PathBusy, RepositoryDisabled
from include.nightlies.errors import NotApproved, PublicationUnknown
from include.nightlies.records import publications as records
from include.nightlies.rules.approval import link_digest
from include.nightlies.rules.links import resolved
from include.nightlies.rules.outages import is_outage
from include.nightlies.rules.publication import Figures, Publication
from include.nightlies.rules.states import Phase, Skip, State
from include.nightlies.steps.approve import require_approved
from include.nightlies.steps.inherited_changeset import require_native
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.provenance import vouch
from include.nightlies.steps.publish import OnLease, PublishOutcome, publish_batch
from include.nightlies.steps.reserve import reserve_run
from include.nightlies.steps.set_links import set_links
from include.nightlies.steps.values import Batch, BatchOutcome, Item
from include.publishers.connect import Connections
from include.publishers.single_changes import contents_of

Clock = Callable[[], datetime]

_PREPARE = ((State.PREPARING, Phase.PREPARE), (State.PREPARED, Phase.PREPARE))
_PUBLISH = ((State.PUBLISHING, Phase.PUBLISH),)

log = logging.getLogger(__name__)


def prepare_inherited(
    connections: Connections, batch: Batch, *, try_number: int, clock: Clock, outlast: bool = False
) -> BatchOutcome:
    """What there is to do before somebody can be asked for approval: trees become changesets; links wait as they are.

    One that fails is recorded with its reason and stops no other; with ``outlast`` an outage is raised instead.
    """
    trees, linked = _parted(batch)
    outcome = prepare_batch(connections, trees, try_number=try_number, clock=clock, outlast=outlast)
    if not batch.dry_run:
        for item in linked.items:
            found = records.publication(connections.ledger, batch.key(item))
            if found is not None and found.state in (State.PLANNED, State.PREPARING):
                _steps(connections, batch, item, _PREPARE, try_number, clock)
    return outcome


def inherit_batch(
    connections: Connections,
    batch: Batch,
    *,
    holder: str,
    try_number: int,
    clock: Clock,
    on_lease: OnLease | None = None,
    prepared: bool = False,
    outlast: bool = False,
) -> PublishOutcome:
    """Take everything of the batch; neither a busy path nor a failure stops the others.

    `prepared`: `prepare_inherited` did its part, and somebody may have been asked since. A tree's catalogs are written
    before any lease, and it goes in like any other. Links are set in one revision where that is possible. Raises
    PathBusy if the places cannot be reserved yet, and with ``outlast`` an outage, of which nothing is recorded.
    """
    trees, linked = _parted(batch)
    outcome = PublishOutcome()
    if trees.items:
        made = BatchOutcome()
        if not prepared:
            made = prepare_batch(connections, trees, try_number=try_number, clock=clock, outlast=outlast)
        outcome.failures |= made.failures
        if batch.dry_run:
            outcome.done += made.done
        else:
            reserve_run(connections, [trees], holder=holder, try_number=try_number, clock=clock)
            good = replace(trees, items=tuple(one for one in trees.items if one.name not in made.failures))
            published = publish_batch(
                connections, good, holder=holder, try_number=try_number, clock=clock, on_lease=on_lease, outlast=outlast
            )
            outcome.done += published.done
            outcome.failures |= published.failures
            outcome.busy |= published.busy
    if linked.items:
        _link(connections, linked, outcome, holder, try_number, clock, outlast=outlast)
    return outcome


def _parted(batch: Batch) -> tuple[Batch, Batch]:
    """The trees, and what becomes links."""
    trees = tuple(item for item in batch.items if not item.linked)
    return replace(batch, items=trees), replace(batch, items=tuple(item for item in batch.items if item.linked))


def _link(
    connections: Connections,
    batch: Batch,
    outcome: PublishOutcome,
    holder: str,
    try_number: int,
    clock: Clock,
    *,
    outlast: bool,
) -> None:
    ledger = connections.ledger
    items: dict[str, Item] = {}
    for item in batch.items:
        found = records.publication(ledger, batch.key(item))
        if found is not None and (found.state.good or found.state is State.SKIPPED):
            vouch(connections, batch, item, found, holder=holder, now=clock())
            outcome.done.append(found)
        else:
            items[item.destination] = item
    refused: dict[str, Exception] = {}

    def wanted(view: View, places: Sequence[str]) -> Mapping[str, str]:
        targets = {}
        for place in places:
            source = items[place].inherits or ""
            entry, there = view.lookup(place), view.nested_at(source)
            if there is None:
                refused[place] = DestinationError(source, "nothing stands there (any more) that a link could lead to")
            elif (unasked := _not_approved(connections, batch, items[place], str(there.hash))) is not None:
                refused[place] = unasked
            elif entry is not None and not entry.is_symlink:
                refused[place] = DestinationError(place, "something that is no link stands there; remove it first")
            elif entry is None or resolved(place, entry.symlink) != source:
                targets[place] = source
        return targets

    try:
        for place in items:
            require_native(connections, batch.repository, place)
        if batch.dry_run:
            head = connections.head(batch.repository)
            wanted(View(head.catalogs, head.manifest.root), list(items))
        else:
            connections.require_thawed(batch.repository)
            _begin(connections, replace(batch, items=tuple(items.values())), try_number, clock)
            set_links(
                connections, batch.repository, list(items), wanted,
                beside="", holder=holder, now=clock(), nested=batch.nested,
            )  # fmt: skip
    except PathBusy as busy:
        outcome.busy |= {item.name: busy for item in items.values()}
        return
    except (RepositoryFrozen, RepositoryDisabled):
        raise
    except Exception as error:
        if outlast and is_outage(error):
            raise
        # it is recorded with each, and the run goes on with its own artifacts
        refused |= dict.fromkeys(items, error)
    for place, item in items.items():
        try:
            done = _settled(connections, batch, item, refused.get(place), try_number, clock)
            outcome.done.append(done)
            vouch(connections, batch, item, done, holder=holder, now=clock())
        except Exception as error:  # noqa: BLE001 - as for artifacts of the build's own
            outcome.failures[item.name] = error
            log.warning("%s: %s", item.name, error)


def _begin(connections: Connections, batch: Batch, try_number: int, clock: Clock) -> None:
    """Record that the links are under way, as any tree is that is prepared and published."""
    for item in batch.items:
        found = records.publication(connections.ledger, batch.key(item))
        if found is None:
            raise PublicationUnknown(str(batch.key(item)))
        if found.state not in (State.PREPARED, State.PUBLISHING):
            _steps(connections, batch, item, _PREPARE, try_number, clock)
        _steps(connections, batch, item, _PUBLISH, try_number, clock)


def _steps(
    connections: Connections,
    batch: Batch,
    item: Item,
    steps: Sequence[tuple[State, Phase]],
    try_number: int,
    clock: Clock,
) -> None:
    for state, phase in steps:
        records.move(
            connections.ledger, batch.key(item), state, phase=phase, try_number=try_number, now=clock(),
            reason=f"a link to {item.inherits}, try {try_number}",
        )  # fmt: skip


def _not_approved(connections: Connections, batch: Batch, item: Item, root: str) -> NotApproved | None:
    """Why this link must not be set to the tree that stands there now; None if it may be."""
    if batch.dry_run:
        return None
    digest = link_digest(batch.repository, item.destination, target=item.inherits or "", root=root)
    try:
        require_approved(connections, batch.run, batch.repository, item.name, digest)
    except NotApproved as error:
        return error
    return None


def _settled(
    connections: Connections, batch: Batch, item: Item, fault: Exception | None, try_number: int, clock: Clock
) -> Publication:
    key, phase = batch.key(item), Phase.PREPARE if batch.dry_run else Phase.PUBLISH

    def move(
        to: State,
        reason: str,
        figures: Figures | None = None,
        error: Exception | None = None,
        skip: Skip | None = None,
    ) -> Publication:
        return records.move(
            connections.ledger, key, to, phase=phase, try_number=try_number, now=clock(), reason=reason,
            figures=figures, error=error, skip=skip,
        )  # fmt: skip

    if fault is not None:
        move(State.FAILED, str(fault), error=fault)
        raise fault
    if batch.dry_run:
        return move(State.SKIPPED, f"dry run: would be a link to {item.inherits}", skip=Skip.DRY_RUN)
    head = connections.head(batch.repository)
    source = item.inherits or ""
    there = head.nested_at(source)
    inside = contents_of(head, source)
    figures = Figures(
        revision_after=head.manifest.revision, root_hash=str(head.manifest.root),
        nested_hash=str(there.hash) if there else None, files=inside.files, bytes=inside.bytes,
        objects_new=0, bytes_uploaded=0,
    )  # fmt: skip
    return move(State.PUBLISHED, f"inherited: a link to {source}", figures)
