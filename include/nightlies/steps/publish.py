"""Hang the changesets of a batch at their destinations, each under its own short lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.coordination.generation import look
from include.cvmfs.errors import BaseChanged, NotReserved, ObjectsLost, PrepareAgain, RepositoryFrozen
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.sources.source import printable
from include.gateway.errors import BaseMoved, PathBusy, RepositoryDisabled
from include.nightlies.errors import NotApproved, PublicationUnknown
from include.nightlies.records import builds, damage
from include.nightlies.records import publications as records
from include.nightlies.records import undos as undone
from include.nightlies.records.damage import Damage
from include.nightlies.rules.dependencies import Readiness, readiness
from include.nightlies.rules.outages import is_outage
from include.nightlies.rules.publication import Figures, Publication
from include.nightlies.rules.states import Phase, Skip, State
from include.nightlies.steps.approve import require_approved, tree_digest_of
from include.nightlies.steps.errors import DependencyFailed, DependencyPending, FailedBefore
from include.nightlies.steps.prepare import figures_of, prepare_item
from include.nightlies.steps.provenance import vouch
from include.nightlies.steps.reserve import reserve_again
from include.nightlies.steps.values import Batch, BatchOutcome, Item
from include.publishers.base import Published, Publisher
from include.publishers.connect import Connections

Clock = Callable[[], datetime]
OnLease = Callable[[Callable[[], object]], None]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PublishOutcome(BatchOutcome):
    """`busy`: artifacts whose path somebody else holds, with the gateway's answer; call again for these."""

    busy: dict[str, PathBusy] = field(default_factory=dict)


def publish_batch(
    connections: Connections,
    batch: Batch,
    *,
    holder: str,
    try_number: int,
    clock: Clock,
    on_lease: OnLease | None = None,
    last_try: bool = True,
    outlast: bool = False,
) -> PublishOutcome:
    """Publish every item that is prepared and not published yet; neither a busy path nor a failure stops the others.

    An item whose dependencies are not published yet is among the busy ones; one with a dependency that failed is
    skipped with that reason, once there is no further try (`last_try`). Where the repository asks for approval, a
    changeset that was not approved fails, whoever prepared it.
    What was rebuilt since it was planned is skipped. A reservation that is missing is made again, under a lease of its
    own: it was taken away when the artifact had failed, and the artifact was mended since.
    With ``outlast`` an outage is raised and nothing of it is recorded: the caller waits, and calls again.
    Raises RepositoryFrozen, and RepositoryDisabled of a gateway that gives out no leases for now.
    `holder` is shown to others with the lease; `on_lease` is told how to give back the lease at hand.
    """
    outcome = PublishOutcome()
    publisher = connections.publisher(batch.repository)
    for item in batch.items:
        publication = records.publication(connections.ledger, batch.key(item))
        try:
            if publication is None:
                raise PublicationUnknown(str(batch.key(item)))
            if publication.state.good or publication.state is State.SKIPPED:
                log.info("%s: %s already, %s", item.name, publication.state.value, publication.reason)
                vouch(connections, batch, item, publication, holder=holder, now=clock())
                outcome.done.append(publication)
                continue
            if publication.changeset is None or _given_up(publication, try_number):
                raise FailedBefore(item.name, publication.reason)
            if (superseded := _superseded(connections, publication, try_number, clock)) is not None:
                outcome.done.append(superseded)
                continue
            if (taken_back := _taken_back(connections, publication, try_number, clock)) is not None:
                outcome.done.append(taken_back)
                continue
            blocked = _require_dependencies(connections, batch, item, try_number, clock, last_try=last_try)
            if blocked is not None:
                outcome.done.append(blocked)
                continue
            connections.require_thawed(batch.repository)
            done = _publish_one(
                connections, publisher, batch, item, publication, holder, try_number, clock, on_lease, outlast=outlast
            )
            outcome.done.append(done)
            vouch(connections, batch, item, done, holder=holder, now=clock())
        except (RepositoryFrozen, RepositoryDisabled):
            raise  # nothing is wrong with the artifact: whoever calls waits, and calls again
        except PathBusy as busy:
            outcome.busy[item.name] = busy
            log.info("%s: %s", item.name, busy)
        except Exception as error:
            if outlast and is_outage(error):
                raise
            # whatever is wrong with one artifact, the others go on
            outcome.failures[item.name] = error
            log.warning("%s: %s", item.name, error)
    return outcome


