"""*Benchmarks*: campaigns, verdicts and history; reports are served to those who are logged in, in a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from include.benchmarks.campaign.campaigns import campaign_root, conclude, find_campaign
from include.benchmarks.judge.judge import DATA_DOCS, JudgedCampaign, accept_baseline, check_figures
from include.pages.benchmarks import drift_figure
from include.site.site import Site
from tests.fakes.benchmarking import MIB, START, MeasuringRunner, measured


@pytest.fixture
def measure(
    site: Site, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., JudgedCampaign]:
    """Runs and reports a campaign at a speed."""
    folder = tmp_path_factory.mktemp("target")
    target = {"kind": "path", "path": str(folder), "benchmark": "allowed", "limits": {"fill_percent": 95}}
    blocks = type(site.settings.benchmarks).model_validate({"targets": {"scratch": target}})
    site.settings = site.settings.model_copy(update={"benchmarks": blocks})

    def run(speed: float = 1.0, hours: int = 0) -> JudgedCampaign:
        MeasuringRunner(lambda _step, _turn: 100 * MIB * speed).put(monkeypatch)
        return conclude(site, measured(site, rounds=5, hours=hours)[0]).judged

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
    assert "read throughput 83.9 MB/s" in page
    assert f'href="benchmarks/{slow.id}/report"' in page
    assert "Of the baseline; above 100 % is better" in page
    assert client.get("/benchmarks?target=other").status_code == 400


def test_the_report_of_a_campaign_is_served_in_a_sandbox_its_data_docs_without_scripts_and_nothing_else_is(
    site: Site, client: TestClient, anybody: TestClient, measure: Callable[..., JudgedCampaign]
) -> None:
    judged = measure()
    report = client.get(f"/benchmarks/{judged.id}/report")
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert judged.id in report.text.partition("<script>")[0]
    url = f"/benchmarks/{judged.id}/data-docs"
    assert client.get(url).status_code == 404, "no task has judged it yet"
    folder = find_campaign(site, judged.id)
    check_figures(site.ledger, folder, judged, site.settings.benchmarks)
    answer = client.get(url)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert "no baseline with the same plan is accepted" in answer.text
    (folder.path / DATA_DOCS).rename(campaign_root(site) / DATA_DOCS)
    (folder.path / DATA_DOCS).symlink_to(campaign_root(site) / DATA_DOCS)
    (campaign_root(site) / "linked").symlink_to(folder.path)
    others = ("other", "..", "%2e%2e", f"{judged.id}%2f..", ".locks")
    beside = [f"{name}/{page}" for name in others for page in ("report", "data-docs")]
    for place in (f"{judged.id}/data-docs", "linked/data-docs", *beside):
        assert client.get(f"/benchmarks/{place}").status_code == 404
    del anybody.headers["authorization"]
    for place in (url, f"/benchmarks/{judged.id}/report"):
        assert anybody.get(place).status_code == 401


def test_the_drift_is_drawn_against_the_baseline_with_gaps_where_there_is_nothing_to_compare(
    site: Site, measure: Callable[..., JudgedCampaign]
) -> None:
    first = measure()
    assert drift_figure([first], 0.1) is None
    accept_baseline(site.ledger, first.id, by="shift", now=START)
    slow, fast = measure(0.8, hours=1), measure(1.25, hours=2)
    half = replace(slow, figures=tuple(one for one in slow.figures if one.figure.step == "read"))
    figure = drift_figure([fast, half, first], 0.1)
    assert figure is not None
    shares = {trace["name"]: trace["y"] for trace in figure["data"]}
    assert shares == {
        "write throughput": [None, pytest.approx(125)],
        "read throughput": pytest.approx([80, 125]),
        "margin": [90, 90],
    }
    assert {len(trace["x"]) for trace in figure["data"]} == {2}, "the baseline has no share of itself"
