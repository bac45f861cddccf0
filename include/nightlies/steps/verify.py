"""Read back what a run published, as its readers do: through the public URL, with the public key only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from include.cvmfs.errors import CommitError, CvmfsError, DestinationError, ObjectError
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.paths import is_below
from include.cvmfs.revision.repository import Repository
from include.gateway.errors import CommitFailed, PathBusy
from include.ledger.engine import Bind
from include.nightlies.errors import NotVerified
from include.nightlies.records import builds, damage, publications as records, undos as created
from include.nightlies.records.damage import Damage
from include.nightlies.rules.publication import Publication, State, standing
from include.nightlies.steps.values import Attempt, Batch
from include.publishers.errors import PublisherError
from include.site.site import Site
from include.storage.errors import StoreError

T = TypeVar("T")
SAMPLE_FILES = 5
SAMPLE_BYTES = 64 << 20
AT_ONCE = 8
"""Destinations that are read at the same time: most of it is waiting for the server."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Result of reading a destination: its entries, and of the files a sample with their hashes."""

    destination: str
    revision: int
    files: int
    sampled: int


@dataclass(frozen=True, slots=True)
class _Reader:
    """A repository as readers see it, and what of its objects was read already: platforms have most files in common."""

    repository: Repository
    read: set[ObjectHash] = field(default_factory=set)


def verify_run(site: Site, attempt: Attempt, *, sample: int = SAMPLE_FILES) -> tuple[ReadBack, ...]:
    """Walk every destination of the run that is published, and read a sample of its files, each object once.

    What reads back is noted in the ledger, and so are objects that do not. Raises NotVerified with every problem once
    all were checked; an outage that the attempt outlasts as it is, and then nothing is noted as read.
    """
    good = [
        publication for publication in records.publications_of_run(site.ledger, attempt.run) if publication.state.good
    ]
    problems: list[str] = []
    done: list[ReadBack] = []
    read: list[Publication] = []
    readers: dict[str, _Reader | Exception] = {}
    for name in {publication.repository for publication in good}:
        try:
            readers[name] = _Reader(site.repository(name))
        except (CvmfsError, StoreError) as error:
            readers[name] = error

    def look(publication: Publication) -> ReadBack | Exception:
        reader = readers[publication.repository]
        try:
            return reader if isinstance(reader, Exception) else _read_back(reader, publication, sample)
        except (CvmfsError, StoreError) as error:
            return error

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verify") as threads:
        for publication, found in zip(good, threads.map(look, good), strict=True):
            if isinstance(found, Exception) and attempt.outlasts(found):
                raise found
            if isinstance(found, ReadBack):
                done.append(found)
                read.append(publication)
                continue
            problems.append(f"{publication.destination}: {found}")
            if isinstance(found, ObjectError):
                lost = Damage(found.key, publication.destination, str(found))
                damage.note(site.ledger, publication.repository, [lost], now=attempt.clock())
    records.note_verified(site.ledger, [publication.key for publication in read], now=attempt.clock())
    if problems:
        raise NotVerified(attempt.run, problems)
    log.info("read back %d destinations, %d files sampled", len(done), sum(verified.sampled for verified in done))
    return tuple(done)


def tidy_run(site: Site, attempt: Attempt, batches: Sequence[Batch]) -> tuple[str, ...]:
    """Take away what was reserved for artifacts that were not published, so that nothing of them stays visible.

    Directories above go with the last of them, if this run created them or they are the build's own. What another run
    still has to publish stays reserved for it, and that run tidies in its turn. One lease and one commit for all. If a
    path is busy they are left as they are, empty; the next run that installs them finds them reserved. Raises
    RepositoryFrozen, and RepositoryDisabled of a gateway that gives out no leases for now.
    """
    if not batches or batches[0].dry_run:
        return ()
    batch = batches[0]
    planned = records.publications_of_run(site.ledger, batch.run)
    # all tasks before this one have ended: what is under way in the ledger was given up with its task
    lost = [
        publication.destination
        for publication in planned
        if not publication.state.good and not _is_for_another(site.ledger, publication)
    ]
    above = created.of_run(site.ledger, batch.run, batch.repository)
    for path, other in records.open_elsewhere(site.ledger, batch.run, batch.repository, lost).items():
        log.info("%s: reservation kept for run %s", path, other)
        lost.remove(path)
        inherited = [directory for directory in above if is_below(path, directory)]
        created.note(site.ledger, other, batch.repository, inherited, now=attempt.clock())
    if not lost:
        created.forget(site.ledger, batch.run, batch.repository)
        return ()
    floor = batch.nested[-1] if batch.nested else None
    try:
        publisher = site.publisher(batch.repository)
        done = publisher.release(lost, floor=floor, created=above, holder=attempt.holder, now=attempt.clock())
    except (PathBusy, DestinationError, CommitError, CommitFailed, PublisherError) as error:
        log.warning("what was reserved and stays empty is left for the next run: %s", error)
        return ()
    created.forget(site.ledger, batch.run, batch.repository)
    for path in done.removed:
        log.info("%s: taken away again, since nothing of it could be installed", path)
    return done.removed


def _is_for_another(ledger: Bind, publication: Publication) -> bool:
    """Tell whether another run installs there: skipped, because the build lists it with another sum since it was
    planned."""
    skipped = publication.state is State.SKIPPED
    return skipped and builds.rebuilt_as(ledger, publication.artifact, publication.artifact_sha256) is not None


def _read_back(reader: _Reader, publication: Publication, sample: int) -> ReadBack:
    repository, path = reader.repository, publication.destination
    there = standing(repository.revision, path)
    held = there.hash if there is not None else "nothing"
    if held != publication.nested_hash:
        raise DestinationError(
            path, f"revision {repository.manifest.revision} holds {held}, {publication.nested_hash} was published"
        )
    files: Spread[tuple[str, Dirent]] = Spread(sample)
    for here, entry in repository.revision.walk(there.path if there is not None else path):
        if entry.is_regular and not entry.external:
            files.add((here, entry))
    if publication.files is not None and files.seen != publication.files:
        raise DestinationError(path, f"has {files.seen} regular files where {publication.files} were published")
    sampled = files.chosen()
    read = 0
    for here, entry in sampled:
        if read + entry.size > SAMPLE_BYTES and read:
            break
        if entry.hash in reader.read and not entry.chunked:
            continue
        for block in repository.revision.stream(here):
            read += len(block)
        if entry.hash is not None and not entry.chunked:
            reader.read.add(entry.hash)  # only what was read to its end, and so verified
    return ReadBack(path, repository.manifest.revision, files.seen, len(sampled))


class Spread(Generic[T]):
    """Chooses at most ``sample`` of items that pass by, spread over all, the first and the last among them.

    No more than ``2 * sample + 2`` are held at any time, whatever their number.
    """

    def __init__(self, sample: int) -> None:
        self.seen = 0
        self._sample = sample
        self._step = 1  # every so many items one is held
        self._held: list[T] = []
        self._last: list[T] = []

    def add(self, item: T) -> None:
        if self.seen % self._step == 0:
            self._held.append(item)
            if len(self._held) > 2 * self._sample:
                del self._held[1::2]
                self._step *= 2
        self._last = [item]
        self.seen += 1

    def chosen(self) -> list[T]:
        if self._sample < 2:
            return self._held[: self._sample]
        held = self._held if (self.seen - 1) % self._step == 0 else self._held + self._last
        if len(held) <= self._sample:
            return held
        return [held[index * (len(held) - 1) // (self._sample - 1)] for index in range(self._sample)]
