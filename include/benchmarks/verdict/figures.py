"""The figures of a campaign, each with its values in all rounds, and the parts that are missing. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from pydantic import TypeAdapter

from include.benchmarks.campaign.folder import CampaignRecord, StepRecord
from include.benchmarks.loads import LoadAccess, LoadStep
from include.benchmarks.results import MeasuredLoad
from include.benchmarks.scenarios.plan import CampaignPlan


class FigureName(Enum):
    """What is compared of a load."""

    THROUGHPUT = "throughput"
    """Bytes per second of all streams together."""
    OPERATIONS = "operations"
    """Per second, of all streams together: of loads without bytes."""
    P95_MS = "p95_ms"
    MEAN_MS = "mean_ms"
    """Where the runner reports no percentiles, or a round had too few operations for one."""

    @property
    def more_is_better(self) -> bool:
        """False for latencies."""
        return self in {FigureName.THROUGHPUT, FigureName.OPERATIONS}

    @property
    def title(self) -> str:
        """The name for people."""
        titles = {FigureName.P95_MS: "p95 latency", FigureName.MEAN_MS: "mean latency"}
        return titles.get(self, self.value)


@dataclass(frozen=True, slots=True)
class StepFigure:
    """A figure of one direction of a step. `judged`: it counts for the verdict of the campaign."""

    step: str
    access: LoadAccess
    name: FigureName
    values: tuple[float, ...]
    judged: bool
    failed: int = 0
    """Operations that failed, in all rounds."""

    @property
    def key(self) -> tuple[str, LoadAccess, FigureName]:
        """By which it is found in another campaign."""
        return self.step, self.access, self.name

    @property
    def title(self) -> str:
        """The name for people, as `write-01 throughput` or `mixed read p95 latency`."""
        return f"{direction_title(self.step, self.access)} {self.name.title}"

    @property
    def median(self) -> float:
        """Of the rounds."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """The range of the rounds as a share of their median."""
        middle = self.median
        return (max(self.values) - min(self.values)) / middle if middle else 0.0


def figures_of(steps: Iterable[StepRecord]) -> tuple[StepFigure, ...]:
    """The figures of all steps that are counted and have a result.

    A load is judged by its throughput. One whose rate is limited has the throughput of its limit, and is judged by its
    latency.
    """
    measured: defaultdict[tuple[str, LoadAccess], list[MeasuredLoad]] = defaultdict(list)
    limited: set[str] = set()
    for ended in steps:
        if not ended.step.counted or ended.result is None or ended.result.missing:
            continue
        name = ended.step.load.name
        if any(load.rate is not None for load in ended.step.load.loads):
            limited.add(name)
        for load in ended.result.loads:
            measured[name, load.access].append(load)
    return tuple(
        StepFigure(
            step,
            access,
            name,
            values,
            judged=name.more_is_better is not (step in limited),
            failed=sum(load.failed for load in loads),
        )
        for (step, access), loads in measured.items()
        for name, values in _of(access, loads)
    )


def direction_title(step: str, access: LoadAccess) -> str:
    """A step and what is measured of it; once where the step is named for it."""
    return step if step.startswith(access.value) else f"{step} {access.value}"


def missing_parts(record: CampaignRecord, steps: Sequence[StepRecord]) -> tuple[str, ...]:
    """What the campaign should have measured and has not, with the reason."""
    ended = {step_record.step.number: step_record for step_record in steps}
    return tuple(_missing(record, ended))


def plan_digest(plan: CampaignPlan) -> str:
    """Identifies what is measured: only campaigns with the same digest are compared."""
    loads = {step.load.name: step.load for step in plan.steps if step.counted}
    return hashlib.sha256(_STEPS.dump_json(tuple(loads.values()))).hexdigest()


_STEPS = TypeAdapter(tuple[LoadStep, ...])


def _missing(record: CampaignRecord, ended: dict[int, StepRecord]) -> Iterator[str]:
    begun: defaultdict[int, int] = defaultdict(lambda: record.plan.wish.rounds)
    for step_record in ended.values():
        begun[step_record.step.phase] = max(begun[step_record.step.phase], step_record.step.round)
    for step in record.plan.steps:
        if step.round > begun[step.phase]:
            continue  # a round that was not needed, or for which no time was left
        found = ended.get(step.number)
        name = f"{step.load.name}, round {step.round}" if step.counted else f"{step.load.name} (preparation)"
        if found is None:
            yield f"{name}: not run"
        elif found.result is None:
            yield f"{name}: {found.error or 'no result'}"
        else:
            yield from (f"{name}: {host}" for host in found.result.missing)


def _of(access: LoadAccess, loads: Sequence[MeasuredLoad]) -> Iterator[tuple[FigureName, tuple[float, ...]]]:
    """The figures of a direction, with a value for each round."""
    if access in {LoadAccess.READ, LoadAccess.WRITE}:
        yield FigureName.THROUGHPUT, tuple(load.throughput for load in loads)
    else:
        yield FigureName.OPERATIONS, tuple(load.rate for load in loads)
    p95 = [value for load in loads if (value := load.percentiles().get("p95")) is not None]
    means = [load.mean_ms for load in loads if load.mean_ms is not None]
    if len(p95) == len(loads):
        yield FigureName.P95_MS, tuple(p95)
    elif len(means) == len(loads):
        yield FigureName.MEAN_MS, tuple(means)
