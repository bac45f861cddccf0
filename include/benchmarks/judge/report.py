"""The report of a campaign: one HTML file that needs no other, an SVG of each chart, and its tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import cycle, zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord, StepRecord
from include.benchmarks.campaign.plan import find_preset, shown_bytes, shown_rate
from include.benchmarks.errors import BenchmarkError
from include.benchmarks.judge.charts import MB, BenchmarkChart, ChartLine, Point, charts_of
from include.benchmarks.judge.compare import FigureName, StepFigure, direction_title
from include.benchmarks.judge.judge import JudgedCampaign, accepted_campaigns, judged_campaigns
from include.benchmarks.measure.loads import LoadAccess
from include.benchmarks.measure.osds import OsdLatency, RecoveryLook, merged_latencies
from include.benchmarks.measure.probes import LIMIT_RULE, MachineUse, ServersView
from include.ledger.engine import Bind
from include.settings.benchmarks import TargetKind

SOURCE_RATIO = 5
"""Of the publication benchmark of the LHCb nightlies of 2021, with 64 connections."""


@dataclass(frozen=True, slots=True)
class PublicationRow:
    """Files per second with so many connections, in this campaign and in the other; `ratio`: S3 to POSIX."""

    connections: int
    here: float
    there: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class PublicationComparison:
    """The rows of a report; none where nothing is published. `other`: the target of the other campaign."""

    target: str
    rows: tuple[PublicationRow, ...] = ()
    other: str | None = None
    source_ratio: int = SOURCE_RATIO

    def charts(self) -> tuple[BenchmarkChart, ...]:
        """Files per second against connections."""
        if not self.rows:
            return ()
        lines = [ChartLine(self.target, tuple((row.connections, row.here) for row in self.rows))]
        theirs = tuple((row.connections, row.there) for row in self.rows if row.there is not None)
        lines += [ChartLine(self.other, theirs)] if self.other and theirs else []
        title = "Publication against connections"
        return (BenchmarkChart("connections", title, "Connections", "Files per second", tuple(lines), log_x=True),)


def publication_of(bind: Bind, folder: CampaignFolder, judged: JudgedCampaign) -> PublicationComparison:
    """Compare a campaign with the newest one of the same plan on a target of the other kind.

    Args:
        bind: The ledger.
        folder: Of the campaign.
        judged: Its verdict.
    """
    record = folder.record()
    here = _rates(record, judged)
    if not here:
        return PublicationComparison(judged.target)
    other = _other(bind, folder, record, judged)
    there = _rates(record, other) if other else {}
    on_s3 = record.plan.kind is TargetKind.BUCKET
    rows = []
    for connections, rate in sorted(here.items()):
        beside = there.get(connections)
        ratio = (rate / beside if on_s3 else beside / rate) if beside else None
        rows.append(PublicationRow(connections, rate, beside, ratio))
    return PublicationComparison(judged.target, tuple(rows), other.target if other else None)


def _rates(record: CampaignRecord, judged: JudgedCampaign) -> Mapping[int, float]:
    """Medians by the number of connections. Both campaigns have the steps of one plan."""
    connections = {
        step.load.name: load.connections
        for step in record.plan.steps
        for load in step.load.loads
        if load.access is LoadAccess.PUBLISH
    }
    return {
        count: result.figure.median
        for result in judged.figures
        if result.figure.name is FigureName.OPERATIONS
        and (count := connections.get(result.figure.step))
        and result.figure.median
    }


def _other(bind: Bind, folder: CampaignFolder, record: CampaignRecord, judged: JudgedCampaign) -> JudgedCampaign | None:
    for other in judged_campaigns(bind, preset=judged.preset, limit=HISTORY):
        if other.digest != judged.digest or other.target == judged.target:
            continue
        try:
            kind = CampaignFolder(folder.path.parent, other.id).record().plan.kind
        except BenchmarkError:  # it was measured by another machine
            continue
        if kind is not record.plan.kind:
            return other
    return None


@dataclass(frozen=True, slots=True)
class ReadersRow:
    """A way of many readers: the slowest and the median job in seconds, and the origin's bytes as a share of the set.

    Of the last round.
    """

    way: str
    ended: bool
    median_s: float
    longest_s: float
    origin_share: float | None
    failed: int
    wrong: int


def readers_of(steps: Sequence[StepRecord]) -> tuple[ReadersRow, ...]:
    """The rows of ways that were measured; none where nothing is read by many jobs."""
    rows = {}
    for ended in steps:
        for load in ended.result.loads if ended.result else ():
            if load.times is not None and (way := ended.step.load.loads[0].way):
                jobs = load.times.jobs or (math.nan,)
                rows[way] = ReadersRow(
                    way.value, not (ended.result and ended.result.missing), median(jobs), max(jobs),
                    load.times.origin_share, load.failed, load.times.wrong,
                )  # fmt: skip
    return tuple(rows.values())


SECONDS = "Seconds since the campaign began"
_OTHER = {LoadAccess.READ: {LoadAccess.WRITE}, LoadAccess.WRITE: {LoadAccess.READ}}
_OF_MACHINES: tuple[tuple[str, str, str, Callable[[MachineUse], float]], ...] = (
    ("machines-processors", "Processors in use", "Processor time (%)", lambda use: use.busy_percent),
    ("machines-disk", "The busiest disk of each machine", "Time in use (%)", lambda use: use.disk_percent),
    ("machines-network", "The busiest network interface of each machine", "Throughput (MB/s)",
     lambda use: use.network_bytes_per_s / MB),
    ("machines-load", "Load of each machine", "Processes", lambda use: use.load),
    ("machines-steal", "Processor time taken by other machines", "Processor time (%)", lambda use: use.steal_percent),
)  # fmt: skip
_OF_RECOVERY: tuple[tuple[str, str, Callable[[RecoveryLook], float]], ...] = (
    ("degraded", "Copies and chunks", lambda look: look.degraded),
    ("misplaced", "Copies and chunks", lambda look: look.misplaced),
    ("recovered", "Throughput (MB/s)", lambda look: look.bytes_per_s / MB),
)


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine in a step: the mean of its rounds."""

    step: str
    machine: str
    server: bool
    use: MachineUse


