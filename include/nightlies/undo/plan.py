"""What is to be undone, as the operator wishes it and as it was planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from include.cvmfs.format.catalog import NestedRef
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.undo.links_to_build import MovedLink


class Instead(Enum):
    """What a destination has afterwards."""

    NOTHING = "nothing"
    PREDECESSOR = "predecessor"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be undone. Empty ``projects`` or ``platforms``: all of the build; ``move_links``: those that lead to
    what goes may lead to an earlier build instead."""

    slot: str
    build_id: str
    reason: str
    projects: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    instead: Instead = Instead.NOTHING
    move_links: bool = False


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The tree that takes a place: of an earlier build, or of this one before it was rebuilt.

    ``path``: where it is, ``sha256``: of its artifact; ``tag``: the revision that still has it, None: the newest.
    """

    build_id: str
    path: str
    reference: NestedRef
    sha256: str
    tag: str | None = None

    def __str__(self) -> str:
        return self.path if self.tag is None else f"what was there in revision {self.tag}, before the rebuild,"


@dataclass(frozen=True, slots=True)
class UndoneDestination:
    """One destination that is undone. ``held``: the nested catalog that is there, "" for a link."""

    artifact: ArtifactRecord
    destination: str
    held: str
    files: int
    bytes: int
    instead: Predecessor | None = None

    def __str__(self) -> str:
        what = f"{self.files} files, {self.bytes} bytes" if self.held else "a link"
        end = f"{self.instead} takes its place" if self.instead else "goes"
        return f"{self.artifact.artifact.name}: {self.destination} ({what}): {end}"


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """What would happen to which revision, and why it must not; ``notes``: what is done already."""

    wish: Wish
    repository: str
    revision: int
    build: BuildRecord
    taken: tuple[UndoneDestination, ...] = ()
    links: tuple[MovedLink, ...] = ()
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    absent: tuple[tuple[ArtifactRecord, Predecessor | None], ...] = field(default=(), repr=False)

    def lines(self) -> Iterator[str]:
        """The whole plan as text, for the person who decides."""
        yield f"{self.repository}, revision {self.revision}: {self.build.key} of slot {self.wish.slot}"
        yield from (str(target) for target in self.taken)
        yield from (str(link) for link in self.links)
        yield from self.notes
        yield from (f"refused: {reason}" for reason in self.refused)
        if not self.taken and not self.links and not self.refused:
            yield "nothing is to be done"

    def to_json(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "revision": self.revision,
            "build": str(self.build.key),
            "taken": [str(target) for target in self.taken],
            "links": [str(link) for link in self.links],
            "notes": list(self.notes),
            "refused": list(self.refused),
        }
