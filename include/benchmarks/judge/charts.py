"""The charts of a campaign as values, which are drawn in a page and as SVG. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from include.benchmarks.campaign.folder import StepRecord
from include.benchmarks.judge.compare import FigureName, direction_title
from include.benchmarks.judge.judge import JudgedCampaign
from include.benchmarks.measure.loads import DistantRead, DistantStrategy, LoadAccess, MeasuredLoad, TcpWindow
from include.settings.benchmarks import EndpointServer

MB, PERCENT = 1e6, 100
LEAST_FILLED = 8
"""Percent of a target."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A named line with a mark at each point; `text` labels the marks. A value that is not a number is a gap."""

    name: str
    points: tuple[Point, ...]
    text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchmarkChart:
    """A chart; `name` is that of its file."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[ChartLine, ...]
    log_x: bool = False
    days: bool = False
    """The values of x are Unix times."""
    marks_only: bool = False
    """Points are not joined."""


def charts_of(
    steps: Sequence[StepRecord], history: Sequence[JudgedCampaign], accepted: Iterable[str] = ()
) -> tuple[BenchmarkChart, ...]:
    """The charts that a campaign has data for.

    Args:
        steps: Those that have ended.
        history: Campaigns with the same plan, this one among them.
        accepted: The ids of those that were accepted as baselines.
    """
    counted = [ended for ended in steps if ended.step.counted and ended.result is not None]
    found = (
        _against(
            counted, "streams", "Throughput against streams", "Streams",
            lambda ended, load: _streams(ended, load.access),
        ),
        _against(
            counted, "blocks", "Throughput against the size of blocks", "Block size (kB)",
            lambda ended, _: ended.step.load.loads[0].block_bytes / 1000, log_x=True,
        ),
        _against(
            _filled(steps, counted), "occupancy", "Throughput against occupancy", "Occupancy of the target (%)",
            lambda ended, _: round(ended.space.used_percent) if ended.space else None,
        ),
        _against(
            counted, "packets", "Throughput against the packet size of erasure coding", "Packet size (KiB)",
            lambda ended, _: ended.step.packet_bytes / 1024 if ended.step.packet_bytes else None, log_x=True,
        ),
        _outage(counted),
        _recovery(counted),
        _response(counted),
        _rounds(counted),
        _over_time(counted, "throughput-over-time", "Throughput over time", "Throughput (MB/s)",
                   _speeds),
        _over_time(counted, "latency-over-time", "95th percentile of the latency over time", "Latency (ms)",
                   lambda load: [(point.second, point.p95_ms) for point in load.series if point.p95_ms is not None]),
        _jobs(counted),
        _files(counted),
        *_distances(counted),
        _history(history, frozenset(accepted)),
        _drift(history),
    )  # fmt: skip
    return tuple(chart for chart in found if chart is not None and _is_line(chart))


def _is_line(chart: BenchmarkChart) -> bool:
    """Tell whether there is more than one place on the horizontal axis: a single one is better read in the table."""
    return len({x for line in chart.lines for x, y in line.points if not math.isnan(y)}) > 1


def _against(
    steps: Sequence[StepRecord],
    name: str,
    title: str,
    x_label: str,
    place: Callable[[StepRecord, MeasuredLoad], float | None],
    *,
    log_x: bool = False,
) -> BenchmarkChart | None:
    """Medians of the rounds over what differs between steps; None where nothing differs."""
    values: defaultdict[LoadAccess, defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for ended, load in _loads(steps):
        x = place(ended, load)
        if x is not None and load.bytes:
            values[load.access][x].append(load.throughput / MB)
    lines = tuple(
        ChartLine(access.value, tuple((x, median(speeds)) for x, speeds in sorted(found.items())))
        for access, found in values.items()
        if len(found) > 1
    )
    return BenchmarkChart(name, title, x_label, "Throughput (MB/s)", lines, log_x=log_x) if lines else None


def _filled(steps: Sequence[StepRecord], counted: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """The counted steps, if the campaign fills the target between them: else other things differ between them."""
    if any(ended.step.servers is not None for ended in counted) or not any(ended.step.fills for ended in steps):
        return ()
    levels = [ended.space.used_percent for ended in counted if ended.space]
    return counted if levels and max(levels) - min(levels) >= LEAST_FILLED else ()


def _speeds(load: MeasuredLoad) -> list[tuple[int, float]]:
    """MB/s in each second; 0 in one that the runner has no line of, since no operation ended in it."""
    known = {point.second: point.bytes_per_s / MB for point in load.series}
    return [(second, known.get(second, 0.0)) for second in range(min(known), max(known) + 1)] if known else []


def _outage(steps: Sequence[StepRecord]) -> BenchmarkChart | None:
    """The last round of steps between which servers are stopped and started, one after the other."""
    lines: defaultdict[LoadAccess, list[tuple[Point, str]]] = defaultdict(list)
    for begin, ended in _last_round(steps):
        for load in ended.result.loads if ended.result else ():
            points: list[Point] = [(begin + second, speed) for second, speed in _speeds(load)]
            lines[load.access] += _labelled(points, ended.step.load.name)
    drawn = _drawn({access.value: found for access, found in lines.items()})
    title = "Throughput before, during and after the outage"
    return BenchmarkChart("outage", title, "Second", "Throughput (MB/s)", drawn) if drawn else None


def _recovery(steps: Sequence[StepRecord]) -> BenchmarkChart | None:
    """Return what the cluster reported meanwhile, where something was missing."""
    lines: defaultdict[str, list[tuple[Point, str]]] = defaultdict(list)
    for begin, ended in _last_round(steps):
        looks = ended.cluster
        for name, values in (
            ("degraded objects (%)", [look.degraded_percent for look in looks]),
            ("misplaced objects (%)", [look.misplaced_percent for look in looks]),
            ("OSDs down", [float(look.osds_down) for look in looks]),
            ("placement groups not clean", [float(look.unclean) for look in looks]),
        ):
            points = [(begin + look.second, value) for look, value in zip(looks, values, strict=True)]
            lines[name] += _labelled(points, ended.step.load.name if name.startswith("degraded") else "")
    seen = {name: found for name, found in lines.items() if any(point[1] > 0 for point, _ in found)}
    title = "The cluster before, during and after the outage"
    return BenchmarkChart("recovery", title, "Second", "Number, or %", _drawn(seen)) if seen else None


def _last_round(steps: Sequence[StepRecord]) -> list[tuple[float, StepRecord]]:
    """Steps about servers, each with the seconds from the beginning of the first."""
    found = [ended for ended in steps if ended.step.servers is not None]
    last = [ended for ended in found if ended.step.round == found[-1].step.round]
    return [((ended.began_at - last[0].began_at).total_seconds(), ended) for ended in last]


def _labelled(points: Sequence[Point], label: str) -> list[tuple[Point, str]]:
    """The points, the first with a label; a gap after the last, since nothing was measured then."""
    if not points:
        return []
    texts = [label, *[""] * len(points)]
    return list(zip([*points, (points[-1][0], math.nan)], texts, strict=True))


def _drawn(lines: Mapping[str, Sequence[tuple[Point, str]]]) -> tuple[ChartLine, ...]:
    return tuple(
        ChartLine(name, tuple(point for point, _ in found), tuple(text for _, text in found))
        for name, found in lines.items()
    )


def _response(steps: Sequence[StepRecord]) -> BenchmarkChart | None:
    """Latency over throughput, a point for each step: where more load brings only waiting."""
    speeds: defaultdict[tuple[LoadAccess, str], list[Point]] = defaultdict(list)
    for ended, load in _loads(steps):
        p95 = load.percentiles().get("p95", load.mean_ms)
        if p95 is not None and load.bytes:
            speeds[load.access, ended.step.load.name].append((load.throughput / MB, p95))
    lines: defaultdict[LoadAccess, list[tuple[Point, str]]] = defaultdict(list)
    for (access, name), points in speeds.items():
        middle = (median(x for x, _ in points), median(y for _, y in points))
        lines[access].append((middle, name))
    drawn = _drawn({access.value: found for access, found in lines.items()})
    title = "Latency against throughput"
    return BenchmarkChart("response", title, "Throughput (MB/s)", "p95 latency (ms)", drawn) if drawn else None


def _rounds(steps: Sequence[StepRecord]) -> BenchmarkChart | None:
    values: defaultdict[str, list[Point]] = defaultdict(list)
    for ended, load in _loads(steps):
        if load.bytes:
            values[_name(ended, load)].append((ended.step.round, load.throughput / MB))
    lines = tuple(ChartLine(name, tuple(points)) for name, points in values.items() if len(points) > 1)
    return BenchmarkChart("rounds", "Throughput of each round", "Round", "Throughput (MB/s)", lines) if lines else None


def _over_time(
    steps: Sequence[StepRecord],
    name: str,
    title: str,
    y_label: str,
    points_of: Callable[[MeasuredLoad], list[tuple[int, float]]],
) -> BenchmarkChart | None:
    """Of each step its last round."""
    last: dict[str, list[tuple[int, float]]] = {}
    for ended, load in _loads(steps):
        last[_name(ended, load)] = points_of(load)
    lines = tuple(ChartLine(step, tuple(points)) for step, points in last.items() if points)
    return BenchmarkChart(name, title, "Second", y_label, lines) if lines else None


def _jobs(steps: Sequence[StepRecord]) -> BenchmarkChart | None:
    """Jobs by the time that they took, in bars that are 1.4 times as long as the one before."""
    jobs = {_way(ended): load.times.jobs for ended, load in _loads(steps) if load.times and load.times.jobs}
    times = [second for seconds in jobs.values() for second in seconds if second > 0]
    if not times:
        return None
    ends = [2 ** (half / 2) for half in range(_halves(min(times)), _halves(max(times)) + 1)]
    lines = tuple(
        ChartLine(way, tuple((end, float(sum(end / math.sqrt(2) < second <= end for second in seconds)))
                             for end in ends))
        for way, seconds in jobs.items()
    )  # fmt: skip
    title = "Jobs by the time to read their files"
    return BenchmarkChart("jobs", title, "Seconds (each bar up to 1.4 times the one before)", "Jobs", lines, log_x=True)


def _halves(seconds: float) -> int:
    return math.ceil(2 * math.log2(seconds))


def _files(steps: Sequence[StepRecord]) -> BenchmarkChart | None:
    """Time of each first read of a file over its start."""
    lines = tuple(
        ChartLine(_way(ended), tuple(sorted(load.times.files)))
        for ended, load in _loads(steps)
        if load.times and load.times.files
    )
    title = "Time to read a file over its start"
    return BenchmarkChart("files", title, "Start (s)", "Seconds", lines, marks_only=True) if lines else None


def _distances(steps: Sequence[StepRecord]) -> Iterator[BenchmarkChart]:
    """Medians of the rounds over the round trip: of programs that copy a file, and of the strategies of our reader."""
    values: defaultdict[tuple[str, str], defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    reads = [load.distant for ended in steps for load in ended.step.load.loads if load.distant]
    http = next((read.server for read in reads if read.server is not EndpointServer.XROOT), EndpointServer.XROOT)
    for ended, load in _loads(steps):
        asked = ended.step.load.loads[0]
        if load.distant is None or asked.distant is None:
            continue
        read, streams = asked.distant, f" x {asked.streams}" if asked.streams > 1 else ""
        tool = read.strategy.value if read.strategy else ended.step.load.runner.value
        place = load.distant.rtt_ms if read.rtt_ms is None else read.rtt_ms
        line = f"{tool}{streams} {read.server.value}"
        for chart in _charts_of(read, {http, EndpointServer.XROOT}):
            values[chart, line][place].append(load.throughput / MB)
    for name, title in _DISTANCES.items():
        lines = tuple(
            ChartLine(line, tuple((rtt_ms, median(speeds)) for rtt_ms, speeds in sorted(places.items())))
            for (chart, line), places in values.items()
            if chart == name
        )
        if lines:
            yield BenchmarkChart(name, title, "Round trip (ms)", "Throughput (MB/s)", lines)


_DISTANCES = {
    "tools-stock": "A file copied, by tool and server; stock window",
    "tools-tuned": "A file copied, by tool and server; window of 64 MB",
    "application": "Reads of an application: each by itself, and together",
    "lazy": "Reads of an application by strategy",
}


def _charts_of(read: DistantRead, chosen: Collection[EndpointServer]) -> Iterator[str]:
    """Names of the charts that have a read; most are of two servers, since many lines cannot be told apart."""
    if not read.trace:
        if read.server in chosen:
            yield f"tools-{read.window.value}"
    elif read.window is TcpWindow.STOCK:
        if read.strategy in (DistantStrategy.STORAGE, DistantStrategy.APPLICATION):
            yield "application"
        if read.server in chosen:
            yield "lazy"


def _way(ended: StepRecord) -> str:
    load = ended.step.load.loads[0]
    return load.way.value if load.way else ended.step.load.name


def _history(campaigns: Sequence[JudgedCampaign], accepted: frozenset[str]) -> BenchmarkChart | None:
    """Medians of campaigns with the same plan, labelled with their verdicts."""
    if len(campaigns) < 2:
        return None
    lines: defaultdict[str, list[tuple[Point, str]]] = defaultdict(list)
    for campaign in sorted(campaigns, key=lambda item: item.began_at):
        mark = "baseline" if campaign.id in accepted else campaign.verdict.value
        for judged in campaign.figures:
            figure = judged.figure
            if figure.name is FigureName.THROUGHPUT:
                point = (campaign.began_at.timestamp(), figure.median / MB)
                lines[direction_title(figure.step, figure.access)].append((point, mark))
    drawn = _drawn(lines)
    title = "History"
    return BenchmarkChart("history", title, "Day (UTC)", "Throughput (MB/s)", drawn, days=True) if drawn else None


def _drift(campaigns: Sequence[JudgedCampaign]) -> BenchmarkChart | None:
    """Judged figures as a share of the baseline that each campaign was compared with."""
    lines: defaultdict[str, list[tuple[Point, str]]] = defaultdict(list)
    for campaign in sorted(campaigns, key=lambda item: item.began_at):
        for judged in campaign.figures:
            if judged.figure.judged and judged.comparison and judged.comparison.ratio is not None:
                point = (campaign.began_at.timestamp(), PERCENT * judged.comparison.ratio)
                lines[judged.figure.title].append((point, judged.comparison.verdict.value))
    drawn = _drawn(lines)
    title = "Compared with the baseline; above 100 % is better"
    return BenchmarkChart("drift", title, "Day (UTC)", "Of the baseline (%)", drawn, days=True) if drawn else None


def _loads(steps: Iterable[StepRecord]) -> Iterator[tuple[StepRecord, MeasuredLoad]]:
    for ended in steps:
        if ended.result is not None:
            for load in ended.result.loads:
                yield ended, load


def _streams(ended: StepRecord, access: LoadAccess) -> int:
    both = LoadAccess.MIXED
    return sum(load.streams for load in ended.step.load.loads if load.access in {access, both})


def _name(ended: StepRecord, load: MeasuredLoad) -> str:
    return direction_title(ended.step.load.name, load.access)