@dataclass(frozen=True, slots=True)
class OsdRow:
    """An OSD in a step: the operations of all rounds, in one direction."""

    step: str
    latency: OsdLatency
    commit_ms: float | None


@dataclass(frozen=True, slots=True)
class ServerRows:
    """What the report has in its tables, and what is missing there."""

    machines: tuple[MachineRow, ...]
    osds: tuple[OsdRow, ...]
    notes: tuple[str, ...]


def servers_of(steps: Sequence[StepRecord]) -> ServerRows:
    """The tables of a report. `steps`: those that have ended; only counted ones have rows."""
    views = _views(steps)
    machines = []
    for step, rounds in views.items():
        uses: defaultdict[tuple[bool, str], list[MachineUse]] = defaultdict(list)
        for machine in (machine for view in rounds for machine in view.machines):
            uses[machine.server, machine.name].append(machine.use)
        machines += [MachineRow(step, name, server, MachineUse.mean(found)) for (server, name), found in uses.items()]
    notes = {note for ended in steps if ended.servers for note in ended.servers.notes}
    return ServerRows(tuple(machines), tuple(_osds(steps)), tuple(sorted(notes)))


def server_charts(began_at: datetime, steps: Sequence[StepRecord]) -> tuple[BenchmarkChart, ...]:
    """The charts of a report that there are data for. `began_at`: of the campaign."""
    return (*_of_osds(steps), *_of_machines(began_at, steps), *_of_recovery(began_at, steps))


def _views(steps: Sequence[StepRecord]) -> dict[str, list[ServersView]]:
    views: defaultdict[str, list[ServersView]] = defaultdict(list)
    for ended in steps:
        if ended.step.counted and ended.servers is not None:
            views[ended.step.load.name].append(ended.servers)
    return views


def _osds(steps: Sequence[StepRecord]) -> Iterator[OsdRow]:
    for step, rounds in _views(steps).items():
        commits: defaultdict[int, list[float]] = defaultdict(list)
        for osd, commit_ms in (item for view in rounds for item in view.commit_ms.items()):
            commits[osd].append(commit_ms)
        for latency in merged_latencies(part for view in rounds for part in view.latencies):
            if latency.operations:
                commit_ms_of = commits.get(latency.osd)
                yield OsdRow(step, latency, fmean(commit_ms_of) if commit_ms_of else None)


def _of_osds(steps: Sequence[StepRecord]) -> Iterator[BenchmarkChart]:
    loads = {ended.step.load.name: {load.access for load in ended.step.load.loads} for ended in steps}
    lines: defaultdict[str, list[Point]] = defaultdict(list)
    for row in _osds(steps):
        value = row.latency.percentile_ms(95)
        # the few reads of a step that only writes are in the table
        if value is not None and loads[row.step] != _OTHER[row.latency.access]:
            lines[f"{row.step} {row.latency.access.value}"].append((row.latency.osd, value))
    if lines:
        yield _chart("osd-latency", "95th percentile of the latency in each OSD", "OSD", "Latency (ms)", lines)


def _of_machines(began_at: datetime, steps: Sequence[StepRecord]) -> Iterator[BenchmarkChart]:
    for chart, title, label, value in _OF_MACHINES:
        lines: defaultdict[str, list[Point]] = defaultdict(list)
        for ended in steps:
            for machine in ended.servers.machines if ended.servers else ():
                start = (ended.began_at - began_at).total_seconds()
                lines[machine.name] += [(start + use.at_s, value(use)) for use in machine.over_time]
        if lines:
            yield _chart(chart, title, SECONDS, label, lines)