def give_up(connections: Connections, batch: Batch, name: str, *, why: str, try_number: int, clock: Clock) -> None:
    """Record that an artifact's path stayed busy for too long."""
    item = next(item for item in batch.items if item.name == name)
    records.move(
        connections.ledger, batch.key(item), State.FAILED, phase=Phase.PUBLISH, try_number=try_number, now=clock(),
        reason=why, error=PathBusy(why),
    )  # fmt: skip


def _superseded(
    connections: Connections, publication: Publication, try_number: int, clock: Clock
) -> Publication | None:
    """The publication, skipped, if its build was rebuilt since it was planned: a slower run would undo the rebuild."""
    listed = builds.rebuilt_as(connections.ledger, publication.artifact, publication.artifact_sha256)
    if listed is None:
        return None
    reason = (
        f"superseded: build {publication.build_id} lists it with another sum now, {listed}; a run that was planned "
        "since then installs it"
    )
    log.warning("%s: %s", publication.destination, reason)
    return records.move(
        connections.ledger, publication.key, State.SKIPPED, phase=Phase.PUBLISH, try_number=try_number, now=clock(),
        reason=reason, skip=Skip.SUPERSEDED,
    )  # fmt: skip


def _taken_back(
    connections: Connections, publication: Publication, try_number: int, clock: Clock
) -> Publication | None:
    """The publication, skipped, if somebody undid it since it was planned."""
    if publication.artifact is None:
        return None
    gone = undone.of_artifact(connections.ledger, publication.artifact, publication.artifact_sha256)
    if gone is None:
        return None
    return records.move(
        connections.ledger, publication.key, State.SKIPPED, phase=Phase.PUBLISH, try_number=try_number, now=clock(),
        reason=f"{gone}, while this run was under way. To install it again: nightshift nightly redo.",
        skip=Skip.UNDONE,
    )  # fmt: skip


def _require_dependencies(
    connections: Connections, batch: Batch, item: Item, try_number: int, clock: Clock, *, last_try: bool
) -> Publication | None:
    """None if the item may go in; its publication, skipped, if it never will. Raises what is to be tried later."""
    if not item.needs:
        return None
    planned = records.publications_of_run(connections.ledger, batch.run)
    verdict = readiness(item.needs, {f"{one.project}/{one.platform}": one for one in planned}, last_try=last_try)
    if verdict.readiness is Readiness.PENDING:
        raise DependencyPending(item.name, verdict.reason, repository=batch.repository, path=item.destination)
    if verdict.readiness is Readiness.LATER:
        raise DependencyFailed(item.name, verdict.reason)
    if verdict.readiness is Readiness.FREE:
        return None
    log.warning("%s: %s", item.name, verdict.reason)
    return records.move(
        connections.ledger, batch.key(item), State.SKIPPED, phase=Phase.PUBLISH, try_number=try_number, now=clock(),
        reason=verdict.reason, skip=Skip.BLOCKED, blocked_by=verdict.blocked_by,
    )  # fmt: skip


def _given_up(publication: Publication, try_number: int) -> bool:
    """Failed while it was prepared, or by this very try, which is called again only for what was busy."""
    if publication.state is not State.FAILED:
        return False
    return publication.phase is not Phase.PUBLISH or publication.publish_try >= try_number


