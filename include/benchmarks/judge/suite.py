"""The figures of a judged campaign under a suite of rules, which Great Expectations applies: every rule holds if and
only if the verdict is good, every part was measured and every requirement is met.

The rules compare the figures themselves and not the verdict, so that a mistake in either of them is found.
"""

from __future__ import annotations

from collections.abc import Iterator

from include.benchmarks.campaign.folder import CampaignFolder
from include.benchmarks.errors import FIGURES_UNCHECKED
from include.benchmarks.judge.compare import BenchmarkVerdict
from include.benchmarks.judge.judge import JudgedCampaign, JudgedFigure, judged_campaign
from include.ledger.engine import Bind
from include.quality.results import Expect, QualityRule, Row
from include.settings.benchmarks import BenchmarkSettings

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
