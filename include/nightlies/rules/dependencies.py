"""Whether what an artifact depends on is there yet: it goes in after them, or not at all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from include.nightlies.rules.index import Artifact
from include.nightlies.rules.publication import Publication
from include.nightlies.rules.states import Phase, State

CLEAR_PLAN = "Clear task plan with *Downstream*, and not *Only failed*."
"""The hint for what was planned and no task is left for: what went in stays as it is."""


class Readiness(Enum):
    """Whether an artifact may be published."""

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
    """Whether an artifact that needs these may go in; `publications` of its run, by `project/platform`.

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
    """Which of a pass's new artifacts do not go in with it, for the sake of what they depend on, and why.

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
