"""Create a build's skeleton: one short lease and one commit for all destinations of a run that are absent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from include.cvmfs.errors import DestinationError
from include.nightlies.errors import ReserveFailed
from include.nightlies.records import publications as records, undos as created
from include.nightlies.rules.publication import Move
from include.nightlies.rules.states import Phase
from include.nightlies.steps.values import Attempt, Batch, Item, all_items
from include.publishers.base import Reserved
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
            created.note(site.ledger, batch.run, batch.repository, above, now=attempt.clock())

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
