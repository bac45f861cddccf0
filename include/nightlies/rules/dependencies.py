"""Dependencies and requirements of artifacts: one goes in after what it depends on, or not at all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from include.nightlies.rules.index import Artifact
from include.nightlies.rules.publication import Phase, Publication, State
from include.settings.model import Slot

Pair = tuple[str, str]
"""Project and platform."""
ALL = "*"
"""Means every project, or every platform, where the slot names only the other."""


def is_taken(slot: Slot, project: str, platform: str) -> bool:
    """Tell whether the slot installs it at all."""
    return (not slot.projects or project in slot.projects) and (not slot.platforms or platform in slot.platforms)


def is_required(slot: Slot, project: str, platform: str) -> bool:
    """Tell whether a build without it is not complete."""
    required, optional = slot.required, slot.optional
    if not is_taken(slot, project, platform) or slot.does_without(project, platform):
        return False
    if project in optional.projects or platform in optional.platforms:
        return False
    return (not required.projects or project in required.projects) and (
        not required.platforms or platform in required.platforms
    )


def required_pairs(slot: Slot, listed: Iterable[Pair]) -> tuple[Pair, ...]:
    """Return what a build that lists these must have: of these what is required, and what the slot names itself."""
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


CLEAR_PLAN = "Clear task plan with *Downstream*, and not *Only failed*."
"""The hint for what was planned and no task is left for: what went in stays as it is."""


class Readiness(Enum):
    """Readiness of an artifact to be published."""

    FREE = "free"
    PENDING = "pending"
    LATER = "later"
    """A dependency failed, and a further try of it may still come."""
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class DependencyVerdict:
    """The readiness with its reason. `blocked_by`: the artifact that settles that it never goes in."""

    readiness: Readiness
    reason: str
    blocked_by: str | None = None


def readiness(
    needs: Sequence[str],
    publications: Mapping[str, Publication],
    *,
    last_try: bool,
    ended: Mapping[str, str] = MappingProxyType({}),
) -> DependencyVerdict:
    """Tell whether an artifact that needs these may go in; `publications` of its run, by `project/platform`.

    What the run does not have binds nothing. `last_try`: nothing is going to be tried again any more. `ended`: the
    artifacts whose publishing task had ended before `publications` were read, with the task and its state.
    """
    known = [(name, publications[name]) for name in needs if name in publications]
    for name, publication in known:
        if publication.state is State.FAILED and (last_try or publication.phase is Phase.PLAN):
            return DependencyVerdict(
                Readiness.BLOCKED, f"blocked: it depends on {name}, which failed: {publication.reason}", name
            )
        if publication.state is State.SKIPPED:
            return DependencyVerdict(
                Readiness.BLOCKED, f"blocked: it depends on {name}, which was skipped: {publication.reason}", name
            )
        if not publication.state.ended and name in ended:
            return DependencyVerdict(
                Readiness.BLOCKED,
                f"blocked: it depends on {name}, which is {publication.state.value}, and no task publishes it any more "
                f"({ended[name]}). {CLEAR_PLAN}",
                name,
            )
    for name, publication in known:
        if publication.state is State.FAILED:
            return DependencyVerdict(
                Readiness.LATER, f"it depends on {name}, which failed so far: {publication.reason}"
            )
    waiting = [f"{name} ({publication.state.value})" for name, publication in known if not publication.state.good]
    if waiting:
        return DependencyVerdict(Readiness.PENDING, f"it depends on {', '.join(waiting)}")
    return DependencyVerdict(Readiness.FREE, "all that it depends on is published")


def held_back(
    fresh: Sequence[Artifact],
    obstacles: Mapping[str, str],
    *,
    listed: Collection[str],
    expected: Callable[[str, str], bool],
) -> dict[str, str]:
    """Return which of a pass's new artifacts do not go in with it, for the sake of what they depend on, and why.

    A pass before the last one tries nothing again, so that a dependency which failed, was skipped or is in another run
    settles nothing by then; nor does one that is `expected` and not `listed` yet. What depends on these waits, and so
    does what depends on that. `obstacles`: by name, of what is listed and not new.
    """
    held: dict[str, str] = {}
    obstacles, left = dict(obstacles), list(fresh)
    while True:
        found = {
            artifact.name: why
            for artifact in left
            if (why := _held_by(artifact, obstacles, listed, expected)) is not None
        }
        if not found:
            return {name: f"held back: it depends on {why}" for name, why in held.items()}
        held |= found
        obstacles |= {name: f"waits for {why}" for name, why in found.items()}
        left = [artifact for artifact in left if artifact.name not in found]


def _held_by(
    artifact: Artifact, obstacles: Mapping[str, str], listed: Collection[str], expected: Callable[[str, str], bool]
) -> str | None:
    for project in artifact.dependencies:
        name = f"{project}/{artifact.platform}"
        if name in obstacles:
            return f"{name}, which {obstacles[name]}"
        if name not in listed and expected(project, artifact.platform):
            return f"{name}, which is not listed yet"
    return None