def _of_recovery(began_at: datetime, steps: Sequence[StepRecord]) -> Iterator[BenchmarkChart]:
    """None of a cluster that had nothing to recover."""
    charts: defaultdict[str, defaultdict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for name, label, value in _OF_RECOVERY:
        for ended in steps:
            start = (ended.began_at - began_at).total_seconds()
            looks = ended.servers.recovery if ended.servers else ()
            charts[label][name] += [(start + look.at_s, value(look)) for look in looks]
    for number, (label, lines) in enumerate(charts.items()):
        if any(y for points in lines.values() for _, y in points):
            title = "Recovered" if number else "Objects that are not where they should be"
            yield _chart("recovery-rate" if number else "recovery", title, SECONDS, label, lines)


def _chart(name: str, title: str, x_label: str, y_label: str, lines: dict[str, list[Point]]) -> BenchmarkChart:
    drawn = tuple(ChartLine(line, tuple(points)) for line, points in lines.items())
    return BenchmarkChart(name, title, x_label, y_label, drawn)


COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#64748b", "#06b6d4", "#d946ef")


def plotly_figure(chart: BenchmarkChart) -> dict[str, Any]:
    """Return what `Plotly.newPlot` takes."""
    traces = []
    for number, line in enumerate(chart.lines):
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "markers" if chart.marks_only else "lines+markers",
            "name": line.name,
            "x": [_day(x).isoformat() if chart.days else x for x, _ in line.points],
            # JSON has no word for a gap but null
            "y": [None if math.isnan(y) else y for _, y in line.points],
            "marker": {"color": COLOURS[number % len(COLOURS)]},
        }
        if line.text:
            trace |= {"text": list(line.text), "mode": "lines+markers+text", "textposition": "top center"}
        traces.append(trace)
    layout = {
        "title": {"text": chart.title},
        "height": 420,
        "xaxis": {
            "title": {"text": chart.x_label},
            "type": "date" if chart.days else "log" if chart.log_x else "linear",
        },
        "yaxis": {"title": {"text": chart.y_label}, "rangemode": "tozero"},
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.2},
    }
    return {"data": traces, "layout": layout}


_LEFT, _RIGHT, _UPPER, _LOWER, _LEGEND_ROW = 70, 860, 60, 400, 15
_HEADROOM = 1.08
"""Of the vertical axis, above the highest point and its text."""
_TICKS = 6


def svg(chart: BenchmarkChart, subject: str) -> str:
    """Draw the chart as a picture; `subject`, below its title, says what was measured."""
    scale: Callable[[float], float] = math.log2 if chart.log_x else float
    drawn = [(scale(x), y) for line in chart.lines for x, y in line.points if not math.isnan(y)]
    first, last = min((x for x, _ in drawn), default=0.0), max((x for x, _ in drawn), default=1.0)
    highest = _HEADROOM * max((y for _, y in drawn), default=0.0) or 1.0

    def across(x: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (x - first) / (last - first or 1.0), 1)

    def down(y: float) -> float:
        return round(_LOWER - (_LOWER - _UPPER) * y / highest, 1)

    lines = []
    for line, colour in zip(chart.lines, cycle(COLOURS)):
        path, draw, marks = "", "M", list[tuple[float, float, str | None]]()
        for (x, y), text in zip_longest(line.points, line.text[: len(line.points)]):
            if math.isnan(y):
                draw = "M"  # nothing is drawn over a gap
                continue
            marks.append((across(scale(x)), down(y), text))
            path += f"{draw}{across(scale(x))},{down(y)} "
            draw = "M" if chart.marks_only else "L"
        lines.append({"name": line.name, "colour": colour, "path": path, "marks": marks})
    values = {
        "columns": [(across(x), _tick_label(chart, x)) for x in _ticks(first, last, whole=chart.log_x)],
        "rows": [(down(y), f"{y:,.10g}") for y in _ticks(0.0, highest)],
        "width": _RIGHT + 20,
        "height": _LOWER + 60 + _LEGEND_ROW * len(lines),
        "left": _LEFT, "right": _RIGHT, "upper": _UPPER, "lower": _LOWER,
    }  # fmt: skip
    return _environment().get_template("chart.svg").render(values, chart=chart, subject=subject, lines=lines)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return at most some six round values between two. `whole`: no fractions."""
    least = (high - low or 1.0) / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)
    step = max(step, 1.0) if whole else step
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick_label(chart: BenchmarkChart, x: float) -> str:
    if chart.days:
        return f"{_day(x):%m-%d %H:%M}"
    return f"{2.0**x if chart.log_x else x:,.10g}"


def _day(seconds: float) -> datetime:
    # Plotly draws times without a zone as they are
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


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
    for old in (*pictures.glob("*.png"), *pictures.glob("*.svg")):
        old.unlink()
    for chart in charts:
        (pictures / f"{chart.name}.svg").write_text(svg(chart, subject), encoding="utf-8")
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
        "readers": readers_of(steps),
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
