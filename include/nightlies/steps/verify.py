"""Read back what a run published, as its readers do: through the public URL, with the public key only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from include.cvmfs.errors import CvmfsError, DestinationError
from include.cvmfs.repository import Repository
from include.gateway.errors import PathBusy
from include.nightlies import records
from include.nightlies.records import Publication
from include.nightlies.states import State
from include.nightlies.steps.errors import NotVerified
from include.nightlies.steps.values import Batch
from include.publishers.connect import Connections
from include.storage.errors import StoreError

Clock = Callable[[], datetime]
SAMPLE_FILES = 5
SAMPLE_BYTES = 64 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What was read of one destination: its entries, and of the files a sample with their hashes."""

    destination: str
    revision: int
    files: int
    sampled: int


def verify_run(connections: Connections, run: str, *, clock: Clock, sample: int = SAMPLE_FILES) -> tuple[ReadBack, ...]:
    """Walk every destination of the run that is published, and read a sample of its files.

    What reads back is noted in the ledger. Raises NotVerified with every problem once all were looked at.
    """
    good = [one for one in records.publications_of_run(connections.ledger, run) if one.state.good]
    problems: list[str] = []
    done: list[ReadBack] = []
    opened: dict[str, Repository] = {}
    for publication in good:
        try:
            if publication.repository not in opened:
                opened[publication.repository] = connections.repository(publication.repository)
            done.append(_read_back(opened[publication.repository], publication, sample))
        except (CvmfsError, StoreError) as error:
            problems.append(f"{publication.destination}: {error}")
            continue
        records.note_verified(connections.ledger, publication.key, now=clock())
    if problems:
        raise NotVerified(run, problems)
    log.info("read back %d destinations, %d files sampled", len(done), sum(one.sampled for one in done))
    return tuple(done)


def tidy_run(connections: Connections, batches: Sequence[Batch], *, owner: str, clock: Clock) -> tuple[str, ...]:
    """Take away the destinations that were reserved for artifacts that then failed: nothing of them stays to be seen.

    A path that is busy is left for the next run's; it is empty.
    """
    failed = [
        (batch, one)
        for batch in batches[:1]
        for one in records.publications_of_run(connections.ledger, batch.run)
        if one.state is State.FAILED and not batch.dry_run
    ]
    if not failed:
        return ()
    repository = connections.head(failed[0][0].repository)
    removed = []
    for batch, publication in failed:
        if not _is_reserved(repository, publication.destination):
            continue
        try:
            connections.publisher(batch.repository).remove(publication.destination, owner=owner, now=clock())
        except (PathBusy, DestinationError) as error:
            log.warning("%s stays reserved and empty: %s", publication.destination, error)
            continue
        removed.append(publication.destination)
        log.info("%s: taken away again, since its artifact failed", publication.destination)
    return tuple(removed)


def _is_reserved(repository: Repository, destination: str) -> bool:
    """Whether nothing but the marker of an empty nested catalog is there."""
    if repository.nested_at(destination) is None:
        return False
    return [entry.name for entry in repository.listing(destination)] == [".cvmfscatalog"]


def _read_back(repository: Repository, publication: Publication, sample: int) -> ReadBack:
    path = publication.destination
    reference = repository.nested_at(path)
    held = str(reference.hash) if reference is not None else "nothing"
    if held != publication.nested_hash:
        raise DestinationError(
            path, f"revision {repository.manifest.revision} holds {held}, {publication.nested_hash} was published"
        )
    files: list[tuple[str, int]] = []
    for here, entry in repository.walk(path):
        if entry.is_regular and not entry.external:
            files.append((here, entry.size))
    if publication.files is not None and len(files) != publication.files:
        raise DestinationError(path, f"has {len(files)} regular files where {publication.files} were published")
    sampled = spread(files, sample)
    read = 0
    for here, size in sampled:
        if read + size > SAMPLE_BYTES and read:
            break
        for block in repository.stream(here):
            read += len(block)
    return ReadBack(path, repository.manifest.revision, len(files), len(sampled))


def spread(files: Sequence[tuple[str, int]], sample: int) -> list[tuple[str, int]]:
    """At most `sample` of the files, evenly spread, the first and the last among them."""
    if len(files) <= sample:
        return list(files)
    if sample < 2:
        return list(files[:sample])
    return [files[index * (len(files) - 1) // (sample - 1)] for index in range(sample)]
