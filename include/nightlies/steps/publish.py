"""Reserve the destinations of a run in one commit, and hang changesets there, each under its own short lease."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.errors import (
    BaseChanged,
    CollectionRunning,
    DestinationError,
    NotReserved,
    ObjectsLost,
    PrepareAgain,
    RepositoryFrozen,
)
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.sources.source import printable
from include.errors import code_of
from include.gateway.errors import BaseMoved, PathBusy, RepositoryDisabled
from include.ledger.engine import Bind
from include.nightlies.errors import (
    DependencyFailed,
    DependencyPending,
    FailedBefore,
    NotApproved,
    PublicationUnknown,
    ReserveFailed,
)
from include.nightlies.records import builds, damage, publications as records, undos
from include.nightlies.records.damage import Damage
from include.nightlies.rules.dependencies import Readiness, readiness
from include.nightlies.rules.publication import Figures, Move, Phase, Publication, PublicationKey, Skip, State, Wait
from include.nightlies.steps.approve import require_approved, tree_digest_of
from include.nightlies.steps.prepare import Preparation, figures_of
from include.nightlies.steps.provenance import vouch
from include.nightlies.steps.values import Attempt, Batch, BatchOutcome, Item, all_items
from include.publishers.base import Published, Publisher, Reserved
from include.publishers.required_objects import missing_directories
from include.site.site import Site

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reservation:
    """Outcome of a reserve. `refused` maps destinations that something is in the way of to the reason."""

    revision: int = 0
    created: tuple[str, ...] = ()
    lease_held_s: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)


def reserve_run(site: Site, attempt: Attempt, batches: Sequence[Batch]) -> Reservation:
    """Reserve everything that the run still has to publish; nothing to create means no lease and no commit.

    A destination that cannot be one fails its own artifact, in the ledger, and the others are reserved. A dry run only
    looks, and fails the same ones. Raises PathBusy, and ReserveFailed when not one can be.
    """
    outcome = Reservation()
    if not batches:
        return outcome
    wanted = []
    planned = {row.key: row for row in records.publications_of_run(site.ledger, batches[0].run)}
    for batch, item in all_items(batches):
        publication = planned.get(batch.key(item))
        # what the plan settled or refused, and what an earlier try refused here, needs no place
        if publication is not None and not publication.state.ended:
            wanted.append((item.destination, batch.key(item)))
    if not wanted:
        return outcome
    first = batches[0]
    reserve = _looking(site, first) if first.dry_run else _reserving(site, attempt, first)
    while wanted:
        try:
            done = reserve([path for path, _ in wanted])
        except DestinationError as error:
            refused = [(path, key) for path, key in wanted if path == error.path]
            if not refused:
                raise
            for path, key in refused:
                outcome.refused[path] = str(error)
                log.warning("%s", error)
                attempt.move(site.ledger, key, Move.failed(Phase.PUBLISH, error))
            wanted = [destination for destination in wanted if destination not in refused]
            continue
        outcome.revision, outcome.created, outcome.lease_held_s = done.revision, done.created, done.lease_held_s
        if first.dry_run:
            log.info("dry run: nothing is in the way of %d destinations", len(wanted))
        else:
            log.info(
                "reserved %d directories in revision %d, lease held %.3f s",
                len(done.created), done.revision, done.lease_held_s,
            )  # fmt: skip
        return outcome
    if outcome.refused:
        raise ReserveFailed(outcome.refused)
    return outcome


def reserve_again(site: Site, attempt: Attempt, batch: Batch, item: Item) -> Reserved:
    """Reserve one destination whose reservation was taken away. Raises PathBusy, DestinationError, or what it meets."""
    done = _reserving(site, attempt, batch)([item.destination])
    log.info("%s: reserved again in revision %d, lease held %.3f s", item.name, done.revision, done.lease_held_s)
    return done


def _reserving(site: Site, attempt: Attempt, batch: Batch) -> Callable[[Sequence[str]], Reserved]:
    publisher = site.publisher(batch.repository)

    def reserve(paths: Sequence[str]) -> Reserved:
        def remember(directories: Sequence[str]) -> None:
            above = [path for path in directories if path not in paths]
            undos.note(site.ledger, batch.run, batch.repository, above, now=attempt.clock())

        return publisher.reserve(
            paths, nested=batch.nested, holder=attempt.holder, now=attempt.clock(), on_create=remember
        )

    return reserve


def _looking(site: Site, batch: Batch) -> Callable[[Sequence[str]], Reserved]:
    repository = site.head(batch.repository)
    view = repository.revision

    def look(paths: Sequence[str]) -> Reserved:
        missing_directories(view, paths)
        return Reserved(repository.manifest.revision, ())

    return look


@dataclass(slots=True)
class PublishOutcome(BatchOutcome):
    """`busy`: artifacts that have to wait for a path, for what they depend on, or for a collection; call again for
    these."""

    busy: dict[str, PathBusy | DependencyPending | CollectionRunning] = field(default_factory=dict)


def publish_batch(
    site: Site, attempt: Attempt, batch: Batch, *, ended: Mapping[str, str] = MappingProxyType({})
) -> PublishOutcome:
    """Publish every item that is prepared and not published yet; neither a busy path nor a failure stops the others.

    An item whose dependencies are not published yet is among the busy ones, and one that needs what a collection is
    about to delete. One with a dependency that failed is skipped with that reason, if this is the last try; at once, if
    the dependency is among `ended` and not in the repository (`readiness`). Skips artifacts that were rebuilt after
    planning. Where the repository asks for approval, a changeset that was not approved fails. A missing reservation is
    made again, under a lease of its own: it was taken away when the artifact had failed, which was mended since.
    Raises RepositoryFrozen, RepositoryDisabled of a gateway that gives out no leases for now, and an outage that the
    attempt outlasts.
    """
    outcome = PublishOutcome()
    waits: dict[PublicationKey, Wait | None] = dict.fromkeys(map(batch.key, batch.items))
    try:
        _publish_each(site, attempt, batch, ended, waits, outcome)
    except Exception as error:
        if isinstance(error, RepositoryFrozen | RepositoryDisabled) or attempt.outlasts(error):
            _note_wait(site, attempt, waits, error)
        raise
    return outcome


def _publish_each(
    site: Site, attempt: Attempt, batch: Batch, ended: Mapping[str, str], waits: dict[PublicationKey, Wait | None],
    outcome: PublishOutcome,
) -> None:  # fmt: skip
    publisher = site.publisher(batch.repository)
    planned = _planned(site.ledger, batch)
    for item in batch.items:
        key = batch.key(item)
        publication = records.publication(site.ledger, key)
        try:
            if publication is None:
                raise PublicationUnknown(str(key))
            waits[key] = Wait.of_reason(publication.reason)
            if publication.state.good or publication.state is State.SKIPPED:
                log.info("%s: %s already, %s", item.name, publication.state.value, publication.reason)
            elif publication.changeset is None or _given_up(publication, attempt.number):
                raise FailedBefore(item.name, publication.reason)
            elif skip := _overtaken(site.ledger, publication) or _blocked(item, publication, attempt, planned, ended):
                publication = attempt.move(site.ledger, publication.key, skip)
            else:
                site.require_thawed(batch.repository)
                publication = _Publishing(site, attempt, publisher, batch, item, publication).run()
            planned[item.name] = publication
            outcome.done.append(publication)
            vouch(site, attempt, batch, item, publication)
        except (RepositoryFrozen, RepositoryDisabled):
            raise  # nothing is wrong with the artifact: the caller waits, and calls again
        except (PathBusy, DependencyPending, CollectionRunning) as busy:
            outcome.busy[item.name] = busy
            _note_wait(site, attempt, {key: waits[key]}, busy)
            log.info("%s: %s", item.name, busy)
        except Exception as error:
            if attempt.outlasts(error):
                raise
            # whatever is wrong with one artifact, the others go on
            outcome.failures[item.name] = error
            planned = _planned(site.ledger, batch)
            log.warning("%s: %s", item.name, error)


def _note_wait(
    site: Site, attempt: Attempt, waits: Mapping[PublicationKey, Wait | None], holds: Exception | None
) -> None:
    what = None if holds is None else _what_holds(holds)
    records.note_wait(site.ledger, waits, what, try_number=attempt.number, now=attempt.clock())


def _what_holds(error: Exception) -> str:
    """Return what an artifact waits for, in the same words as long as it is the same."""
    match error:
        case PathBusy():
            holder = error.holder.hostname if error.holder else "an unknown holder"
            return f"the lease on {error.path or '/'}, held by {holder}"
        case DependencyPending():
            return error.reason
        case CollectionRunning():
            return f"the sweep of collection {error.number}"
        case RepositoryFrozen():
            return f"repository {error.fqrn}, which is {error.detail}"
        case RepositoryDisabled():
            return f"repository {error.repository}, which is disabled at its gateway"
    return f"an outage, {code_of(error)}"


def _planned(ledger: Bind, batch: Batch) -> dict[str, Publication]:
    """Return the publications of the run by `project/platform`; none where no item depends on another."""
    rows = records.publications_of_run(ledger, batch.run) if any(item.needs for item in batch.items) else ()
    return {f"{row.project}/{row.platform}": row for row in rows}


def give_up(ledger: Bind, attempt: Attempt, batch: Batch, busy: Mapping[str, Exception], name: str, why: str) -> None:
    """Record that an artifact had to wait for too long."""
    item = next(item for item in batch.items if item.name == name)
    attempt.move(ledger, batch.key(item), Move(State.FAILED, Phase.PUBLISH, why, error=busy[name]))


def _overtaken(ledger: Bind, publication: Publication) -> Move | None:
    """Return why it is skipped if its build was rebuilt since it was planned, as a slower run would undo the rebuild,
    or if it was undone."""
    if publication.artifact is None:
        return None
    listed = builds.rebuilt_as(ledger, publication.artifact, publication.artifact_sha256)
    if listed is not None:
        reason = (
            f"superseded: build {publication.build_id} lists it with another sum now, {listed}; a run that was planned "
            "since then installs it"
        )
        log.warning("%s: %s", publication.destination, reason)
        return Move(State.SKIPPED, Phase.PUBLISH, reason, skip=Skip.SUPERSEDED)
    gone = undos.of_artifact(ledger, publication.artifact, publication.artifact_sha256)
    if gone is None:
        return None
    redo = f"nightshift nightly redo --slot {publication.slot} --build {publication.build_id}"
    reason = f"{gone}, while this run was under way. To install it again: {redo}; then clear task plan with downstream."
    return Move(State.SKIPPED, Phase.PUBLISH, reason, skip=Skip.UNDONE)


def _blocked(
    item: Item, publication: Publication, attempt: Attempt, planned: Mapping[str, Publication], ended: Mapping[str, str]
) -> Move | None:
    """None if the item may go in, why it is skipped if it never will. Raises what is to be tried later."""
    verdict = readiness(item.needs, planned, last_try=attempt.last, ended=ended)
    if verdict.readiness is Readiness.PENDING:
        raise DependencyPending(
            item.name, verdict.reason, repository=publication.repository, path=publication.destination
        )
    if verdict.readiness is Readiness.LATER:
        raise DependencyFailed(item.name, verdict.reason)
    if verdict.readiness is Readiness.FREE:
        return None
    log.warning("%s: %s", item.name, verdict.reason)
    return Move(State.SKIPPED, Phase.PUBLISH, verdict.reason, skip=Skip.BLOCKED, blocked_by=verdict.blocked_by)


def _given_up(publication: Publication, try_number: int) -> bool:
    """Failed while it was prepared, or by this very try, which is called again only for what was busy."""
    if publication.state is not State.FAILED:
        return False
    return publication.phase is not Phase.PUBLISH or publication.publish_try >= try_number


@dataclass(slots=True)
class _Publishing:
    """Publishes one prepared item. `changeset`: the last one, `again`: why this try had to prepare it once more."""

    site: Site
    attempt: Attempt
    publisher: Publisher
    batch: Batch
    item: Item
    publication: Publication
    changeset: Changeset | None = None
    again: str = ""
    seconds: float = 0.0

    def run(self) -> Publication:
        """Publish it and record that. Raises what is to be tried later; what failed is recorded."""
        item, publication, began = self.item, self.publication, self.attempt.clock()
        try:
            done = self._hung_or_prepared_again()
        except (PathBusy, CollectionRunning, RepositoryFrozen, RepositoryDisabled):
            raise
        except Exception as error:
            if self.attempt.outlasts(error):
                raise
            # the next question is about what was prepared last
            figures = self._prepared() if self.again and isinstance(error, NotApproved) else None
            self.attempt.move(self.site.ledger, publication.key, Move.failed(Phase.PUBLISH, error, figures))
            raise
        interrupted = publication.state is State.PUBLISHING and publication.publish_try < self.attempt.number
        state, reason = _reached(done, interrupted=interrupted)
        if self.again:
            reason = f"{reason}; prepared again, since {self.again}"
        wait = Wait.of_reason(publication.reason)
        if wait is not None:
            reason = f"{reason}; {wait.ended(began)}"
        reason = "; ".join([reason, *(self.changeset.notes if self.changeset else ())])
        log.info("%s: %s, %s, lease held %.3f s", item.name, state.value, reason, done.lease_held_s)
        figures = _figures(done, self._prepared() if self.again else Figures())
        return self.attempt.move(self.site.ledger, publication.key, Move(state, Phase.PUBLISH, reason, figures))

    def _hung_or_prepared_again(self) -> Published:
        self.changeset = _changeset(self.site.ledger, self.publication)
        try:
            return self._hang(self.changeset)
        except (PrepareAgain, BaseChanged, BaseMoved) as stale:
            # at once if objects are gone; if another publication came in between, only a later try than the one that
            # failed because of that, which derives from what is there now
            if not isinstance(stale, PrepareAgain) and self.publication.code not in {BaseChanged.code, BaseMoved.code}:
                raise
            self.changeset = self._prepare_again(stale)
        return self._hang(self.changeset)

    def _hang(self, changeset: Changeset) -> Published:
        attempt, item, batch = self.attempt, self.item, self.batch
        digest = tree_digest_of(batch.repository, item.destination, changeset.source_sha256, changeset.root)
        require_approved(self.site, batch.run, batch.repository, item.name, digest)
        # written before anything is done: a process that outlived its task finds here that it was replaced
        attempt.move(
            self.site.ledger, self.publication.key, Move(State.PUBLISHING, Phase.PUBLISH, f"try {attempt.number}")
        )
        try:
            return self._swap(changeset)
        except NotReserved as missing:
            # removed after the artifact had failed; it was mended since
            log.info("%s: %s", item.name, missing)
            reserve_again(self.site, attempt, batch, item)
            return self._swap(changeset)

    def _swap(self, changeset: Changeset) -> Published:
        attempt, item, batch = self.attempt, self.item, self.batch
        tag = NewTag(batch.tag, f"{item.destination} from {printable(item.source)}") if batch.tag else None
        return self.publisher.publish(
            changeset, holder=attempt.holder, now=attempt.clock(), replace=batch.replace, tag=tag,
            on_lease=self._on_lease,
        )  # fmt: skip

    def _on_lease(self, drop: Callable[[], object]) -> None:
        if self.attempt.on_lease is not None:
            self.attempt.on_lease(drop)
        wait = Wait.of_reason(self.publication.reason)
        if wait is not None:
            _note_wait(self.site, self.attempt, {self.publication.key: wait}, None)

    def _prepare_again(self, stale: Exception) -> Changeset:
        log.warning("%s: preparing it again: %s", self.item.name, stale)
        started, where = time.monotonic(), self.publication
        lost = stale.keys if isinstance(stale, ObjectsLost) else ()
        if lost:
            damages = [Damage(key, where.destination, "sent, acknowledged, and not in the store") for key in lost]
            damage.note(self.site.ledger, where.repository, damages, now=self.attempt.clock())
        preparation = Preparation.begin(self.site, self.attempt, self.batch)
        changeset = preparation.changeset_of(self.item, self.publication, lost)
        self.again, self.seconds = str(stale), time.monotonic() - started
        return changeset

    def _prepared(self) -> Figures:
        return figures_of(self.changeset, seconds=self.seconds) if self.changeset else Figures()


def _reached(done: Published, *, interrupted: bool) -> tuple[State, str]:
    if not done.unchanged:
        return State.PUBLISHED, f"in revision {done.revision}"
    if interrupted:
        return State.PUBLISHED, f"found in revision {done.revision}: an earlier try of this run had published it"
    return State.UNCHANGED, f"revision {done.revision} holds this very tree"


def _changeset(ledger: Bind, publication: Publication) -> Changeset:
    """The publication's changeset, or a newer one of the same tree: an earlier try may have prepared it again."""
    repository, path = publication.repository, publication.destination
    record = builds.changeset(ledger, publication.changeset or "")
    if record is None:
        raise FailedBefore(path, f"its changeset {publication.changeset} is not in the ledger.")
    newest = builds.latest_changeset(ledger, repository, path, record.source_sha256)
    if newest is not None and newest.root_hash == record.root_hash:
        record = newest
    return Changeset.parse(record.body)


def _figures(done: Published, prepared: Figures) -> Figures:
    return replace(
        prepared,
        revision_before=done.revision_before,
        revision_after=done.revision,
        root_hash=str(done.root_hash),
        nested_hash=str(done.nested_hash) if done.nested_hash else None,
        lease_held_s=round(done.lease_held_s, 6),
        seconds={**prepared.seconds, **{phase: round(seconds, 6) for phase, seconds in done.phases.items()}},
    )
