"""Figures of a campaign, each compared with its baseline by a rule that is stated with the answer. Pure.

The ratio of the two is estimated by the median of all pairs (Hodges and Lehmann). Its interval is that of the test of
Mann and Whitney, which assumes no distribution, at 95 %. A campaign that is compared several times while it goes on
shares the 5 % among its looks. With a margin of 10 %:

* pass: no part of the interval is below 0.9,
* improved: the whole interval is above 1 / 0.9,
* regressed: the whole interval is below 0.9,
* inconclusive: the interval contains 0.9, or there are too few rounds.

Figures of which less is better are compared by their reciprocals.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from statistics import median

from pydantic import TypeAdapter

from include.benchmarks.campaign.folder import CampaignRecord, StepRecord
from include.benchmarks.campaign.plan import CampaignPlan
from include.benchmarks.measure.loads import LoadAccess, LoadStep, MeasuredLoad


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
            step, access, name, values,
            judged=name.more_is_better is not (step in limited), failed=sum(load.failed for load in loads),
        )
        for (step, access), loads in measured.items()
        for name, values in _of(access, loads)
    )  # fmt: skip


def direction_title(step: str, access: LoadAccess) -> str:
    """A step and what is measured of it; once where the step is named for it."""
    return step if step.startswith(access.value) else f"{step} {access.value}"


def plan_digest(plan: CampaignPlan) -> str:
    """Identifies what is measured: only campaigns with the same digest are compared."""
    loads = {step.load.name: step.load for step in plan.steps if step.counted}
    return hashlib.sha256(_STEPS.dump_json(tuple(loads.values()))).hexdigest()


_STEPS = TypeAdapter(tuple[LoadStep, ...])


def missing_parts(record: CampaignRecord, steps: Sequence[StepRecord]) -> tuple[str, ...]:
    """Return what the campaign should have measured and has not, with the reason."""
    missing: list[str] = []
    ended = {step_record.step.number: step_record for step_record in steps}
    begun: defaultdict[int, int] = defaultdict(lambda: record.plan.wish.rounds)
    for step_record in ended.values():
        begun[step_record.step.phase] = max(begun[step_record.step.phase], step_record.step.round)
    for step in record.plan.steps:
        if step.round > begun[step.phase]:
            continue  # a round that was not needed, or for which no time was left
        found = ended.get(step.number)
        name = f"{step.load.name}, round {step.round}" if step.counted else f"{step.load.name} (preparation)"
        if found is None:
            missing.append(f"{name}: not run")
        elif found.result is None:
            missing.append(f"{name}: {found.error or 'no result'}")
        else:
            missing += [f"{name}: {host}" for host in found.result.missing]
    return tuple(missing)


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


CONFIDENCE = 0.95


class BenchmarkVerdict(Enum):
    """What a comparison found."""

    PASS = "pass"  # noqa: S105 - not a password
    IMPROVED = "improved"
    REGRESSED = "regressed"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure beside its baseline. `ratio` above 1 is better; None where nothing can be estimated.

    `reason` says by how much the figure itself is higher or lower.
    """

    verdict: BenchmarkVerdict
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    undecided: bool = False
    """More rounds may bring another verdict."""


def compare(
    baseline: Sequence[float], measured: Sequence[float], *, margin: float, more_is_better: bool = True, looks: int = 1
) -> Comparison:
    """Compare the values of a figure in the rounds of two campaigns.

    Args:
        baseline: Of the campaign that is the baseline.
        measured: Of the campaign that is judged.
        margin: The share by which the figure may be worse and still pass.
        more_is_better: False for latencies.
        looks: How often the campaign may be compared before it ends.
    """
    if any(not math.isfinite(value) or value <= 0 for value in (*baseline, *measured)):
        return Comparison(BenchmarkVerdict.INCONCLUSIVE, "a round measured nothing")
    rank = _rank(len(baseline), len(measured), looks)
    if rank is None:
        rounds = f"{len(baseline)} rounds of the baseline and {len(measured)} of the campaign"
        return Comparison(BenchmarkVerdict.INCONCLUSIVE, f"{rounds} are too few for an interval", undecided=True)
    sign = 1 if more_is_better else -1
    pairs = sorted(sign * (math.log(new) - math.log(old)) for new in measured for old in baseline)
    ratio, low, high = (math.exp(value) for value in (median(pairs), pairs[rank], pairs[-1 - rank]))
    worst, allowed = 1 - margin, f"the margin of {100 * margin:.3g} %"
    if high < worst:
        verdict, why = BenchmarkVerdict.REGRESSED, f"worse, by more than {allowed}"
    elif low > 1 / worst:
        verdict, why = BenchmarkVerdict.IMPROVED, f"better, by more than {allowed}"
    elif low >= worst:
        verdict, why = BenchmarkVerdict.PASS, f"not worse by more than {allowed}"
    else:
        verdict, why = BenchmarkVerdict.INCONCLUSIVE, f"{allowed} is within the interval; more rounds make it narrower"
    middle, *ends = (math.exp(sign * math.log(value)) for value in (ratio, low, high))
    interval = " to ".join(_change(value) for value in sorted(ends))
    reason = f"{_change(middle)} than in the baseline ({interval}): {why}"
    return Comparison(verdict, reason, ratio, low, high, verdict is BenchmarkVerdict.INCONCLUSIVE)


def _change(ratio: float) -> str:
    """A figure beside another, in words; 2 is 100 % higher."""
    return f"{100 * abs(ratio - 1):.1f} % {'lower' if ratio < 1 else 'higher'}"


def overall(verdicts: Sequence[BenchmarkVerdict]) -> BenchmarkVerdict:
    """The verdict on several figures: the worst of them, where one that is inconclusive is worse than a pass."""
    order = (
        BenchmarkVerdict.REGRESSED,
        BenchmarkVerdict.INCONCLUSIVE,
        BenchmarkVerdict.PASS,
        BenchmarkVerdict.IMPROVED,
    )
    return min(verdicts, key=order.index, default=BenchmarkVerdict.INCONCLUSIVE)


@cache
def _rank(first: int, second: int, looks: int) -> int | None:
    """Return how many of the sorted pairs lie outside of the interval at each end; None if there are too few for
    one."""
    total, outside, rank = math.comb(first + second, first), 0, None
    for wins, orders in enumerate(_orders(first, second)):
        outside += orders
        if 2 * outside * looks > (1 - CONFIDENCE) * total:
            break
        rank = wins
    return rank


def _orders(first: int, second: int) -> list[int]:
    """In how many orders of two groups 0, 1, 2 … pairs are won by the first: the Gaussian binomial coefficients."""
    counts = [1] + [0] * (first * second)
    for number in range(1, first + 1):
        for wins in range(len(counts) - 1, second + number - 1, -1):
            counts[wins] -= counts[wins - second - number]
        for wins in range(number, len(counts)):
            counts[wins] += counts[wins - number]
    return counts
