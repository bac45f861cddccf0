"""The suite of Great Expectations holds for good campaigns alone, and finds a verdict that does not fit its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from include.benchmarks.campaign.campaigns import campaign_root
from include.benchmarks.campaign.folder import CampaignFolder
from include.benchmarks.errors import FIGURES_UNCHECKED
from include.benchmarks.judge.compare import BenchmarkVerdict
from include.benchmarks.judge.judge import DATA_DOCS, JudgedCampaign, accept_baseline, check_figures
from include.site.site import Site
from tests.fakes.benchmarking import MIB, START, MeasuringRunner, benchmark_site, measured
from tests.fakes.refused import refused

Judged = Callable[..., JudgedCampaign]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    line = {"target": "scratch", "step": "read", "throughput": f"{70 * MIB}"}
    return benchmark_site(tmp_path, requirements=(line,))


@pytest.fixture
def judged(site: Site, monkeypatch: pytest.MonkeyPatch) -> Judged:
    def run(speed: float = 1.0, hours: int = 0) -> JudgedCampaign:
        MeasuringRunner(lambda _step, _turn: 100 * MIB * speed).put(monkeypatch)
        return measured(site, rounds=5, hours=hours)[1]

    return run


def faults_of(site: Site, campaign: JudgedCampaign) -> tuple[str, ...]:
    folder = CampaignFolder(campaign_root(site), campaign.id)
    return check_figures(site.ledger, folder, campaign, site.settings.benchmarks)


def test_what_the_suite_finds_agrees_with_the_verdict_and_is_on_its_page(site: Site, judged: Judged) -> None:
    first = judged()
    assert faults_of(site, first) == ("campaign: no baseline with the same plan is accepted",)
    accept_baseline(site.ledger, first.id, by="shift", now=START)
    assert faults_of(site, judged(hours=1)) == ()
    slow = judged(0.8, hours=2)
    assert [fault.partition(":")[0] for fault in faults_of(site, slow)] == [
        "write throughput", "read throughput",
    ]  # fmt: skip
    slower = judged(0.6, hours=3)
    assert "requirement 1, read: at least 73.4 MB/s; measured: 62.9 MB/s" in faults_of(site, slower)
    page = (campaign_root(site) / slow.id / DATA_DOCS).read_text()
    assert "20.0 % lower than in the baseline" in page
    assert all(text not in page for text in ("http:", "https:", "<script"))


def test_a_verdict_that_does_not_fit_its_figures_is_refused(site: Site, judged: Judged) -> None:
    accept_baseline(site.ledger, judged().id, by="shift", now=START)
    slow, same = judged(0.8, hours=1), judged(hours=2)
    missing = replace(same, missing=("read, round 5: not run",), verdict=BenchmarkVerdict.PASS)
    assert faults_of(site, missing) == ("missing: read, round 5: not run",)
    for wrong in (
        replace(slow, verdict=BenchmarkVerdict.PASS), replace(same, verdict=BenchmarkVerdict.REGRESSED)
    ):  # fmt: skip
        with refused(FIGURES_UNCHECKED, subject=wrong.id):
            faults_of(site, wrong)
