"""The plan of an undo: the operator's wish, and the builds that links lead to afterwards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from include.cvmfs.format.catalog import NestedRef
from include.cvmfs.format.paths import is_below, link_target
from include.cvmfs.revision.revision import Revision
from include.ledger.engine import Bind
from include.nightlies.records import builds
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.destinations import build_directory, destination_of
from include.nightlies.rules.links import LATEST, all_links_of
from include.nightlies.rules.publication import standing
from include.nightlies.steps.links import Completeness
from include.provenance.records import links_by_path
from include.settings.model import Slot


@dataclass(frozen=True, slots=True)
class MovedLink:
    """A link that leads to what goes. ``target``: where it is to lead, None: it goes, too."""

    path: str
    was: str
    build: BuildRecord | None
    target: str | None

    def __str__(self) -> str:
        return f"{self.path}: leads to {self.was}, {f'moves to {self.target}' if self.target else 'goes'}"


def links_of_slot(
    ledger: Bind,
    slot: Slot,
    build: BuildRecord,
    tree: Revision,
    earlier: Sequence[BuildRecord],
    *,
    move: bool,
) -> tuple[list[MovedLink], list[str]]:
    """Return what becomes of the slot's links to the build: they would lead to something that is not whole any more."""
    top, found, refused = build_directory(slot, build.build_id, build_date=build.date), [], []
    for path in leading_to(slot, tree, top):
        if not move:
            refused.append(f"{path} leads to {top}; turn on *Move links* (command line: --move-links), or undo nothing")
            continue
        any_day = path.endswith(f"/{LATEST}")
        candidates = [candidate for candidate in earlier if any_day or candidate.date.weekday() == build.date.weekday()]
        whole = next(
            (candidate for candidate in candidates if not Completeness(ledger, slot, candidate).lacking(tree)), None
        )
        target = build_directory(slot, whole.build_id, build_date=whole.date) if whole else None
        found.append(MovedLink(path, top, whole, target))
    return found, refused


def leading_to(slot: Slot, tree: Revision, top: str) -> list[str]:
    """The slot's links that lead to a build's directory."""
    found = []
    for path in all_links_of(slot):
        entry = tree.lookup(path)
        if entry is not None and entry.is_symlink and link_target(path, entry.symlink) == top:
            found.append(path)
    return found


def leading_into(ledger: Bind, slot: Slot, build: BuildRecord, tree: Revision, gone: Collection[str]) -> list[str]:
    """Links of partial builds, and links that were set by hand, that would lead nowhere."""
    refused, seen = [], set(all_links_of(slot))
    for other in builds.partial_builds(ledger, slot.name):
        for record in other.artifacts:
            where = destination_of(slot, other, record.artifact)
            seen.add(where)
            if record.inherited is not None and where not in gone and _leads(tree, where) in gone:
                leads = _leads(tree, where)
                refused.append(f"{where} of the partial {other.key} leads to {leads}; undo that build first")
    top = build_directory(slot, build.build_id, build_date=build.date)
    left = [
        where
        for record in build.artifacts
        if (where := destination_of(slot, build, record.artifact)) not in gone and standing(tree, where) is not None
    ]
    for path in links_by_path(ledger, slot.repository):
        leads = _leads(tree, path) if path not in seen else None
        if leads is None or not is_below(leads, top) or any(is_below(path, removed) for removed in gone):
            continue
        emptied = any(is_below(removed, leads) for removed in gone) and not any(is_below(kept, leads) for kept in left)
        if emptied or any(is_below(leads, removed) for removed in gone):
            refused.append(f"{path}, set by hand, leads to {leads}; let it lead elsewhere, or remove it, first")
    return refused


def shown_by_links(ledger: Bind, slot: Slot, tree: Revision, replaced: Collection[str]) -> list[str]:
    """Links of partial builds that will show what takes the place of a tree."""
    return [
        f"{where} of the partial {other.key} leads to {leads}, and shows what takes its place, too"
        for other in builds.partial_builds(ledger, slot.name)
        for record in other.artifacts
        if record.inherited is not None
        for where in [destination_of(slot, other, record.artifact)]
        if where not in replaced and (leads := _leads(tree, where)) in replaced
    ]


def _leads(tree: Revision, path: str) -> str | None:
    entry = tree.lookup(path)
    return link_target(path, entry.symlink) if entry is not None and entry.is_symlink else None


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
