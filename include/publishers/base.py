"""The interface of every publisher: its calls, its options to prepare, and its report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.errors import FormatError, RepositoryError
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.objects import Compressor
from include.cvmfs.ingest.autocatalog import Cuts, Weights
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.chunker import ChunkLimits
from include.cvmfs.ingest.prepare import DEFAULTS, PrepareOptions
from include.cvmfs.ingest.spool import SpecialBits, Specials
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.dirtab import NAME, Dirtab
from include.cvmfs.sources.source import IdMap, OwnerMap
from include.settings.prepare import ChunkSizes, Prepare

DATA_CHUNKS = ChunkLimits(48 << 20, 56 << 20, 64 << 20)
"""The profile `data`: few large objects, as a shared cache and its file system bear them best."""
NO_NANOSECONDS = (
    "was not created for nanoseconds (its catalogs have {}); remove `prepare.mtime_ns`, or create another repository "
    "with: nightshift repo create --mtime-ns"
)


def tree_options(settings: Prepare, repository: Repository) -> PrepareOptions:
    """Options for metadata and catalogs; the rest is the caller's. ``repository``: the current revision.

    New objects and catalogs are hashed and laid out as those that are there. Raises FormatError for an owner map or a
    dirtab that cannot be read, RepositoryError for nanoseconds in a repository that cannot hold them.
    """
    layout = repository.revision.root.layout
    if settings.mtime_ns and not holds_nanoseconds(layout):
        raise RepositoryError(repository.fqrn, NO_NANOSECONDS.format(layout.value))
    weights = Weights(settings.autocatalogs_max, settings.autocatalogs_min) if settings.autocatalogs else None
    return PrepareOptions(
        algorithm=repository.manifest.root.algorithm,
        layout=layout,
        compressor=Compressor(settings.compression),
        chunking=(limits := chunk_limits(settings.chunks)),
        memory_mb=max(DEFAULTS.memory_mb, (os.cpu_count() or 1) * 3 * limits.max >> 20),
        owner=_owner(settings),
        mtime_ns=settings.mtime_ns,
        specials=Specials(settings.specials),
        special_bits=SpecialBits(settings.special_bits),
        xattrs=settings.xattrs,
        cuts=Cuts(_dirtab(repository) if settings.dirtab else None, weights, settings.catalog_entries),
    )


def chunk_limits(chunks: Literal["stock", "data"] | ChunkSizes) -> ChunkLimits:
    """The lengths of the pieces of large files, in bytes, as the settings have them."""
    if isinstance(chunks, ChunkSizes):
        return ChunkLimits(chunks.min, chunks.average, chunks.max)
    return DATA_CHUNKS if chunks == "data" else ChunkLimits()


def holds_nanoseconds(layout: Layout) -> bool:
    """Tell whether a repository whose root catalog has this layout was created for nanoseconds, not upgraded."""
    return layout is Layout.MTIME_NS


def _owner(settings: Prepare) -> tuple[int, int] | OwnerMap | None:
    if settings.owner is not None:
        return settings.owner.uid, settings.owner.gid
    if settings.uid_map is None and settings.gid_map is None:
        return None
    return OwnerMap(_ids(settings.uid_map), _ids(settings.gid_map))


def _ids(path: Path | None) -> IdMap:
    if path is None:
        return IdMap()
    try:
        return IdMap.parse(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as fault:
        raise FormatError(str(path), f"cannot be read ({fault}); write it, or take it out of the settings") from fault


def _dirtab(repository: Repository) -> Dirtab | None:
    """The rules in the repository; None if it has no such file."""
    entry = repository.revision.lookup(f"/{NAME}")
    if entry is None:
        return None
    return Dirtab.parse(repository.revision.read(f"/{NAME}"), f"/{NAME} of {repository.manifest.fqrn}")


@dataclass(frozen=True, slots=True)
class Reserved:
    """Outcome of a reserve.

    Attributes:
        revision: The repository's revision then.
        created: The paths that are new; if there are none, no lease was taken.
        lease_held_s: Seconds from the grant of leases until they were given back.
    """

    revision: int
    created: tuple[str, ...]
    lease_held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of a publication.

    Attributes:
        path: The destination.
        revision_before: The revision that the change was derived from.
        revision: The revision that has it.
        root_hash: That of the revision's root catalog.
        nested_hash: That of the catalog at ``path``; None: there is none.
        lease_held_s: Seconds from the grant of the lease until it was given back.
        unchanged: The destination held this very tree, and no revision was made.
        phases: Seconds per phase.
    """

    path: str
    revision_before: int
    revision: int
    root_hash: ObjectHash
    nested_hash: ObjectHash | None
    lease_held_s: float
    unchanged: bool = False
    phases: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what commands and tasks report."""
        return {
            "revision": self.revision,
            "root_hash": str(self.root_hash),
            "unchanged": self.unchanged,
            "lease_held_s": round(self.lease_held_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Released:
    """Outcome of taking reservations away.

    Attributes:
        revision: The repository's revision then.
        removed: The paths that were removed; with nothing to remove no revision was made.
    """

    revision: int
    removed: tuple[str, ...]


@dataclass
class PhaseTimes:
    """Seconds per phase, in the order in which they were entered first."""

    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - started


class Publisher(Protocol):
    """Publisher of a repository. Paths are absolute within the repository, without a slash at the end.

    Every method may be repeated: it takes its leases, gives them back, and reports what was there already. Besides what
    is listed, it raises NotSupported where its way to publish cannot do it (docs/publishers.md), CollectionRunning
    where a collection is about to delete what it needs, and GatewayError, NodeError, StoreError or CommitError where a
    service failed or refused the change.
    """

    def reserve(
        self,
        destinations: Sequence[str],
        *,
        nested: Sequence[str],
        holder: str,
        now: datetime,
        on_create: Callable[[Sequence[str]], None] | None = None,
    ) -> Reserved:
        """Create the destinations that are absent, as empty nested catalogs, and all directories above them.

        Args:
            destinations: Where trees are going to be published.
            nested: Which of the directories above them become nested catalogs too.
            holder: What others see as the holder of the lease.
            now: The time, with zone, that entries and the manifest get.
            on_create: Called with the paths that are going to be created, while the lease is held.

        Returns:
            What was created; if everything was there, no lease was taken.

        Raises:
            PathBusy: Another client holds a lease that overlaps.
            DestinationError: A file or a plain directory is in the way, or a destination lies inside another.
        """

    def publish(
        self,
        changeset: Changeset,
        *,
        holder: str,
        now: datetime,
        replace: bool = True,
        tag: NewTag | None = None,
        on_lease: Callable[[Callable[[], object]], None] | None = None,
    ) -> Published:
        """Put a prepared tree at its destination, under a lease on the destination alone.

        Args:
            changeset: The prepared tree; its objects are in the store.
            holder: What others see as the holder of the lease.
            now: The time, with zone, that entries and the manifest get.
            replace: Whether a destination that holds another tree is replaced; otherwise it is refused.
            tag: A name for the new revision; None: none.
            on_lease: Called with a function that gives the lease back, for callers that do so from outside.

        Returns:
            What was published; `unchanged` if the destination held this very tree.

        Raises:
            PathBusy: Another client holds a lease that overlaps.
            DestinationError: NotReserved: it was not reserved; or it holds another tree, and ``replace`` is false.
            BaseChanged: The destination is not what the changeset was derived from.
            PrepareAgain: Objects of the changeset may have been collected since.
        """

    def remove(self, path: str, *, holder: str, now: datetime) -> Published:
        """Remove the tree or file at a path.

        Args:
            path: What is removed.
            holder: What others see as the holder of the lease.
            now: The time, with zone, that entries and the manifest get.

        Returns:
            The revision without it.

        Raises:
            PathBusy: Another client holds a lease that overlaps.
            DestinationError: Nothing is there.
        """

    def release(
        self, paths: Collection[str], *, floor: str | None, holder: str, now: datetime, created: Collection[str] = ()
    ) -> Released:
        """Take away reservations that are still empty, and the directories that are empty without them.

        Args:
            paths: Destinations that were reserved; those that hold something stay.
            floor: Only directories below it, or among ``created``, go with their last child; None: none but those.
            holder: What others see as the holder of the lease.
            now: The time, with zone, that entries and the manifest get.
            created: Directories that the reserve created.

        Returns:
            What was removed; if there was nothing to remove, no lease was taken.

        Raises:
            PathBusy: Another client holds a lease that overlaps.
        """

    def change(
        self, lease_path: str, apply: Callable[[Edit], None], *, holder: str, now: datetime, tag: NewTag | None = None
    ) -> Published:
        """Commit any change of the catalogs as one revision.

        Args:
            lease_path: The path to lease; the change stays below it.
            apply: Makes the change; called again if others published meanwhile.
            holder: What others see as the holder of the lease.
            now: The time, with zone, that entries and the manifest get.
            tag: A name for the new revision; None: none.

        Returns:
            The revision with the change; a change that does nothing makes none, unless it is to be tagged.

        Raises:
            PathBusy: Another client holds a lease that overlaps.
        """
