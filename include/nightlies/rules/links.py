"""Targets of the links of a slot: `latest` and weekdays, which move forward in (build date, build id) only. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum

from include.nightlies.rules.build import BuildKey
from include.settings.model import Links, Slot
from include.settings.text_types import fill

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LATEST = "latest"


class LinkState(Enum):
    """State of a link, or of a tag."""

    MOVED = "moved"
    UNCHANGED = "unchanged"
    STAYED = "stayed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Present:
    """Content of the place of a link. `target`: the path that a symbolic link leads to, None for anything else.

    `key`: the build that it leads to, or of a link that is gone the one that it led to last; None: not known.
    """

    there: bool
    target: str | None = None
    key: BuildKey | None = None


@dataclass(frozen=True, slots=True)
class LinkDecision:
    """Decision about the link at `path`, and its reason. `target`: the absolute path that it is to lead to."""

    path: str
    target: str
    state: LinkState
    reason: str


def folder_of(links: Links, slot: str) -> str:
    """Return where a slot's links are."""
    return fill(links.folder, {"slot": slot})


def links_of(slot: Slot, build_date: date) -> tuple[str, ...]:
    """The links that a build of that date may have."""
    if slot.links is None:
        return ()
    folder, names = folder_of(slot.links, slot.name), []
    if slot.links.latest:
        names.append(LATEST)
    if slot.links.weekdays:
        names.append(WEEKDAYS[build_date.weekday()])
    return tuple(f"{folder}/{name}" for name in names)


def all_links_of(slot: Slot) -> tuple[str, ...]:
    """Every link that the slot may have."""
    if slot.links is None:
        return ()
    names = ([LATEST] if slot.links.latest else []) + (list(WEEKDAYS) if slot.links.weekdays else [])
    return tuple(f"{folder_of(slot.links, slot.name)}/{name}" for name in names)


def decide(path: str, wanted: BuildKey, target: str, present: Present) -> LinkDecision:
    """Tell whether a link may lead to the build `wanted`, whose directory is `target`, given what it leads to now."""

    def found(state: LinkState, reason: str) -> LinkDecision:
        return LinkDecision(path, target, state, reason)

    if present.there and present.target is None:
        return found(LinkState.STAYED, "the path exists and is no symbolic link; remove it, and run again")
    if not present.there:
        if present.key is not None and wanted < present.key:
            return found(LinkState.STAYED, f"it led to {present.key}, which is later, when it was taken away")
        return found(LinkState.MOVED, "new")
    if present.key is None:
        cure = "remove the link, and run again"
        return found(LinkState.STAYED, f"it leads to {present.target}, which is no build in the ledger; {cure}")
    if wanted < present.key:
        return found(LinkState.STAYED, f"it leads to {present.key} already, which is later")
    if present.target == target:
        return found(LinkState.UNCHANGED, "it leads there already")
    return found(LinkState.MOVED, f"from {present.key}")


def relative(path: str, target: str) -> str:
    """The text of a symbolic link at `path` that leads to `target`, wherever the repository is mounted."""
    return posixpath.relpath(target, posixpath.dirname(path))


def stayed(paths: Sequence[str], target: str, reason: str) -> tuple[LinkDecision, ...]:
    """All of them left as they are."""
    return tuple(LinkDecision(path, target, LinkState.STAYED, reason) for path in paths)
