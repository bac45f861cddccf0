"""Reports: one page that asks nothing of the network, and pictures of all charts."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from include.benchmarks.campaign import execute
from include.benchmarks.campaign.execute import run_campaign
from include.benchmarks.campaigns import open_target
from include.benchmarks.loads import RunnerKind
from include.benchmarks.report.charts import BenchmarkChart, ChartLine, charts_of
from include.benchmarks.report.draw import plotly_figure, png
from include.benchmarks.report.write import write_report
from include.benchmarks.runners.choose import RUNNERS
from include.benchmarks.targets.base import TargetSpace
from include.benchmarks.verdict.record import accept_baseline, judge_campaign, judged_campaigns
from tests.fakes.benchmarking import START, MeasuringRunner, begin_campaign, benchmark_site, ticking

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setitem(RUNNERS, RunnerKind.FIO, MeasuringRunner())
    monkeypatch.delitem(execute.PROGRAMS, RunnerKind.FIO)
    return benchmark_site(tmp_path, usable_bytes="8.8PB", raw_bytes="11PB", price=396_000)


def measured(site, preset="hlt2-uncontrolled", hours=0):
    folder = begin_campaign(site, preset, now=START + timedelta(hours=hours))
    run_campaign(folder, open_target(site, "scratch"), clock=ticking())
    return folder, judge_campaign(site.ledger, folder, site.settings.benchmarks)


def names(charts):
    return {chart.name for chart in charts}


def test_a_report_is_one_page_without_requests_and_a_picture_of_each_chart(site):
    folder, judged = measured(site)
    report = write_report(site.ledger, folder, judged)
    text = report.read_text()
    page = text.partition("<script>")[0]
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert re.findall(r'(?:src|href)="', page) == []
    assert "45.00 USD" in page
    assert "11 PB" in page
    pictures = {path.stem: path.read_bytes()[:8] for path in (folder.path / "charts").iterdir()}
    assert set(pictures) == {"response", "rounds", "throughput-over-time", "latency-over-time"}
    assert set(pictures.values()) == {PNG}
    assert all(f'id="chart-{name}"' in page for name in pictures)


def test_what_others_wrote_is_escaped(site):
    folder, judged = measured(site)
    text = write_report(site.ledger, folder, replace(judged, reason="<script>x</script>", missing=("<b>",))).read_text()
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert "<b>" not in text.partition("<script>")[0]


def test_charts_are_drawn_of_what_differs_between_steps(site):
    streams, _ = measured(site, "hlt2-streams")
    assert "streams" not in names(charts_of([], []))
    found = {chart.name: chart for chart in charts_of(list(streams.steps()), [])}
    assert [[x for x, _ in line.points] for line in found["streams"].lines] == [[1, 2, 4, 8, 16]] * 2
    assert "blocks" not in found
    blocks, _ = measured(site, "hlt2-blocks", hours=1)
    by_block = {chart.name: chart for chart in charts_of(list(blocks.steps()), [])}["blocks"]
    assert [line.name for line in by_block.lines] == ["write", "read"]
    assert len(by_block.lines[0].points) == 5


def test_throughput_is_drawn_over_the_occupancy_that_was_there(site):
    folder, _ = measured(site)
    total = 100
    steps = [replace(ended, space=TargetSpace(total, total - 20 * ended.step.round)) for ended in folder.steps()]
    chart = {chart.name: chart for chart in charts_of(steps, [])}["occupancy"]
    assert [x for x, _ in chart.lines[0].points] == [20, 40]
    assert "occupancy" not in names(charts_of(list(folder.steps()), [])), "nothing else was written"


def test_the_history_has_all_campaigns_of_the_plan_and_marks_baselines(site):
    first, judged = measured(site)
    accept_baseline(site.ledger, judged.id, by="shift", now=START)
    measured(site, hours=1)
    history = judged_campaigns(site.ledger)
    chart = {chart.name: chart for chart in charts_of(list(first.steps()), history, {judged.id})}["history"]
    assert chart.days
    assert chart.lines[0].text == ("baseline", "inconclusive"), "two rounds are too few"
    assert plotly_figure(chart)["data"][0]["x"][0] == "2026-11-23T03:00:00"


def test_texts_with_dollar_signs_are_no_formulas():
    chart = BenchmarkChart("x", "$", "x", "y", (ChartLine("a$b", ((1, 2), (2, 3)), ("$", "$")),), log_x=True)
    assert png(chart).startswith(PNG)
    assert plotly_figure(chart)["layout"]["xaxis"]["type"] == "log"
