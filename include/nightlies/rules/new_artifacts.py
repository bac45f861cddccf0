"""Which artifacts of an index no pass of a night has taken yet, by what the ledger has of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from include.nightlies.rules.dependencies import held_back
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Publication
from include.nightlies.rules.states import State

ALIVE = timedelta(hours=1)
"""A publication under way in another run that nothing has moved for so long is not waited for any more."""
SKEW = timedelta(minutes=5)
"""How far a builder's clock may be ahead of ours before its times count for nothing."""


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
    """Why what depends on an artifact of that kind cannot go in now; nothing if it can."""
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
