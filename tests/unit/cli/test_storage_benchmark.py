"""`nightshift storage-benchmark` on a folder: planned, run, judged, accepted, and nothing left on the target."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from include.benchmarks.errors import PLAN_REFUSED, PRESET_UNKNOWN
from include.cli import storage_benchmark
from include.cli.main import assemble
from tests.fakes.benchmarking import MIB, MeasuringRunner, begin_campaign, benchmark_site
from tests.fakes.refused import refused

SMALL = ("--scale", "0.001", "--minutes", "5")


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = benchmark_site(tmp_path)
    monkeypatch.setattr(storage_benchmark, "open_site", lambda: made)
    monkeypatch.setattr("include.cli.main._adopt_lab", lambda: None)
    MeasuringRunner().put(monkeypatch)
    return made


def call(*words, code=0):
    done = CliRunner().invoke(assemble(["storage-benchmark"]), ["storage-benchmark", *words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def run(code=0):
    lines = call("run", "scratch", "hlt2-uncontrolled", *SMALL, code=code).splitlines()
    return lines[0].removeprefix("campaign "), lines


def test_presets_and_plans_are_shown_and_nothing_is_changed(site, tmp_path):
    listed = call("presets")
    assert "hlt2-occupancy: " in listed
    assert "needs `fill: allowed`" in listed
    shown = call("plan", "scratch", "hlt2-mixed", *SMALL)
    assert "1. prepare (preparation): write 1 streams" in shown
    many = call("plan", "scratch", "hlt2-mixed", *SMALL, "--rounds", "20").splitlines()
    assert len(many) == 3, "rounds of a step are one line"
    assert many[1].startswith("2 to 21. mixed (20 rounds): ")
    plan = json.loads(call("plan", "scratch", "hlt2-mixed", *SMALL, "--rounds", "2", "--json"))
    assert [step["name"] for step in plan["steps"]] == ["prepare", "mixed", "mixed"]
    assert not (tmp_path / "var").exists()
    assert list((tmp_path / "target").iterdir()) == []


def test_a_run_says_its_steps_verdict_and_report_and_cleans_up(site, tmp_path):
    campaign, lines = run()
    assert lines[1] == "1/40 write: write 105 MB/s, 33.3 operations/s"
    assert "files of the campaign removed: 1" in lines, "of all rounds: each writes the same ones"
    assert any(line.startswith("verdict: inconclusive: no baseline") for line in lines)
    report = tmp_path / "var" / "benchmarks" / campaign / "report.html"
    assert lines[-1] == f"report: {report.as_uri()}"
    assert report.exists()
    assert list((tmp_path / "target").iterdir()) == []
    (listed,) = json.loads(call("list", "--json"))
    assert (listed["id"], listed["ended"], listed["steps"], listed["data_removed"]) == (campaign, 40, 40, True)


@pytest.mark.slow
def test_after_acceptance_a_slower_target_ends_the_command_with_1(site, monkeypatch):
    campaign, _ = run()
    call("accept", campaign, "--by", "shift")
    assert any(line.startswith("verdict: pass") for line in run()[1])
    MeasuringRunner(lambda _step, _turn: 80.0 * MIB).put(monkeypatch)
    slower, lines = run(code=1)
    assert any(line.startswith("verdict: regressed") for line in lines)
    assert "verdict: regressed" in call("report", slower)


def test_a_campaign_that_stopped_goes_on_or_is_removed(site, tmp_path):
    begun = begin_campaign(site)
    assert "verdict: inconclusive" in call("resume", begun.id)
    other = begin_campaign(site)
    assert "files of the campaign removed: 0" in call("remove", other.id)
    assert f"{other.id}: 0 of 4 steps, data removed" in call("list")


def test_what_is_refused_is_an_error_with_a_code(site):
    with refused(PRESET_UNKNOWN):
        call("plan", "scratch", "hlt2-mixd")
    with refused(PLAN_REFUSED):
        call("run", "scratch", "hlt2-uncontrolled", "--budget-gb", "0.01")
