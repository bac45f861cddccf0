"""Read back what a run published, as its readers do: through the public URL, with the public key only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from include.cvmfs.errors import CommitError, CvmfsError, DestinationError, ObjectError, RepositoryFrozen
from include.cvmfs.repository import Repository
from include.gateway.errors import CommitFailed, PathBusy
from include.nightlies import created, damage, records
from include.nightlies.damage import Damage
from include.nightlies.records import Publication
from include.nightlies.standing import standing
from include.nightlies.states import State
from include.nightlies.steps.errors import NotVerified
from include.nightlies.steps.values import Batch
from include.publishers.connect import Connections
from include.publishers.errors import PublisherError
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

    What reads back is noted in the ledger, and so are objects that do not. Raises NotVerified with every problem once
    all were looked at.
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
            if isinstance(error, ObjectError):
                found = Damage(error.key, publication.destination, str(error))
                damage.note(connections.ledger, publication.repository, [found], now=clock())
            continue
        records.note_verified(connections.ledger, publication.key, now=clock())
    if problems:
        raise NotVerified(run, problems)
    log.info("read back %d destinations, %d files sampled", len(done), sum(one.sampled for one in done))
    return tuple(done)


def tidy_run(connections: Connections, batches: Sequence[Batch], *, owner: str, clock: Clock) -> tuple[str, ...]:
    """Take away what was reserved for artifacts that came to nothing, so that nothing of them stays to be seen.

    Directories above go with the last of them, if this run created them or they are the build's own. One lease and one
    commit for all. If a path is busy they are left as they are, empty; the next run that installs them finds them
    reserved.
    """
    if not batches or batches[0].dry_run:
        return ()
    batch = batches[0]
    planned = records.publications_of_run(connections.ledger, batch.run)
    # all tasks before this one have ended: what is under way in the ledger was given up with its task
    lost = [one.destination for one in planned if not one.state.good and one.state is not State.SKIPPED]
    if not lost:
        created.forget(connections.ledger, batch.run, batch.repository)
        return ()
    above = created.of_run(connections.ledger, batch.run, batch.repository)
    floor = batch.nested[-1] if batch.nested else None
    try:
        publisher = connections.publisher(batch.repository)
        done = publisher.release(lost, floor=floor, created=above, owner=owner, now=clock())
    except (PathBusy, RepositoryFrozen, DestinationError, CommitError, CommitFailed, PublisherError) as error:
        log.warning("what was reserved and stays empty is left for the next run: %s", error)
        return ()
    created.forget(connections.ledger, batch.run, batch.repository)
    for path in done.removed:
        log.info("%s: taken away again, since nothing of it could be installed", path)
    return done.removed


def _read_back(repository: Repository, publication: Publication, sample: int) -> ReadBack:
    path = publication.destination
    there = standing(repository, path)
    held = there.hash if there is not None else "nothing"
    if held != publication.nested_hash:
        raise DestinationError(
            path, f"revision {repository.manifest.revision} holds {held}, {publication.nested_hash} was published"
        )
    files: list[tuple[str, int]] = []
    for here, entry in repository.walk(there.path if there is not None else path):
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
