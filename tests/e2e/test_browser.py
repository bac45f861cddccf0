"""Airflow's pages in a real browser: the form of a night, the run that it starts, links of tasks, connection forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from include.notify.records import Alert, alerts_since
from tests.e2e.browser import Browser
from tests.e2e.deployment import FQRN, RUN_S, Deployment
from tests.fakes.builds import Build, tree

pytestmark = [
    pytest.mark.server("weed"),
    pytest.mark.server("chromium"),
    pytest.mark.server("chromedriver"),
    pytest.mark.slow,
]

DATE = "2026-11-12"
DIALOG = "[role=dialog][aria-modal=true]"


@dataclass(frozen=True)
class Started:
    """A run that a form started: its id as the address has it, what the form said, errors in the browser's console."""

    dag_id: str
    quoted: str
    form: str
    errors: list[str]

    @property
    def run_id(self) -> str:
        return unquote(self.quoted)

    @property
    def page(self) -> str:
        return f"/dags/{self.dag_id}/runs/{self.quoted}"


def start_by_form(browser: Browser, dag_id: str, fill: Callable[[], None] = lambda: None) -> Started:
    """Open the form of a DAG, fill it in and send it."""
    browser.errors()  # those of pages before
    browser.open(f"/dags/{dag_id}")
    browser.click("[data-testid=trigger-dag-button]")
    browser.see(DIALOG)
    fill()
    form = browser.see(DIALOG).text
    browser.screenshot(f"form-{dag_id}")
    errors = browser.errors()
    browser.click("[data-testid=trigger-dag-submit]")
    browser.wait(lambda driver: "/runs/" in driver.current_url)
    return Started(dag_id, browser.driver.current_url.rpartition("/runs/")[2], form, errors)


def choose(browser: Browser, param: str, value: str) -> None:
    """Choose one of the values that a form offers for a param."""
    browser.find(f"#element_{param} input").send_keys(value, Keys.ENTER)
    browser.wait(lambda driver: driver.find_element(By.NAME, f"element_{param}").get_attribute("value") == value)


@pytest.fixture(scope="module")
def night(deployment: Deployment, browser: Browser) -> Started:
    """`nightly_install`, its form filled in and sent."""
    build = Build(DATE)
    for project in ("Gaudi", "LHCb"):
        build.add(project, "x86_64", tree({"lib/own.so": project.encode() * 1000}))
    deployment.drop(build)

    def fill() -> None:
        choose(browser, "slot", "main")
        year, month, day = DATE.split("-")
        browser.find("#element_build_date").send_keys(f"{month}{day}{year}")
        browser.wait(lambda driver: driver.find_element(By.ID, "element_build_date").get_attribute("value") == DATE)

    return start_by_form(browser, "nightly_install", fill)


@pytest.fixture(scope="module")
def collection(deployment: Deployment, browser: Browser, night: Started) -> Started:
    """`nightly_gc`, its form sent as it opens, after the night."""
    assert deployment.follow(night.dag_id, night.run_id).state == "success"
    deployment.run("settings", "check", "--stores")
    deployment.unpause_quietly("nightly_gc")
    return start_by_form(browser, "nightly_gc")


@pytest.fixture(scope="module")
def rollback(deployment: Deployment, browser: Browser, night: Started) -> Started:
    """`rollback` by one revision, its form filled in and sent."""
    assert deployment.follow(night.dag_id, night.run_id).state == "success"

    def fill() -> None:
        choose(browser, "repository", FQRN)
        browser.find("[name=element_revision]").send_keys(str(deployment.revision() - 1))
        browser.find("[name=element_reason]").send_keys("LHCb is broken")
        switch = browser.find("[name=element_dry_run]")
        browser.driver.execute_script("arguments[0].click()", switch)

    return start_by_form(browser, "rollback", fill)


