"""Create a build's skeleton: one short lease and one commit for all destinations of a run that are absent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from include.cvmfs.errors import DestinationError
from include.nightlies import records
from include.nightlies.records import PublicationKey
from include.nightlies.states import Phase, State
from include.nightlies.steps.errors import ReserveFailed
from include.nightlies.steps.values import Batch, all_items
from include.publishers.connect import Connections

Clock = Callable[[], datetime]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reservation:
    """What a reserve did. `refused` maps destinations that something is in the way of to the reason."""

    revision: int = 0
    created: tuple[str, ...] = ()
    lease_held_s: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)


def reserve_run(
    connections: Connections, batches: Sequence[Batch], *, owner: str, try_number: int, clock: Clock
) -> Reservation:
    """Reserve everything that the run still has to publish; nothing to create means no lease and no commit.

    A destination that cannot be one fails its own artifact, in the ledger, and the others are reserved. Raises
    PathBusy, and ReserveFailed when not one can be.
    """
    outcome = Reservation()
    if not batches or batches[0].dry_run:
        return outcome
    repository, nested = batches[0].repository, batches[0].nested
    wanted = []
    for batch, item in all_items(batches):
        publication = records.publication(connections.ledger, batch.key(item))
        # a batch that failed to be prepared has nothing to hang, and an empty directory would be seen
        if publication is not None and not publication.state.ended:
            wanted.append((item.destination, batch.key(item)))
    publisher = connections.publisher(repository)
    while wanted:
        try:
            done = publisher.reserve([path for path, _ in wanted], nested=nested, owner=owner, now=clock())
        except DestinationError as error:
            refused = [(path, key) for path, key in wanted if path == error.path]
            if not refused:
                raise
            for path, key in refused:
                outcome.refused[path] = str(error)
                _fail(connections, key, error, try_number, clock)
            wanted = [one for one in wanted if one not in refused]
            continue
        outcome.revision, outcome.created, outcome.lease_held_s = done.revision, done.created, done.lease_held_s
        log.info(
            "reserved %d directories in revision %d, lease held %.3f s",
            len(done.created), done.revision, done.lease_held_s,
        )  # fmt: skip
        return outcome
    if outcome.refused:
        raise ReserveFailed(outcome.refused)
    return outcome


def _fail(
    connections: Connections, key: PublicationKey, error: DestinationError, try_number: int, clock: Clock
) -> None:
    log.warning("%s", error)
    records.move(
        connections.ledger, key, State.FAILED, phase=Phase.PUBLISH, try_number=try_number, now=clock(),
        reason=str(error), error_class=type(error).__name__,
    )  # fmt: skip
