"""What every way to publish offers, and what it reports of what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.ingest.changeset import Changeset


@dataclass(frozen=True, slots=True)
class Reserved:
    """Outcome of a reserve. ``created``: the paths that are new; if there are none, no lease was taken."""

    revision: int
    created: tuple[str, ...]
    lease_held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of a publication. ``unchanged``: the destination held this very tree, and no revision was made.

    ``phases``: seconds per phase; ``lease_held_s``: from the grant of the lease until it was given back.
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
        """What commands and tasks report."""
        return {
            "revision": self.revision,
            "root_hash": str(self.root_hash),
            "unchanged": self.unchanged,
            "lease_held_s": round(self.lease_held_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Released:
    """Outcome of taking reservations away. ``removed``: what went; with nothing to remove no revision was made."""

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
    """One repository's publisher. ``holder`` is the text shown to others as the holder of a lease."""

    def reserve(
        self,
        destinations: Sequence[str],
        *,
        nested: Sequence[str],
        holder: str,
        now: datetime,
        on_create: Callable[[Sequence[str]], None] | None = None,
    ) -> Reserved: ...

    def publish(
        self,
        changeset: Changeset,
        *,
        holder: str,
        now: datetime,
        replace: bool = True,
        tag: NewTag | None = None,
        on_lease: Callable[[Callable[[], object]], None] | None = None,
    ) -> Published: ...

    def remove(self, path: str, *, holder: str, now: datetime) -> Published: ...

    def release(
        self,
        paths: Collection[str],
        *,
        floor: str | None,
        holder: str,
        now: datetime,
        created: Collection[str] = (),
    ) -> Released: ...

    def change(
        self,
        lease_path: str,
        apply: Callable[[Edit], None],
        *,
        holder: str,
        now: datetime,
        tag: NewTag | None = None,
    ) -> Published: ...
