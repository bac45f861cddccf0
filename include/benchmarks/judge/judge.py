"""The verdict on a campaign: its figures beside the baseline's, requirements, missing parts and cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase

from include.benchmarks.campaign.folder import CampaignRecord, StepRecord
from include.benchmarks.campaign.plan import shown_bytes
from include.benchmarks.judge.compare import (
    BenchmarkVerdict,
    Comparison,
    FigureName,
    StepFigure,
    compare,
    figures_of,
    missing_parts,
    overall,
    plan_digest,
)
from include.benchmarks.measure.loads import LoadAccess
from include.settings.benchmarks import BenchmarkSettings, RequirementLine

TB = 10**12
NAMED_FIGURES = 3
"""Of the reason of a verdict; the report has all of them."""


@dataclass(frozen=True, slots=True)
class JudgedFigure:
    """A figure and what the comparison found; None without a baseline for it."""

    figure: StepFigure
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class RequirementCheck:
    """A requirement beside what was measured; `measured`: None where the part is missing."""

    step: str
    text: str
    measured: float | None
    met: bool
    latency: bool = False
    """`measured` is in milliseconds, else in bytes per second."""

    @property
    def shown(self) -> str:
        """Return what was measured, with its unit."""
        if self.measured is None:
            return "nothing"
        return f"{self.measured:.3g} ms" if self.latency else f"{shown_bytes(self.measured)}/s"


@dataclass(frozen=True, slots=True)
class TargetCost:
    """What the target holds and costs; None where it is not known."""

    raw_bytes: int | None
    usable_bytes: int | None
    per_usable_tb: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class JudgedCampaign:
    """A campaign with its verdict, as the ledger keeps it."""

    id: str
    target: str
    preset: str
    scale: float
    digest: str
    began_at: datetime
    baseline: str | None
    """The id of the campaign that it was compared with."""
    verdict: BenchmarkVerdict
    reason: str
    figures: tuple[JudgedFigure, ...]
    requirements: tuple[RequirementCheck, ...]
    missing: tuple[str, ...]
    cost: TargetCost

    @property
    def requirements_met(self) -> bool:
        """Tell whether every requirement is met; True where there are none."""
        return all(check.met for check in self.requirements)


def judge(
    record: CampaignRecord, steps: Sequence[StepRecord], baseline: JudgedCampaign | None, settings: BenchmarkSettings
) -> JudgedCampaign:
    """Judge a campaign.

    Args:
        record: Of the campaign.
        steps: Those of its steps that have ended.
        baseline: The accepted campaign with the same plan; None if there is none.
        settings: Requirements, margin and prices.
    """
    wish = record.plan.wish
    figures = _figures(record, steps, baseline, settings)
    missing = missing_parts(record, steps)
    verdict, reason = _verdict(figures, missing, baseline, settings.margin)
    lines = [line for line in settings.requirements if line.target == wish.target]
    return JudgedCampaign(
        id=record.id,
        target=wish.target,
        preset=wish.preset,
        scale=wish.scale,
        digest=plan_digest(record.plan),
        began_at=record.began_at,
        baseline=baseline.id if baseline else None,
        verdict=verdict,
        reason=reason,
        figures=figures,
        requirements=tuple(check for line in lines for check in _checks(line, record, figures)),
        missing=missing,
        cost=_cost(record, settings),
    )


def may_change(
    record: CampaignRecord, steps: Sequence[StepRecord], baseline: JudgedCampaign | None, settings: BenchmarkSettings
) -> bool:
    """Tell whether further rounds of steps may change the verdict on them; arguments as of `judge`.

    They do while a figure is not decided. Without a baseline every round helps: the campaign may become one. Rounds do
    not bring back what is missing, nor operations that failed.
    """
    if any(ended.result is None or ended.result.missing for ended in steps):
        return False
    if baseline is None:
        return True
    compared = (result.comparison for result in _figures(record, steps, baseline, settings) if result.figure.judged)
    return any(found is not None and found.undecided for found in compared)


def _figures(
    record: CampaignRecord, steps: Sequence[StepRecord], baseline: JudgedCampaign | None, settings: BenchmarkSettings
) -> tuple[JudgedFigure, ...]:
    before = {judged.figure.key: judged.figure for judged in baseline.figures} if baseline else {}
    looks = len(record.plan.looks)
    return tuple(_judged(figure, before, settings.margin, looks) for figure in figures_of(steps))


def _judged(
    figure: StepFigure,
    before: Mapping[tuple[str, LoadAccess, FigureName], StepFigure],
    margin: float,
    looks: int,
) -> JudgedFigure:
    old = before.get(figure.key)
    if old is None:
        return JudgedFigure(figure)
    better = figure.name.more_is_better
    found = compare(old.values, figure.values, margin=margin, more_is_better=better, looks=looks)
    # campaigns may have different numbers of rounds
    more_failed = figure.failed * len(old.values) > old.failed * len(figure.values)
    if more_failed and found.verdict is not BenchmarkVerdict.REGRESSED:
        # what fails soon may even be fast
        rounds = f"in {len(figure.values)} rounds, {old.failed} in {len(old.values)} rounds of the baseline"
        what = f"{figure.failed} operations failed {rounds}"
        found = replace(found, verdict=BenchmarkVerdict.INCONCLUSIVE, reason=what, undecided=False)
    return JudgedFigure(figure, found)


def _verdict(
    figures: Sequence[JudgedFigure], missing: Sequence[str], baseline: JudgedCampaign | None, margin: float
) -> tuple[BenchmarkVerdict, str]:
    if baseline is None:
        return BenchmarkVerdict.INCONCLUSIVE, "no baseline with the same plan is accepted"
    judged = [result for result in figures if result.figure.judged]
    verdict = overall([result.comparison.verdict for result in judged if result.comparison])
    reasons = [
        f"{result.figure.title}: {result.comparison.reason}"
        for result in judged
        if result.comparison and result.comparison.verdict is verdict
    ]
    incomplete = missing or any(result.comparison is None for result in judged)
    if incomplete and verdict is not BenchmarkVerdict.REGRESSED:
        parts = f"{len(missing)} parts are missing" if missing else "the baseline has other figures"
        return BenchmarkVerdict.INCONCLUSIVE, parts
    if verdict is BenchmarkVerdict.PASS:
        return verdict, f"no figure of {len(judged)} is worse than in the baseline by more than {100 * margin:.3g} %"
    more = f"; {len(reasons) - NAMED_FIGURES} further figures" if len(reasons) > NAMED_FIGURES else ""
    return verdict, "; ".join(reasons[:NAMED_FIGURES]) + more


def _checks(
    line: RequirementLine, record: CampaignRecord, figures: Sequence[JudgedFigure]
) -> Iterator[RequirementCheck]:
    names = {step.load.name for step in record.plan.steps if step.counted}
    for step in sorted(name for name in names if fnmatchcase(name, line.step)):
        found = [result.figure for result in figures if result.figure.step == step]
        if line.throughput is not None:
            # of both directions together, as people state it
            speeds = [figure.median for figure in found if figure.name is FigureName.THROUGHPUT]
            speed = sum(speeds) if speeds else None
            text = f"at least {shown_bytes(line.throughput)}/s"
            yield RequirementCheck(step, text, speed, speed is not None and speed >= line.throughput)
        if line.p95_ms is not None:
            latencies = [figure.median for figure in found if figure.name is FigureName.P95_MS]
            latency = max(latencies, default=None)
            text = f"p95 at most {line.p95_ms:g} ms"
            met = latency is not None and latency <= line.p95_ms
            yield RequirementCheck(step, text, latency, met, latency=True)


def _cost(record: CampaignRecord, settings: BenchmarkSettings) -> TargetCost:
    target = settings.targets.get(record.plan.wish.target)
    reported = record.space.total if record.space else None
    if target is None:
        return TargetCost(None, reported, None, settings.currency)
    size = reported if target.usable_bytes is None else int(target.usable_bytes)
    price = target.price
    return TargetCost(
        raw_bytes=None if target.raw_bytes is None else int(target.raw_bytes),
        usable_bytes=size,
        per_usable_tb=price / (size / TB) if price is not None and size else None,
        currency=settings.currency,
    )
