"""The artifacts of a build that are taken, in their order, and cut into batches. Pure functions."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from include.nightlies.errors import DependencyCycle, UnknownChoice
from include.nightlies.rules.index import Artifact

T = TypeVar("T")

AT_LEAST = 16
"""Up to so many artifacts, each is a batch of its own. Batches of a larger run: as many as may be under way at once on
a machine or two."""
TASKS_S = 4.0
"""Cost of the two tasks of a batch beside their work: scheduling, a process each, connections."""
SHARE = 0.1
"""Share of its own time that a batch may cost."""
ARTIFACT_S = 0.15
BYTES_PER_S = 20e6
"""Cost of an artifact whatever its size, and how fast its bytes are prepared by one core."""


def work_s(size: int | None) -> float:
    """About how long preparing and publishing takes, in seconds, from the size in bytes."""
    return ARTIFACT_S + (size or 0) / BYTES_PER_S


def batch_count(sizes: Sequence[int | None], limit: int) -> int:
    """Into how many batches, `limit` at most, artifacts of these sizes (bytes; None: not known) are dealt."""
    wanted = math.ceil(sum(map(work_s, sizes)) * SHARE / TASKS_S)
    return min(len(sizes), limit, max(AT_LEAST, wanted))


def dealt(items: Sequence[T], sizes: Sequence[int | None], limit: int) -> tuple[tuple[T, ...], ...]:
    """The items in batches of about the same work, in their order; none is empty."""
    if limit < 1:
        raise ValueError(f"the limit of batches is {limit}; it must be at least 1")
    count = batch_count(sizes, limit)
    if not count:
        return ()
    done = list(accumulate(map(work_s, sizes)))
    cuts = [0]
    for number in range(1, count):
        wanted = bisect_left(done, done[-1] * number / count) + 1
        # at least one item for this batch, and one for each that follows
        cuts.append(min(max(wanted, cuts[-1] + 1), len(items) - (count - number)))
    cuts.append(len(items))
    return tuple(tuple(items[start:end]) for start, end in pairwise(cuts))


def select(
    artifacts: Sequence[Artifact],
    *,
    projects: Collection[str] = (),
    platforms: Collection[str] = (),
    known_projects: Collection[str] = (),
    known_platforms: Collection[str] = (),
) -> tuple[Artifact, ...]:
    """The artifacts of the chosen projects and platforms; an empty choice takes all.

    A choice that neither the build nor the slot (`known_…`) has is refused with UnknownChoice, so that a misspelt one
    does not end as a night in which nothing was to do.
    """
    for kind, chosen, offered in (
        ("project", projects, {artifact.project for artifact in artifacts} | set(known_projects)),
        ("platform", platforms, {artifact.platform for artifact in artifacts} | set(known_platforms)),
    ):
        unknown = set(chosen) - offered
        if unknown:
            raise UnknownChoice(kind, unknown, offered)
    return tuple(
        artifact
        for artifact in artifacts
        if (not projects or artifact.project in projects) and (not platforms or artifact.platform in platforms)
    )


def in_order(artifacts: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """Dependencies before those that need them; among the free ones the higher priority, then platform and project.

    One platform after the other: what platforms share is stored by then and is not sent again. A dependency is on a
    project of the same platform; one that the build lacks binds nothing. Raises DependencyCycle.
    """
    by_key = {(artifact.project, artifact.platform): artifact for artifact in artifacts}
    waiting = {
        key: {(name, key[1]) for name in artifact.dependencies if (name, key[1]) in by_key}
        for key, artifact in by_key.items()
    }
    dependents: dict[tuple[str, str], list[tuple[str, str]]] = {key: [] for key in by_key}
    for key, needs in waiting.items():
        for need in needs:
            dependents[need].append(key)
    free = [(-by_key[key].priority, key[::-1]) for key, needs in waiting.items() if not needs]
    heapq.heapify(free)
    ordered = []
    while free:
        _, (platform, project) = heapq.heappop(free)
        key = (project, platform)
        ordered.append(by_key[key])
        for dependent in dependents[key]:
            waiting[dependent].discard(key)
            if not waiting[dependent]:
                heapq.heappush(free, (-by_key[dependent].priority, dependent[::-1]))
    if len(ordered) < len(by_key):
        raise DependencyCycle(_circle({key: needs for key, needs in waiting.items() if needs}))
    return tuple(ordered)


def _circle(waiting: Mapping[tuple[str, str], set[tuple[str, str]]]) -> tuple[str, ...]:
    # every key left waits for another one that is left, so following them must come round
    key = min(waiting)
    path: list[tuple[str, str]] = []
    while key not in path:
        path.append(key)
        key = min(need for need in waiting[key] if need in waiting)
    circle = [*path[path.index(key) :], key]
    return tuple(f"{project} ({platform})" for project, platform in circle)
