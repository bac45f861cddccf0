"""What servers and clients reported during a campaign, as the rows and charts of its report. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from include.benchmarks.campaign.folder import StepRecord
from include.benchmarks.loads import LoadAccess
from include.benchmarks.report.charts import MB, BenchmarkChart, ChartLine, Point
from include.benchmarks.servers.machine import MachineUse
from include.benchmarks.servers.osds import OsdLatency, RecoveryLook, merged_latencies
from include.benchmarks.servers.view import ServersView

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
