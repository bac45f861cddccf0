"""The report of a campaign: one HTML file that needs no other, and a PNG of each chart."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from include.benchmarks.campaign.folder import CampaignFolder
from include.benchmarks.report.charts import charts_of
from include.benchmarks.report.draw import plotly_figure, png
from include.benchmarks.report.publication import publication_of
from include.benchmarks.report.servers import server_charts, servers_of
from include.benchmarks.scenarios.plan import find_preset, shown_bytes, shown_rate
from include.benchmarks.servers.machine import LIMIT_RULE
from include.benchmarks.verdict.figures import FigureName, StepFigure, direction_title
from include.benchmarks.verdict.judge import JudgedCampaign
from include.benchmarks.verdict.record import accepted_campaigns, judged_campaigns
from include.ledger.engine import Bind

REPORT = "report.html"
CHARTS = "charts"
HISTORY = 200


def write_report(bind: Bind, folder: CampaignFolder, judged: JudgedCampaign) -> Path:
    """Write the report into the campaign's folder; what was there is replaced.

    Args:
        bind: The ledger, for the history.
        folder: Of the campaign.
        judged: Its verdict.

    Returns:
        The HTML file.
    """
    record, steps = folder.record(), list(folder.steps())
    earlier = judged_campaigns(bind, target=judged.target, preset=judged.preset, limit=HISTORY)
    history = [campaign for campaign in earlier if campaign.digest == judged.digest]
    publication = publication_of(bind, folder, judged)
    charts = (
        *charts_of(steps, history, accepted_campaigns(bind, judged.target)),
        *publication.charts(),
        *server_charts(record.began_at, steps),
    )
    subject = f"{judged.target}, {judged.preset}, scale {judged.scale:g}"
    pictures = folder.path / CHARTS
    pictures.mkdir(exist_ok=True)
    for old in pictures.glob("*.png"):
        old.unlink()
    for chart in charts:
        (pictures / f"{chart.name}.png").write_bytes(png(chart, subject))
    values: dict[str, Any] = {
        "judged": judged,
        "record": record,
        "preset": find_preset(judged.preset),
        "steps": steps,
        "rounds": max((ended.step.round for ended in steps if ended.result), default=0),
        "figures": {chart.name: plotly_figure(chart) for chart in charts},
        "notes": sorted({note for ended in steps if ended.result for note in ended.result.notes}),
        "servers": servers_of(steps),
        "limit_rule": LIMIT_RULE,
        "publication": publication,
        "versions": sorted({ended.result.version for ended in steps if ended.result}),
        "steal": max((ended.noise.steal_percent for ended in steps), default=0.0),
        "load": max((ended.noise.load_before for ended in steps), default=0.0),
        "plotly": _plotly(),
    }
    part, report = folder.path / "report.part", folder.path / REPORT
    part.write_text(_environment().get_template("report.html").render(values), encoding="utf-8")
    part.replace(report)
    return report


def shown_value(figure: StepFigure, value: float) -> str:
    """A value of a figure, with its unit."""
    match figure.name:
        case FigureName.THROUGHPUT:
            return f"{shown_bytes(value)}/s"
        case FigureName.OPERATIONS:
            return shown_rate(value)
        case FigureName.P95_MS | FigureName.MEAN_MS:
            return f"{value:.3g} ms"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"shown": shown_value, "direction": direction_title}
    made.filters |= {"bytes": shown_bytes}
    return made


@cache
def _plotly() -> str:
    """Plotly's script, from the installed package."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    script: str = get_plotlyjs()
    # a script element ends at the first of these, whatever it is part of
    return script.replace("</script", r"<\/script")
