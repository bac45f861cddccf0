"""Which artifacts a build must have before anything may lead to it, by its slot and the run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from include.settings.model import Slot

Pair = tuple[str, str]
"""Project and platform."""
ALL = "*"
"""Means every project, or every platform, where the slot names only the other."""


def is_taken(slot: Slot, project: str, platform: str) -> bool:
    """Whether the slot installs it at all."""
    return (not slot.projects or project in slot.projects) and (not slot.platforms or platform in slot.platforms)


def is_required(slot: Slot, project: str, platform: str) -> bool:
    """Whether a build without it is not complete."""
    required, optional = slot.required, slot.optional
    if not is_taken(slot, project, platform) or slot.does_without(project, platform):
        return False
    if project in optional.projects or platform in optional.platforms:
        return False
    return (not required.projects or project in required.projects) and (
        not required.platforms or platform in required.platforms
    )


def required_pairs(slot: Slot, listed: Iterable[Pair]) -> tuple[Pair, ...]:
    """What a build that lists these must have: of these what is required, and what the slot names itself."""
    projects = slot.required.projects or slot.projects
    platforms = slot.required.platforms or slot.platforms
    named = [(project, platform) for project in projects for platform in platforms]
    return tuple(sorted({pair for pair in [*listed, *named] if is_required(slot, *pair)}))


def never_listed(slot: Slot, listed: Iterable[Pair]) -> tuple[str, ...]:
    """Required projects and platforms that nothing has which is listed, as `platform x`."""
    return tuple(
        f"platform {platform}" if project == ALL else f"project {project}" for project, platform in absent(slot, listed)
    )


def absent(slot: Slot, listed: Iterable[Pair]) -> tuple[Pair, ...]:
    """Required projects and platforms that nothing has which is listed, each with ALL for what the slot does not name.

    Where the slot names both, `required_pairs` has each pair; where it names one of them only, there is no pair.
    """
    wanted = [pair for pair in listed if is_required(slot, *pair)]
    named = (
        ("project", slot.required.projects or slot.projects, slot.optional.projects, {pair[0] for pair in wanted}),
        ("platform", slot.required.platforms or slot.platforms, slot.optional.platforms, {pair[1] for pair in wanted}),
    )
    if all(names for _, names, _, _ in named):
        return ()
    return tuple(
        (name, ALL) if kind == "project" else (ALL, name)
        for kind, names, optional, there in named
        for name in sorted({*names} - {*optional} - there)
    )
