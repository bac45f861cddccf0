"""The artifacts that a run takes: what is new to a pass of its night, their order, and their batches. Pure."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import TypeVar

from include.nightlies.errors import BuildMoved, DependencyCycle, UnknownChoice
from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.dependencies import held_back
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Publication, State


@dataclass(frozen=True, slots=True)
class Compared:
    """The index to go by, and what is wrong with the one that was read, in words."""

    index: BuildIndex
    notes: tuple[str, ...] = ()


def compared(index: BuildIndex, before: BuildRecord | None) -> Compared:
    """Return what to go by, given what the ledger has of the build.

    An index that is older than one that was seen (`serial`, else `created`) counts for nothing: the artifacts are those
    that were listed before. One that has neither is taken, and the earlier values still hold for the next. One
    that no longer is complete, or lists less, is reported, and nothing is taken back.
    Raises BuildMoved for a build id that was used on another day.
    """
    if before is None:
        return Compared(index)
    if before.date != index.date:
        raise BuildMoved(index.slot, index.build_id, before.date, index.date)
    own = {record.artifact.name: record.artifact for record in before.artifacts if record.inherited is None}
    if why := older(index, before.serial, before.written_at):
        note = f"the index is older than one that was seen before: {why}; it is left aside, that one counts"
        kept = replace(
            index,
            artifacts=tuple(own.values()),
            rejected=before.rejected,
            complete=before.complete,
            base=before.base,
            serial=before.serial,
            created=before.written_at,
        )
        return Compared(kept, (note,))
    index, notes = _still_told(index, before), []
    if before.complete and not index.complete:
        notes.append("the index is no longer marked complete; treating it as complete")
        index = replace(index, complete=True)
    listed = {artifact.name for artifact in index.artifacts} | {artifact.name for artifact in index.rejected}
    notes += [
        f"{name} is no longer listed; what is published of it stays" for name in sorted(own)
        if name not in listed
    ]  # fmt: skip
    if before.base is not None and index.base != before.base:
        now = f"on {index.base}" if index.base else "on none"
        notes.append(f"the build was based on {before.base} before and {now} now")
    return Compared(index, tuple(notes))


def older(index: BuildIndex, serial: int | None, created: datetime | None) -> str:
    """Return why an index is older than a version with that serial and time; nothing if it is not.

    Serials decide where both have one and they differ: a builder's clock may be set back.
    """
    if index.serial is not None and serial is not None and index.serial != serial:
        return f"serial {index.serial} after {serial}" if index.serial < serial else ""
    if index.created is not None and created is not None and index.created < created:
        return f"created {index.created.isoformat()} after {created.isoformat()}"
    return ""


def _still_told(index: BuildIndex, before: BuildRecord) -> BuildIndex:
    """The index with the highest serial and time that were seen: what once ordered versions goes on doing so."""
    if index.serial is None:
        index = replace(index, serial=before.serial)
    if index.created is None:
        index = replace(index, created=before.written_at)
    return index


ALIVE = timedelta(hours=1)
"""A publication under way in another run that nothing has moved for so long is not waited for any more."""
SKEW = timedelta(minutes=5)
"""A builder's clock may be so far ahead of ours before its times count for nothing."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Names of artifacts: `fresh` are to be published; the others are not, each kind for its reason.

    `failed`: tried by an earlier pass of this night, and tried once more by the last one. `elsewhere`: under way in
    another run, which keeps them unless it dies. `held`: new, and kept back for the sake of their dependencies until
    these are settled or the last pass decides, each with the reason.
    """

    fresh: tuple[str, ...]
    settled: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)


def _never(project: str, platform: str) -> bool:  # noqa: ARG001
    return False


def arrivals(
    listed: Sequence[Artifact],
    publications: Iterable[Publication],
    *,
    run: str,
    earlier: Collection[str],
    now: datetime,
    expected: Callable[[str, str], bool] = _never,
) -> Arrivals:
    """Sort what an index lists by what became of these very artifacts, identified by their sums.

    `run`: the name of the run that asks; `earlier`: of the passes of its night before it. Of other sums only counts
    that they were published later: a rebuilt artifact is fresh again, and so is one that is rebuilt back to what it
    was. `expected`: whether a project and platform that is not listed yet is going to be.
    """
    of_artifact: dict[tuple[str | None, str | None, str | None], list[Publication]] = {}
    last: dict[tuple[str | None, str | None], Publication] = {}
    for publication in publications:
        of_artifact.setdefault((publication.project, publication.platform, publication.artifact_sha256), []).append(
            publication
        )
        if publication.state.good:
            name = (publication.project, publication.platform)
            last[name] = max(
                last.get(name, publication), publication, key=lambda held: (held.revision_after or 0, held.id)
            )
    sorted_out: dict[str, list[str]] = {"fresh": [], "settled": [], "failed": [], "elsewhere": []}
    obstacles: dict[str, str] = {}
    for artifact in listed:
        known = of_artifact.get((artifact.project, artifact.platform, artifact.sha256), [])
        stands = last.get((artifact.project, artifact.platform))
        if stands is not None and stands.artifact_sha256 != artifact.sha256:
            known = [publication for publication in known if not publication.state.good]
        kind = _kind(known, run, earlier, now)
        sorted_out[kind].append(artifact.name)
        if why := _obstacle(kind, known):
            obstacles[artifact.name] = why
    new = set(sorted_out["fresh"])
    fresh = [artifact for artifact in listed if artifact.name in new]
    held = held_back(fresh, obstacles, listed={artifact.name for artifact in listed}, expected=expected)
    sorted_out["fresh"] = [name for name in sorted_out["fresh"] if name not in held]
    return Arrivals(**{kind: tuple(names) for kind, names in sorted_out.items()}, held=held)


def _obstacle(kind: str, known: Sequence[Publication]) -> str:
    """Return why what depends on an artifact of that kind cannot go in now; nothing if it can."""
    if kind == "failed":
        newest = max(known, key=lambda publication: publication.updated_at)
        return f"failed in an earlier pass: {newest.reason}"
    if kind == "settled" and not any(publication.state.good for publication in known):
        newest = max(known, key=lambda publication: publication.updated_at)
        return f"was skipped: {newest.reason}"
    return "is under way in another run" if kind == "elsewhere" else ""


def _kind(known: Sequence[Publication], run: str, earlier: Collection[str], now: datetime) -> str:
    if any(publication.state.good for publication in known):
        return "settled"
    if any(publication.state is State.SKIPPED and publication.run_id in earlier for publication in known):
        return "settled"
    if any(publication.run_id in earlier for publication in known):
        return "failed"
    others = [publication for publication in known if publication.run_id != run and not publication.state.ended]
    if any(now - publication.updated_at < ALIVE for publication in others):
        return "elsewhere"
    return "fresh"


def without_wrong_time(index: BuildIndex, now: datetime) -> tuple[BuildIndex, str]:
    """The index without its time if that is still to come, and then a note; else the index and nothing.

    Kept, it would make every later index of a builder whose clock was put right look older.
    """
    if index.created is None or index.created - now <= SKEW:
        return index, ""
    ahead = (index.created - now).total_seconds() / 60
    note = (
        f"the index was created {ahead:.0f} minutes from now, so its time counts for nothing. "
        "Set the builder's clock, or let it count a `serial`."
    )
    return replace(index, created=None), note


T = TypeVar("T")

ALONE = 16
"""Up to so many artifacts, each is a batch of its own; and a larger run has no more batches for the sake of cores."""
PER_CORE = 3
"""Batches of a larger run a core: while one publishes, the next prepares, and a late one holds up little."""
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


def batch_count(sizes: Sequence[int | None], limit: int, cores: int) -> int:
    """Count the batches, `limit` at most, for artifacts of these sizes (bytes; None: not known) on so many cores."""
    if len(sizes) <= ALONE:
        return min(len(sizes), limit)
    of_the_work = math.ceil(sum(map(work_s, sizes)) * SHARE / TASKS_S)
    return min(len(sizes), limit, max(of_the_work, min(ALONE, PER_CORE * cores)))


def dealt(items: Sequence[T], sizes: Sequence[int | None], limit: int, cores: int) -> tuple[tuple[T, ...], ...]:
    """Deal the items, in their order, into batches of about the same work; no batch is empty.

    `limit`: of batches; `cores`: of the machine that plans, which count for a run of more than `ALONE` items.
    """
    if limit < 1:
        raise ValueError(f"the limit of batches is {limit}; it must be at least 1")
    count = batch_count(sizes, limit, cores)
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