@pytest.mark.parametrize(
    ("started", "asked"),
    [
        (
            "night",
            ["slot", "build_date", "allow_future", "projects", "platforms", "without", "dry_run", "wait_minutes"],
        ),
        ("collection", ["repositories", "dry_run", "all_orphans", "accept"]),
        ("rollback", ["repository", "tag", "revision", "reason", "approval", "dry_run"]),
    ],
)
def test_a_form_asks_with_titles_and_says_what_each_answer_means(
    deployment: Deployment, request: pytest.FixtureRequest, started: str, asked: list[str]
) -> None:
    run: Started = request.getfixturevalue(started)
    params = deployment.rest("GET", f"/dags/{run.dag_id}/details")["params"]
    assert list(params) == asked
    for name, param in params.items():
        title = param["schema"]["title"]
        assert title != name
        assert title in run.form
        assert param["description"] in run.form
    assert run.errors == []


def test_a_night_started_by_its_form_succeeds(deployment: Deployment, browser: Browser, night: Started) -> None:
    assert deployment.follow("nightly_install", night.run_id).state == "success"
    browser.open(night.page)
    browser.wait_for_text("h2 ~ [data-testid=state-badge]", "Success")
    browser.screenshot("run")
    said = deployment.rest("GET", f"/dags/nightly_install/dagRuns/{night.quoted}")["note"]
    assert said == f"Slot main, build of {DATE}"
    states = {name: one.state.value for name, one in deployment.publications("nightly_install", night.run_id).items()}
    assert states == {"Gaudi/x86_64": "published", "LHCb/x86_64": "published"}


def test_tasks_link_to_what_they_worked_on(deployment: Deployment, browser: Browser, night: Started) -> None:
    repository = deployment.settings.repository(FQRN).public_url
    for task, text, leads_to in (
        ("artifact.publish/mapped/0", "Repository", f"{repository}/.cvmfspublished"),
        ("artifact.prepare/mapped/0", "Artifact", f"{deployment.store_proxy.url}/builds/main/{DATE}/"),
        ("find_build", "Build index", f"{deployment.store_proxy.url}/builds/main/{DATE}/index.json"),
        ("links", "Night", f"{deployment.lab.airflow_url}/nightshift/nights?slot=main&date={DATE}"),
        ("gate", "Night", f"{deployment.lab.airflow_url}/nightshift/nights?slot=main&date={DATE}"),
    ):
        browser.open(f"{night.page}/tasks/{task}/details")
        assert browser.link(text).startswith(leads_to)
    browser.screenshot("task")


def test_a_collection_started_by_its_form_succeeds_and_its_report_is_one_click_away(
    deployment: Deployment, browser: Browser, collection: Started
) -> None:
    assert deployment.follow("nightly_gc", collection.run_id).state == "success"
    browser.open(collection.page)
    browser.wait_for_text("h2 ~ [data-testid=state-badge]", "Success")
    browser.screenshot("run-nightly_gc")
    task = f"{FQRN.replace('.', '__')}.collect"
    (written,) = (deployment.settings.paths.var / "collections" / FQRN / "reports").glob("*.json")
    figures = json.loads(written.read_text())
    browser.open(f"{collection.page}/tasks/{task}/details")
    report = browser.link("Report")
    browser.screenshot("task-collect")
    assert unquote(report) == unquote(f"{deployment.lab.airflow_url}{collection.page}/tasks/{task}")
    browser.driver.get(report)
    browser.wait_for_text("body", f"{figures['deleted']} objects deleted, {figures['objects_kept']} stay")
    browser.screenshot("log-collect")
    assert figures["objects_kept"] > 0


