"""*Benchmarks*: campaigns with their verdicts, and the drift of a target against its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from include.benchmarks.campaign.folder import FOLDER, ID
from include.benchmarks.judge.compare import BenchmarkVerdict, FigureName, direction_title
from include.benchmarks.judge.judge import DATA_DOCS, JudgedCampaign, accepted_campaigns, judged_campaigns
from include.benchmarks.judge.report import REPORT, shown_value
from include.pages import charts
from include.pages.asked import Asked

EVERY_S, PAGE, PERCENT = 30, 100, 100
KINDS: Mapping[BenchmarkVerdict, str] = {
    BenchmarkVerdict.PASS: "good",
    BenchmarkVerdict.IMPROVED: "good",
    BenchmarkVerdict.REGRESSED: "bad",
    BenchmarkVerdict.INCONCLUSIVE: "wait",
}


def read(asked: Asked) -> dict[str, Any]:
    """The newest campaigns, of one `target` and `preset` if they are given; a history where there is one plan."""
    settings = asked.site.settings
    target, preset = asked.choice("target", settings.benchmarks.targets), asked.text("preset", longest=128)
    campaigns = judged_campaigns(asked.site.ledger, target=target, preset=preset, limit=PAGE)
    baselines = {name: accepted_campaigns(asked.site.ledger, name) for name in {row.target for row in campaigns}}
    shown = [
        campaign
        for campaign in campaigns
        if campaigns and campaign.target == campaigns[0].target and campaign.digest == campaigns[0].digest
    ]
    return {
        "targets": sorted(settings.benchmarks.targets),
        "presets": sorted({campaign.preset for campaign in campaigns} | ({preset} if preset else set())),
        "target": target,
        "preset": preset,
        "rows": [_row(settings.paths.var, row, row.id in baselines[row.target]) for row in campaigns],
        "of": shown[0] if shown else None,
        "history": history_figure(shown) if len(shown) > 1 else None,
        "drift": drift_figure(shown, settings.benchmarks.margin),
        "every": EVERY_S,
    }


def report_file(var: Path, campaign: str) -> Path | None:
    """The report of a campaign as a URL names it; None if this machine keeps none.

    Args:
        var: `paths.var` of the configuration.
        campaign: The id of the campaign.
    """
    return _file_of(var, campaign, REPORT)


def docs_of_campaign(var: Path, campaign: str) -> Path | None:
    """The Data Docs of a campaign, as `report_file`; None also where no task has judged it."""
    return _file_of(var, campaign, DATA_DOCS)


def _file_of(var: Path, campaign: str, name: str) -> Path | None:
    if not ID.fullmatch(campaign):
        return None
    file = var / FOLDER / campaign / name
    return file if file.is_file() and not file.is_symlink() and not file.parent.is_symlink() else None


def history_figure(campaigns: Sequence[JudgedCampaign]) -> dict[str, Any]:
    """Medians of the throughput of campaigns with the same plan, over time."""
    ordered = sorted(campaigns, key=lambda item: item.began_at)
    keys = [result.figure.key for result in ordered[-1].figures if result.figure.name is FigureName.THROUGHPUT]
    traces = []
    for key in keys:
        medians = [
            {result.figure.key: result.figure.median for result in campaign.figures}.get(key) for campaign in ordered
        ]
        name = direction_title(key[0], key[1])
        traces.append(charts.line(name, [campaign.began_at for campaign in ordered], medians))
    return charts.figure("Throughput", traces, unit="B/s")


def drift_figure(campaigns: Sequence[JudgedCampaign], margin: float) -> dict[str, Any] | None:
    """Judged figures in percent of their baseline, over time; None where no campaign had a baseline.

    Args:
        campaigns: With the same plan.
        margin: The share by which a figure may be worse and still pass; drawn as a line.
    """
    compared = sorted((campaign for campaign in campaigns if campaign.baseline), key=lambda campaign: campaign.began_at)
    if not compared:
        return None
    times = [campaign.began_at for campaign in compared]
    traces = []
    for figure in (result.figure for result in compared[-1].figures if result.figure.judged):
        shares = [
            {
                result.figure.key: PERCENT * result.comparison.ratio
                for result in campaign.figures
                if result.comparison and result.comparison.ratio is not None
            }.get(figure.key)
            for campaign in compared
        ]
        traces.append(charts.line(figure.title, times, shares))
    traces.append(charts.line("margin", times, [PERCENT * (1 - margin)] * len(times)))
    return charts.figure("Of the baseline; above 100 % is better", traces, unit=" %", from_zero=False)


def _row(var: Path, campaign: JudgedCampaign, accepted: bool) -> dict[str, Any]:
    judged = [result for result in campaign.figures if result.figure.judged]
    return {
        "campaign": campaign,
        "kind": KINDS[campaign.verdict],
        "accepted": accepted,
        "figures": [(result.figure.title, shown_value(result.figure, result.figure.median)) for result in judged],
        "unmet": [check for check in campaign.requirements if not check.met],
        "report": f"benchmarks/{campaign.id}/report" if report_file(var, campaign.id) else None,
        "like": f"benchmarks?{urlencode({'target': campaign.target, 'preset': campaign.preset})}",
    }