def _publish_one(
    connections: Connections,
    publisher: Publisher,
    batch: Batch,
    item: Item,
    publication: Publication,
    holder: str,
    try_number: int,
    clock: Clock,
    on_lease: OnLease | None,
    *,
    outlast: bool,
) -> Publication:
    ledger, key = connections.ledger, batch.key(item)
    interrupted = publication.state is State.PUBLISHING and publication.publish_try < try_number

    def move(to: State, reason: str, figures: Figures | None = None, error: Exception | None = None) -> Publication:
        return records.move(
            ledger, key, to, phase=Phase.PUBLISH, try_number=try_number, now=clock(), reason=reason,
            figures=figures, error=error,
        )  # fmt: skip

    def hang(changeset: Changeset) -> Published:
        digest = tree_digest_of(batch.repository, item.destination, changeset.source_sha256, changeset.root)
        require_approved(connections, batch.run, batch.repository, item.name, digest)
        # written before anything is done: a process that outlived its task finds here that it was replaced
        move(State.PUBLISHING, f"try {try_number}")
        tag = NewTag(batch.tag, f"{item.destination} from {printable(item.source)}") if batch.tag else None

        def swap() -> Published:
            return publisher.publish(
                changeset, holder=holder, now=clock(), replace=batch.replace, tag=tag, on_lease=on_lease
            )

        try:
            return swap()
        except NotReserved as missing:
            # removed after the artifact had failed; it was mended since
            log.info("%s: %s", item.name, missing)
            reserve_again(connections, batch, item, holder=holder, clock=clock)
            return swap()

    again: Again | None = None
    try:
        changeset = _changeset(connections, publication)
        try:
            done = hang(changeset)
        except (PrepareAgain, BaseChanged, BaseMoved) as stale:
            if not _is_for_us(stale, publication):
                raise
            again = _prepared_again(connections, batch, item, publication, stale, clock)
            done = hang(again.changeset)
    except (PathBusy, RepositoryFrozen, RepositoryDisabled):
        raise
    except Exception as error:
        if outlast and is_outage(error):
            raise
        # what somebody is asked about next is what was prepared last
        newer = again is not None and isinstance(error, NotApproved)
        figures = figures_of(again.changeset, seconds=again.seconds) if again is not None and newer else None
        move(State.FAILED, str(error), figures, error)
        raise
    state, reason = _reached(done, interrupted=interrupted)
    if again is not None:
        changeset = again.changeset
        reason = f"{reason}; prepared again, since {again.why}"
    reason = "; ".join([reason, *changeset.notes])
    log.info("%s: %s, %s, lease held %.3f s", item.name, state.value, reason, done.lease_held_s)
    return move(state, reason, _figures(done, again))


def _is_for_us(stale: Exception, publication: Publication) -> bool:
    """Whether this try prepares the tree again: at once if objects are gone; if another publication came in between,
    only a later try than the one that was told so, and then what it derives from is what stands there now."""
    return isinstance(stale, PrepareAgain) or publication.code in {BaseChanged.code, BaseMoved.code}


@dataclass(frozen=True, slots=True)
class Again:
    """A tree that this step had to prepare once more, why, and how long that took."""

    changeset: Changeset
    why: str
    seconds: float


def _prepared_again(
    connections: Connections, batch: Batch, item: Item, publication: Publication, stale: Exception, clock: Clock
) -> Again:
    log.warning("%s: preparing it again: %s", item.name, stale)
    started = time.monotonic()
    lost: tuple[str, ...] = ()
    if isinstance(stale, ObjectsLost):
        lost = stale.keys
        found = [Damage(key, item.destination, "sent, acknowledged, and not in the store") for key in lost]
        damage.note(connections.ledger, batch.repository, found, now=clock())
    seen = look(connections.repository_store(batch.repository))  # before the manifest, as for any preparation
    repository = connections.head(batch.repository)
    changeset = prepare_item(connections, repository, seen, batch, item, publication, clock=clock, lost=lost)
    return Again(changeset, str(stale), time.monotonic() - started)


def _reached(done: Published, *, interrupted: bool) -> tuple[State, str]:
    if not done.unchanged:
        return State.PUBLISHED, f"in revision {done.revision}"
    if interrupted:
        return State.PUBLISHED, f"found in revision {done.revision}: an earlier try of this run had published it"
    return State.UNCHANGED, f"revision {done.revision} holds this very tree"


def _changeset(connections: Connections, publication: Publication) -> Changeset:
    """The publication's changeset, or a newer one of the same tree: an earlier try may have prepared it again."""
    ledger, repository, path = connections.ledger, publication.repository, publication.destination
    record = builds.changeset(ledger, publication.changeset or "")
    if record is None:
        raise FailedBefore(path, f"its changeset {publication.changeset} is not in the ledger.")
    newest = builds.latest_changeset(ledger, repository, path, record.source_sha256)
    if newest is not None and newest.root_hash == record.root_hash:
        record = newest
    return Changeset.parse(record.body)


def _figures(done: Published, again: Again | None) -> Figures:
    prepared = Figures() if again is None else figures_of(again.changeset, seconds=again.seconds)
    return replace(
        prepared,
        revision_before=done.revision_before,
        revision_after=done.revision,
        root_hash=str(done.root_hash),
        nested_hash=str(done.nested_hash) if done.nested_hash else None,
        lease_held_s=round(done.lease_held_s, 6),
        seconds={**prepared.seconds, **{phase: round(seconds, 6) for phase, seconds in done.phases.items()}},
    )