def test_a_rollback_shows_what_readers_will_lose_and_does_it_after_a_yes(
    deployment: Deployment, browser: Browser, rollback: Started
) -> None:
    question = f"/dags/rollback/dagRuns/{rollback.quoted}/taskInstances/approve/0/hitlDetails"

    def waiting() -> bool:
        tasks = deployment.tasks("rollback", rollback.run_id)
        return "awaiting_input" in {one["state"] for one in tasks if one["task_id"] == "approve"}

    before = deployment.revision()
    deployment.wait_until(waiting, "the rollback asks", RUN_S)
    browser.open(f"{rollback.page}/tasks/approve/mapped/0/required_actions")
    browser.wait_for_text("body", "LHCb is broken")
    browser.screenshot("approval-rollback")
    browser.press("Approve")
    deployment.wait_until(lambda: deployment.rest("GET", question)["response_received"], "the answer", RUN_S)
    browser.leave()
    assert deployment.follow("rollback", rollback.run_id).state == "success"
    assert deployment.revision() == before + 1


@pytest.mark.parametrize(
    ("dag_id", "empty"),
    [
        ("publication", ("path", "source")),
        ("undo_build", ("slot", "build_id", "reason")),
        ("rollback", ("tag", "revision", "reason")),
    ],
)
def test_a_form_asks_for_what_nobody_can_guess_with_empty_fields_and_starts_nothing_without(
    deployment: Deployment, browser: Browser, dag_id: str, empty: tuple[str, ...]
) -> None:
    before = deployment.rest("GET", f"/dags/{dag_id}/dagRuns")["total_entries"]
    browser.open(f"/dags/{dag_id}")
    browser.click("[data-testid=trigger-dag-button]")
    browser.see(DIALOG)
    for name in empty:
        assert browser.find(f"{DIALOG} [name=element_{name}]").get_attribute("value") == "", name
    browser.screenshot(f"form-{dag_id}")
    assert not browser.see("[data-testid=trigger-dag-submit]").is_enabled()
    assert deployment.rest("GET", f"/dags/{dag_id}/dagRuns")["total_entries"] == before


def test_a_run_by_hand_that_fails_sends_an_alert_that_links_to_it(deployment: Deployment) -> None:
    begun = datetime.now(UTC) - timedelta(seconds=1)
    deployment.trigger("publication", "fails", repository=FQRN, path="/alerts/1", source="s3://elsewhere/1.tar.gz")
    assert deployment.follow("publication", "fails").state == "failed"
    # the DAG processor does it, after the run
    found: list[Alert] = []
    deployment.wait_until(
        lambda: bool(found.extend(alerts_since(deployment.site.ledger, begun)) or found), "an alert", RUN_S
    )
    (alert,) = found
    assert alert.key == "run-failed:publication/fails"
    assert "source-not-allowed" in alert.title
    assert f"{deployment.lab.airflow_url}/dags/publication/runs/fails" in alert.text


def test_connections_have_forms_of_their_own(deployment: Deployment, browser: Browser) -> None:
    known = {one["connection_type"]: one for one in deployment.api._call("GET", "/ui/connections/hook_meta").json()}
    assert set(known["cvmfs_gateway"]["extra_fields"]) == {"max_lease_time_s", "authorities"}
    assert set(known["object_store"]["extra_fields"]) == {"url", "region", "addressing"}
    assert set(known["fts"]["extra_fields"]) == {"certificate", "key", "authorities"}
    browser.open("/connections")
    browser.press("Add Connection")
    choice = browser.find(f"{DIALOG} [role=combobox]")
    for name, labels, fields in (
        ("CernVM-FS gateway", ("Key id", "Key secret"), ("max_lease_time_s",)),
        ("Object store (S3)", ("Access key", "Secret key"), ("url", "region", "addressing")),
        ("FTS (file transfer service)", ("Bearer token",), ("certificate", "key", "authorities")),
    ):
        choice.send_keys(name, Keys.ENTER)
        for label in labels:
            browser.wait_for_text(DIALOG, label)
        for field in fields:
            browser.find(f"{DIALOG} [name=element_{field}]")
        browser.screenshot(f"connection-{known_by(name, known)}")


def known_by(name: str, known: dict[str, dict[str, object]]) -> str:
    return next(kind for kind, one in known.items() if one["hook_name"] == name)
