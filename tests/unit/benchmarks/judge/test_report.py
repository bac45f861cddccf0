"""Reports: one page that asks nothing of the network, and pictures of all charts."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import timedelta
from xml.etree import ElementTree

import pytest

from include.benchmarks.judge.charts import BenchmarkChart, ChartLine, charts_of
from include.benchmarks.judge.judge import accept_baseline, judged_campaigns
from include.benchmarks.judge.report import plotly_figure, readers_of, svg, write_report
from include.benchmarks.measure.loads import (
    ClusterSample,
    DistantFigures,
    DistantRead,
    DistantStrategy,
    JobTimes,
    ReaderWay,
    RunnerKind,
    SeriesPoint,
    ServerState,
    TcpWindow,
)
from include.benchmarks.measure.targets import TargetSpace
from include.settings.benchmarks import EndpointServer
from tests.fakes.benchmarking import MIB, START, MeasuringRunner, benchmark_site, measured

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def site(tmp_path, measures):
    measures()
    return benchmark_site(tmp_path, usable_bytes="8.8PB", raw_bytes="11PB", price=396_000)


def by_name(steps, history=(), *baselines):
    return {chart.name: chart for chart in charts_of(list(steps), list(history), *baselines)}


def test_a_report_is_one_page_without_requests_and_a_picture_of_each_chart(site, measures):
    speeds = {"write": 50.0, "read": 100.0}
    measures(MeasuringRunner(lambda step, _turn: speeds[step] * MIB))
    folder, judged = measured(site)
    report = write_report(site.ledger, folder, judged)
    text = report.read_text()
    page = text.partition("<script>")[0]
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="', page) == []
    assert "45.00 USD" in page
    assert "11 PB" in page
    pictures = {path.stem: path.suffix for path in (folder.path / "charts").iterdir()}
    assert set(pictures) == {"response", "rounds", "throughput-over-time", "latency-over-time"}
    assert set(pictures.values()) == {".svg"}
    assert all(f'id="chart-{name}"' in page for name in pictures)
    assert "2 measured, 2 asked for" in page

    # what others wrote is escaped
    text = write_report(site.ledger, folder, replace(judged, reason="<script>x</script>", missing=("<b>",))).read_text()
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert "<b>" not in text.partition("<script>")[0]


def test_charts_are_drawn_of_what_differs_between_steps(site):
    once, _ = measured(site, hours=2)
    assert "rounds" in by_name(once.steps())
    write = [ended for ended in once.steps() if (ended.step.load.name, ended.step.round) == ("write", 1)]
    assert by_name(write).keys() == {"throughput-over-time", "latency-over-time"}
    streams, _ = measured(site, "hlt2-streams")
    assert "streams" not in by_name([])
    found = by_name(streams.steps())
    assert [[x for x, _ in line.points] for line in found["streams"].lines] == [[1, 2, 4, 8, 16]] * 2
    assert "blocks" not in found
    blocks, _ = measured(site, "hlt2-blocks", hours=1)
    by_block = by_name(blocks.steps())["blocks"]
    assert [line.name for line in by_block.lines] == ["write", "read"]
    assert len(by_block.lines[0].points) == 5


def test_throughput_is_drawn_over_the_occupancy_that_was_there_and_over_the_packet_size(site):
    folder, _ = measured(site)
    total = 100
    steps = [replace(ended, space=TargetSpace(total, total - 20 * ended.step.round)) for ended in folder.steps()]
    assert "occupancy" not in by_name(steps), "the campaign fills nothing"
    fill = replace(steps[0], step=replace(steps[0].step, round=0, fills=True))
    chart = by_name([fill, *steps])["occupancy"]
    assert [x for x, _ in chart.lines[0].points] == [20, 40]
    assert "occupancy" not in by_name([fill, *folder.steps()]), "it was as full all the time"
    packets = {1: 4096, 2: 65536}
    sized = [replace(ended, step=replace(ended.step, packet_bytes=packets[ended.step.round])) for ended in steps]
    chart = by_name(sized)["packets"]
    assert chart.log_x
    assert {line.name: [x for x, _ in line.points] for line in chart.lines} == {"write": [4, 64], "read": [4, 64]}
    assert "packets" not in by_name(folder.steps())


def test_many_readers_are_drawn_by_way_and_one_that_did_not_end_says_so(site):
    folder, judged = measured(site)
    steps = []
    for ended, way in zip(folder.steps(), (ReaderWay.ORIGIN, ReaderWay.SQUID), strict=False):
        jobs = JobTimes((1.0, 1.9, 4.0), ((0.5, 0.25), (0.0, 0.125)), wrong=1, origin_share=1.5)
        loads = (replace(ended.result.loads[0], times=jobs, failed=2),)
        missing = ("not ended: 3 of 4 jobs",) if way is ReaderWay.SQUID else ()
        load = replace(ended.step.load, loads=(replace(ended.step.load.loads[0], way=way),))
        steps.append(
            replace(
                ended, step=replace(ended.step, load=load), result=replace(ended.result, loads=loads, missing=missing)
            )
        )
        folder.store(steps[-1])
    charts = by_name(steps)
    assert [line.name for line in charts["jobs"].lines] == ["origin", "squid"]
    assert [count for _, count in charts["jobs"].lines[0].points] == [1, 0, 1, 0, 1], "bars end at 1, 1.4, 2, 2.8, 4 s"
    assert charts["files"].lines[0].points == ((0.0, 0.125), (0.5, 0.25))
    assert plotly_figure(charts["files"])["data"][0]["mode"] == "markers"
    drawn = ElementTree.fromstring(svg(charts["files"], "scratch"))
    assert "L" not in "".join(path.get("d") for path in drawn.iter(f"{SVG}path") if path.get("fill"))
    assert [(row.way, row.ended, row.longest_s) for row in readers_of(steps)] == [
        ("origin", True, 4),
        ("squid", False, 4),
    ]
    page = write_report(site.ledger, folder, judged).read_text()
    assert page.count('<td class="number">not ended</td>') == 2
    assert "1.9 s" in page
    assert ">1.50<" in page


def test_reads_at_a_distance_are_drawn_over_the_round_trip_by_tool_and_by_strategy(site):
    folder, _ = measured(site)
    (ended, *_), steps = list(folder.steps()), []
    reads = [
        (DistantRead(server, rtt_ms, window, strategy, trace=strategy is not None), rtt_ms)
        for server in (EndpointServer.NGINX, EndpointServer.APACHE)
        for rtt_ms in (0, 25)
        for window in TcpWindow
        for strategy in (None, DistantStrategy.STORAGE, DistantStrategy.LAZY)
    ]
    for read, rtt_ms in reads:
        asked = replace(ended.step.load.loads[0], distant=read, streams=4 if read.strategy else 1)
        load = replace(
            ended.result.loads[0], distant=DistantFigures(rtt_ms + 0.5), bytes=10**8, seconds=1 + rtt_ms / 25
        )
        step = replace(ended.step, load=replace(ended.step.load, loads=(asked,), runner=RunnerKind.CURL))
        steps.append(replace(ended, step=step, result=replace(ended.result, loads=(load,))))
    charts = by_name(steps)
    for window in TcpWindow:
        lines = charts[f"tools-{window.value}"].lines
        assert [line.name for line in lines] == ["curl nginx"], "the other server is much like it"
        assert lines[0].points == ((0, 100.0), (25, 50.0))
    assert [line.name for line in charts["application"].lines] == ["storage x 4 nginx", "storage x 4 apache"]
    assert [line.name for line in charts["lazy"].lines] == ["storage x 4 nginx", "lazy x 4 nginx"]


def test_the_history_has_all_campaigns_of_the_plan_and_marks_baselines(site):
    first, judged = measured(site)
    accept_baseline(site.ledger, judged.id, by="shift", now=START)
    measured(site, hours=1)
    history = judged_campaigns(site.ledger)
    chart = by_name(first.steps(), history, {judged.id})["history"]
    assert chart.days
    assert chart.lines[0].text == ("baseline", "inconclusive"), "two rounds are too few"
    assert plotly_figure(chart)["data"][0]["x"][0] == "2026-11-23T03:00:00"


def test_the_drift_is_drawn_as_shares_of_the_baseline_with_their_verdicts(site, measures):
    _, judged = measured(site, rounds=5)
    accept_baseline(site.ledger, judged.id, by="shift", now=START)
    assert "drift" not in by_name([], judged_campaigns(site.ledger)), "nothing was compared yet"
    for hours, share in ((1, 0.8), (2, 1.25)):
        measures(MeasuringRunner(lambda _step, _turn, share=share: share * 100 * MIB))
        measured(site, hours=hours, rounds=5)
    drift = by_name([], judged_campaigns(site.ledger))["drift"]
    assert [line.name for line in drift.lines] == ["write throughput", "read throughput"]
    days = [(START + timedelta(hours=hours)).timestamp() for hours in (1, 2)]
    for line in drift.lines:
        assert [x for x, _ in line.points] == days, "the baseline itself was compared with none"
        assert [y for _, y in line.points] == pytest.approx([80, 125])
        assert line.text == ("regressed", "improved")


@pytest.mark.parametrize("outage", [ServerState.OSD_DOWN, ServerState.HOST_DOWN])
def test_an_outage_is_drawn_as_one_line_of_time_with_gaps_between_its_steps(site, outage):
    folder, _ = measured(site, "hlt2-streams", rounds=2)
    states = (ServerState.HEALTHY, outage, ServerState.RECOVERING, ServerState.HEALTHY)
    writes = [ended for ended in folder.steps() if ended.step.load.name.startswith("write")]
    steps = []
    for turn in (1, 2):
        of_round = [ended for ended in writes if ended.step.round == turn][: len(states)]
        for number, (ended, state) in enumerate(zip(of_round, states, strict=True)):
            down = int(state is outage)
            looks = tuple(ClusterSample(second, down, 4 * down, 30.0 * down, 0.0) for second in (0.0, 2.0))
            began = START + timedelta(seconds=1000 * turn + 10 * number)
            steps.append(replace(ended, step=replace(ended.step, servers=state), began_at=began, cluster=looks))
    charts = by_name(steps)
    (line,) = charts["outage"].lines
    assert [x for x, y in line.points if not math.isnan(y)] == [
        begin + s for begin in (0, 10, 20, 30) for s in (0, 1, 2)
    ]
    assert sum(math.isnan(y) for _, y in line.points) == 4, "nothing was measured between steps"
    assert [text for text in line.text if text] == [ended.step.load.name for ended in steps[4:]], "the last round"
    recovery = {line.name: [y for _, y in line.points if y > 0] for line in charts["recovery"].lines}
    assert recovery == {"degraded objects (%)": [30, 30], "OSDs down": [1, 1], "placement groups not clean": [4, 4]}
    drawn = ElementTree.fromstring(svg(charts["outage"], "scratch"))
    assert [path.get("d").count("M") for path in drawn.iter(f"{SVG}path") if path.get("fill")] == [4], "a gap each"
    assert None in plotly_figure(charts["outage"])["data"][0]["y"], "JSON has no other word for a gap"
    assert "occupancy" not in charts


def test_a_second_in_which_no_operation_ended_is_drawn_as_zero(site):
    folder, _ = measured(site)
    first, *_ = (ended for ended in folder.steps() if ended.step.counted)
    load = replace(first.result.loads[0], series=(SeriesPoint(1, 64e6), SeriesPoint(4, 64e6)))
    ended = replace(first, result=replace(first.result, loads=(load,)))
    chart = by_name([ended])["throughput-over-time"]
    assert chart.lines[0].points == ((1, 64.0), (2, 0.0), (3, 0.0), (4, 64.0))


def test_a_picture_has_every_text_as_it_is_and_marks_where_the_values_are():
    chart = BenchmarkChart("x", "$", "x", "y", (ChartLine("a<b", ((1, 2), (4, 4)), ("<", "$")),), log_x=True)
    drawn = ElementTree.fromstring(svg(chart, "a&b"))
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"$", "a<b", "a&b", "<", "1", "2", "4"} <= set(texts)
    first, last, _ = [(float(mark.get("cx")), float(mark.get("cy"))) for mark in drawn.iter(f"{SVG}circle")]
    assert (first[0], last[0]) == (70, 860), "from the left to the right"
    assert 400 - first[1] == pytest.approx((400 - last[1]) / 2, abs=0.1), "half as high"
    assert plotly_figure(chart)["layout"]["xaxis"]["type"] == "log"
