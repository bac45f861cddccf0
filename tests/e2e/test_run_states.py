"""Runs that could do nothing, under the real scheduler, and the form of a DAG that is paused, in a real browser."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.e2e.browser import Browser
from tests.e2e.deployment import FQRN, Deployment
from tests.e2e.kills import build_of_victims, upload_of
from tests.e2e.test_pages import faults_of_axe, kept, theme

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

DATE = "2026-11-08"
DAG = "nightly_install"


def test_a_run_that_was_marked_failed_and_cleared_by_only_failed_publishes_all(deployment: Deployment) -> None:
    deployment.drop(build_of_victims(DATE, ("Stopped/x86", 0), ("Beside/x86", 1)))
    fault = deployment.store_proxy.hold(method="PUT", path=upload_of("Stopped/x86"), times=None)
    run = deployment.trigger(DAG, "marked", slot="faults", build_date=DATE)
    fault.wait(120)
    deployment.rest("PATCH", f"/dags/{DAG}/dagRuns/{run}", json={"state": "failed"})
    fault.release()
    deployment.store_proxy.clear()
    states = {task["task_id"]: task["state"] for task in deployment.tasks(DAG, run)}
    assert (states["gate"], states["links"], states["announce"]) == ("skipped", "skipped", "skipped")
    deployment.rest("POST", f"/dags/{DAG}/dagRuns/{run}/clear", json={"dry_run": False, "only_failed": True})
    assert deployment.follow(DAG, run).state == "success"
    found = deployment.publications(DAG, run)
    assert {name: row.state.value for name, row in found.items()} == {
        "Stopped/x86": "published", "Beside/x86": "published",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("logical_date", "why"),
    [("2099-03-01T02:00:00Z", "in the future"), ("2021-11-21T02:00:00Z", "before the DAG's start")],
)
def test_a_run_of_a_date_that_no_task_begins_at_fails_with_the_reason(
    deployment: Deployment, logical_date: str, why: str
) -> None:
    conf = {"slot": "faults", "build_date": DATE}
    made = deployment.rest("POST", f"/dags/{DAG}/dagRuns", json={"logical_date": logical_date, "conf": conf})
    run = made["dag_run_id"]
    assert deployment.follow(DAG, run).state == "failed"
    assert why in deployment.rest("GET", f"/dags/{DAG}/dagRuns/{quote(run)}")["note"]


@pytest.mark.server("chromium")
@pytest.mark.server("chromedriver")
def test_a_form_of_a_paused_dag_says_so_and_starts_nothing(deployment: Deployment, browser: Browser) -> None:
    runs = "/dags/intervene/dagRuns?limit=1&state=queued"
    deployment.api.pause("intervene")
    try:
        for colours in ("light", "dark"):
            theme(browser, colours)
            browser.open(f"/nightshift/start?action=freeze&repository={FQRN}")
            browser.wait_for_text("#refusal", "The DAG intervene is paused")
            browser.find("input[name=reason]").send_keys("a disk is replaced")
            browser.click("form.action button")
            browser.wait_for_text("form.action output", "Not started: see below.")
            assert faults_of_axe(browser) == []
            kept(browser, f"start-paused-{colours}")
        assert deployment.rest("GET", runs)["total_entries"] == 0
    finally:
        deployment.api.unpause("intervene")
