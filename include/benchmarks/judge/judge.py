"""Verdicts of campaigns, their records in the ledger, and the suite of rules that checks them.

Great Expectations applies the suite: every rule holds if and only if the verdict is good, every part was measured and
every requirement is met. The rules compare the figures themselves and not the verdict, so that a mistake in either of
them is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase

from pydantic import TypeAdapter
from sqlalchemy import Column, Connection, Index, Table, UniqueConstraint, insert, select, update

from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord, StepRecord
from include.benchmarks.campaign.plan import shown_bytes
from include.benchmarks.errors import BASELINE_REFUSED, CAMPAIGN_UNKNOWN, FIGURES_UNCHECKED
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
from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, hexadecimal, long_text, metadata
from include.quality.results import Expect, QualityRule, Row
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
    figure: StepFigure, before: Mapping[tuple[str, LoadAccess, FigureName], StepFigure], margin: float, looks: int
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


NAME = exact(128)

benchmark_campaigns = Table(
    "benchmark_campaigns",
    metadata,
    # campaigns that were judged; `document` has the figures of all rounds
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("campaign", exact(200), nullable=False),
    Column("target", NAME, nullable=False),
    Column("preset", NAME, nullable=False),
    Column("digest", hexadecimal(64), nullable=False),
    Column("began_at", UtcTime, nullable=False),
    Column("verdict", exact(16), nullable=False),
    Column("document", long_text(), nullable=False),
    UniqueConstraint("campaign"),
    Index(None, "target", "preset", "began_at"),
    **TABLE_OPTIONS,
)

benchmark_baselines = Table(
    "benchmark_baselines",
    metadata,
    # each acceptance by a person; the newest of a target and plan counts
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("target", NAME, nullable=False),
    Column("digest", hexadecimal(64), nullable=False),
    Column("campaign", exact(200), nullable=False),
    Column("accepted_by", NAME, nullable=False),
    Column("accepted_at", UtcTime, nullable=False),
    Index(None, "target", "digest"),
    **TABLE_OPTIONS,
)
_CAMPAIGN = TypeAdapter(JudgedCampaign)


def judge_campaign(bind: Bind, folder: CampaignFolder, settings: BenchmarkSettings) -> JudgedCampaign:
    """Judge a campaign against the baseline that is accepted now, and keep the verdict; again, it is replaced.

    Args:
        bind: The ledger.
        folder: Of the campaign.
        settings: Requirements, margin and prices.

    Raises:
        BenchmarkError: CAMPAIGN_UNKNOWN.
    """
    record, steps = folder.record(), list(folder.steps())
    judged = judge(record, steps, baseline_of(bind, record), settings)
    values = {
        "target": judged.target,
        "preset": judged.preset,
        "digest": judged.digest,
        "began_at": judged.began_at,
        "verdict": judged.verdict.value,
        "document": _CAMPAIGN.dump_json(judged).decode(),
    }
    table = benchmark_campaigns

    def work(connection: Connection) -> None:
        same = table.c.campaign == judged.id
        if connection.scalar(select(table.c.id).where(same).with_for_update()) is None:
            connection.execute(insert(table).values(campaign=judged.id, **values))
        else:
            connection.execute(update(table).where(same).values(values))

    writing(bind, work)
    return judged


def accept_baseline(bind: Bind, campaign: str, *, by: str, now: datetime) -> JudgedCampaign:
    """Let later campaigns with the same plan be compared with this one.

    Args:
        bind: The ledger.
        campaign: The id of a judged campaign that has all its parts.
        by: Who accepts it.
        now: When.

    Raises:
        BenchmarkError: CAMPAIGN_UNKNOWN, or BASELINE_REFUSED if parts are missing.
    """

    def work(connection: Connection) -> JudgedCampaign:
        judged = judged_campaign(connection, campaign)
        if judged.missing or not judged.figures:
            parts = "; ".join(judged.missing[:3]) or "it has no figures"
            raise BASELINE_REFUSED(campaign, f"parts of it are missing: {parts}")
        row = {"target": judged.target, "digest": judged.digest, "campaign": campaign}
        connection.execute(insert(benchmark_baselines).values(accepted_by=by[:128], accepted_at=now, **row))
        return judged

    return writing(bind, work)


def accepted_baseline(bind: Bind, target: str, digest: str) -> JudgedCampaign | None:
    """The campaign that a plan on a target is compared with; None as long as none was accepted."""
    columns = benchmark_baselines.c
    newest = select(columns.campaign).where(columns.target == target, columns.digest == digest)
    with reading(bind) as connection:
        campaign = connection.scalar(newest.order_by(columns.id.desc()).limit(1))
        return None if campaign is None else judged_campaign(connection, campaign)


def baseline_of(bind: Bind, record: CampaignRecord) -> JudgedCampaign | None:
    """The campaign that this one is compared with; None as long as no other was accepted."""
    baseline = accepted_baseline(bind, record.plan.wish.target, plan_digest(record.plan))
    # a campaign compared with itself passes, which proves nothing
    return None if baseline is None or baseline.id == record.id else baseline


def judged_campaign(bind: Bind, campaign: str) -> JudgedCampaign:
    """A campaign with its verdict. Raises BenchmarkError (CAMPAIGN_UNKNOWN)."""
    columns = benchmark_campaigns.c
    with reading(bind) as connection:
        document = connection.scalar(select(columns.document).where(columns.campaign == campaign))
    if document is None:
        raise CAMPAIGN_UNKNOWN(campaign, "the ledger has no verdict on it")
    return _CAMPAIGN.validate_json(document)


def judged_campaigns(
    bind: Bind, *, target: str | None = None, preset: str | None = None, limit: int = 100
) -> Sequence[JudgedCampaign]:
    """Campaigns with their verdicts, the newest first."""
    columns = benchmark_campaigns.c
    query = select(columns.document).order_by(columns.began_at.desc(), columns.id.desc()).limit(limit)
    if target is not None:
        query = query.where(columns.target == target)
    if preset is not None:
        query = query.where(columns.preset == preset)
    with reading(bind) as connection:
        return [_CAMPAIGN.validate_json(document) for document in connection.scalars(query)]


def accepted_campaigns(bind: Bind, target: str) -> frozenset[str]:
    """The ids of all campaigns on a target that were ever accepted as baselines."""
    columns = benchmark_baselines.c
    with reading(bind) as connection:
        return frozenset(connection.scalars(select(columns.campaign).where(columns.target == target)))


def fails(judged: JudgedCampaign) -> bool:
    """Tell whether people have to see to it: it regressed, or misses a requirement."""
    return judged.verdict is BenchmarkVerdict.REGRESSED or not judged.requirements_met


DATA_DOCS = "data-docs.html"
RULES = (
    QualityRule(Expect.EMPTY, "uncompared", "{name}: {uncompared}"),
    QualityRule(Expect.EMPTY, "missing", "missing: {missing}"),
    QualityRule(Expect.AT_LEAST, "low", "{name}: {reason}", other="least"),
    QualityRule(Expect.AT_LEAST, "failed_before", "{name}: {reason}", other="failed"),
    QualityRule(Expect.EMPTY, "unmet", "{name}: {unmet}"),
)


def check_figures(
    bind: Bind, folder: CampaignFolder, judged: JudgedCampaign, settings: BenchmarkSettings
) -> tuple[str, ...]:
    """Apply the suite, and write its Data Docs into the campaign's folder. Imports Great Expectations.

    Args:
        bind: The ledger, for the baseline.
        folder: Of the campaign.
        judged: Its verdict.
        settings: The margin.

    Returns:
        What breaks a rule.

    Raises:
        BenchmarkError: FIGURES_UNCHECKED if the suite and the verdict disagree.
        NightshiftError: A rule cannot be applied.
    """
    from include.quality.validate import apply_rules

    baseline = judged_campaign(bind, judged.baseline) if judged.baseline else None
    rows = list(figure_rows(judged, baseline, settings.margin))
    notes = (f"verdict: {judged.verdict.value}: {judged.reason}",)
    faults, page = apply_rules("figures", rows, RULES, notes, back=("report", "report of the campaign"))
    part = folder.path / f"{DATA_DOCS}.part"
    part.write_text(page, encoding="utf-8", errors="backslashreplace")
    part.replace(folder.path / DATA_DOCS)
    good = judged.verdict in {BenchmarkVerdict.PASS, BenchmarkVerdict.IMPROVED}
    if (good and judged.requirements_met and not judged.missing) == bool(faults):
        what = f"the verdict is {judged.verdict.value}, and the suite finds {'; '.join(faults[:3]) or 'nothing wrong'}"
        raise FIGURES_UNCHECKED(judged.id, what)
    return faults


def figure_rows(judged: JudgedCampaign, baseline: JudgedCampaign | None, margin: float) -> Iterator[Row]:
    """The table: a row for the campaign, for each judged figure, each requirement and each missing part."""
    before = {result.figure.key: result for result in baseline.figures} if baseline else {}
    figures = [result for result in judged.figures if result.figure.judged]
    yield {"name": "campaign", "uncompared": None if baseline and figures else judged.reason}
    for result in figures if baseline else ():
        yield _row(result, before.get(result.figure.key), margin)
    for number, check in enumerate(judged.requirements, start=1):
        unmet = None if check.met else f"{check.text}; measured: {check.shown}"
        yield {"name": f"requirement {number}, {check.step}", "unmet": unmet}
    for number, part in enumerate(judged.missing, start=1):
        yield {"name": f"part {number}", "missing": part}


def _row(result: JudgedFigure, old: JudgedFigure | None, margin: float) -> Row:
    figure, found = result.figure, result.comparison
    name = figure.title
    if found is None or old is None:
        return {"name": name, "uncompared": "the baseline does not have this figure"}
    return {
        "name": name,
        "low": found.low,
        "least": 1 - margin,
        # of each round: campaigns may have different numbers of them
        "failed": figure.failed / len(figure.values),
        "failed_before": old.figure.failed / len(old.figure.values),
        "uncompared": found.reason if found.low is None else None,
        "reason": found.reason,
    }
