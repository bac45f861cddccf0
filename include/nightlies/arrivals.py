"""Which artifacts of an index no pass of a night has taken yet, by what the ledger says of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from include.nightlies.index import Artifact, BuildIndex
from include.nightlies.records import Publication
from include.nightlies.states import State

ALIVE = timedelta(hours=1)
"""A publication under way in another run that nothing has moved for so long is not waited for any more."""
SKEW = timedelta(minutes=5)
"""How far a builder's clock may be ahead of ours before its times count for nothing."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Names of artifacts: `fresh` are to be published; the others are not, each kind for its reason.

    `failed`: tried by an earlier pass of this night, and tried once more by the last one. `elsewhere`: under way in
    another run, which keeps them unless it dies.
    """

    fresh: tuple[str, ...]
    settled: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


def arrivals(
    listed: Sequence[Artifact],
    publications: Iterable[Publication],
    *,
    run: str,
    earlier: Collection[str],
    now: datetime,
) -> Arrivals:
    """Sort what an index lists by what became of these very artifacts, told by their sums.

    `run`: the name of the run that asks; `earlier`: of the passes of its night before it. What is recorded of other
    sums counts for nothing: a rebuilt artifact is fresh again.
    """
    of_artifact: dict[tuple[str | None, str | None, str | None], list[Publication]] = {}
    for one in publications:
        of_artifact.setdefault((one.project, one.platform, one.artifact_sha256), []).append(one)
    sorted_out: dict[str, list[str]] = {"fresh": [], "settled": [], "failed": [], "elsewhere": []}
    for artifact in listed:
        known = of_artifact.get((artifact.project, artifact.platform, artifact.sha256), [])
        sorted_out[_kind(known, run, earlier, now)].append(artifact.name)
    return Arrivals(**{kind: tuple(names) for kind, names in sorted_out.items()})


def _kind(known: Sequence[Publication], run: str, earlier: Collection[str], now: datetime) -> str:
    if any(one.state.good for one in known):
        return "settled"
    if any(one.state is State.SKIPPED and one.run_id in earlier for one in known):
        return "settled"
    if any(one.run_id in earlier for one in known):
        return "failed"
    others = [one for one in known if one.run_id != run and not one.state.ended]
    if any(now - one.updated_at < ALIVE for one in others):
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
