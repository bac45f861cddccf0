"""*Benchmarks*: campaigns, verdicts and history; reports are served to those who are logged in, in a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient

from include.benchmarks.campaign import execute
from include.benchmarks.campaign.execute import run_campaign
from include.benchmarks.campaigns import conclude, open_target
from include.benchmarks.loads import RunnerKind
from include.benchmarks.runners.choose import RUNNERS
from include.benchmarks.verdict.judge import JudgedCampaign
from include.benchmarks.verdict.record import accept_baseline
from include.site.site import Site
from tests.fakes.benchmarking import MIB, START, MeasuringRunner, begin_campaign, ticking


@pytest.fixture
def measure(
    site: Site, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., JudgedCampaign]:
    """Runs and reports a campaign at a speed."""
    folder = tmp_path_factory.mktemp("target")
    target = {"kind": "path", "path": str(folder), "benchmark": "allowed", "limits": {"fill_percent": 95}}
    blocks = type(site.settings.benchmarks).model_validate({"targets": {"scratch": target}})
    site.settings = site.settings.model_copy(update={"benchmarks": blocks})
    monkeypatch.delitem(execute.PROGRAMS, RunnerKind.FIO)

    def run(speed: float = 1.0, hours: int = 0) -> JudgedCampaign:
        monkeypatch.setitem(RUNNERS, RunnerKind.FIO, MeasuringRunner(lambda _step, _turn: 100 * MIB * speed))
        campaign = begin_campaign(site, rounds=5, now=START + timedelta(hours=hours))
        run_campaign(campaign, open_target(site, "scratch"), clock=ticking())
        return conclude(site, campaign).judged

    return run


def test_campaigns_are_listed_with_verdict_medians_and_history(
    site: Site, client: TestClient, measure: Callable[..., JudgedCampaign]
) -> None:
    assert "No campaign was judged yet" in client.get("/benchmarks").text
    first = measure()
    accept_baseline(site.ledger, first.id, by="shift", now=START)
    slow = measure(0.8, hours=1)
    page = client.get("/benchmarks?target=scratch&preset=hlt2-uncontrolled").text
    assert '<span class="bad">regressed</span>' in page
    assert '<span class="wait">inconclusive</span> baseline' in page
    assert "read 83.9 MB/s" in page
    assert f'href="benchmarks/{slow.id}/report"' in page
    assert "Share of the baseline" in page
    assert client.get("/benchmarks?target=other").status_code == 400


def test_a_report_is_served_in_a_sandbox_and_nothing_else_is(
    client: TestClient, anybody: TestClient, measure: Callable[..., JudgedCampaign]
) -> None:
    judged = measure()
    report = client.get(f"/benchmarks/{judged.id}/report")
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert judged.id in report.text.partition("<script>")[0]
    for name in ("other", "..", "%2e%2e", f"{judged.id}%2f..", ".locks"):
        assert client.get(f"/benchmarks/{name}/report").status_code == 404
    del anybody.headers["authorization"]
    assert anybody.get(f"/benchmarks/{judged.id}/report").status_code == 401
