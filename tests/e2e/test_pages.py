"""Airflow's pages and ours in a real browser: a night that its form starts is walked through, in light and in dark.

The screenshots are artefacts: with SCREENSHOTS set they are kept in that folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import requests
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from include.airflow_api import AirflowApi
from include.pages.registry import PAGES, PREFIX, STAGEOUT_API
from lab.environment import ADMIN, VIEWER
from tests.e2e.browser import Browser
from tests.e2e.deployment import FQRN, Deployment
from tests.e2e.kills import build_of_victims, upload_of
from tests.fakes.faultproxy import Fault

pytestmark = [
    pytest.mark.server("weed"),
    pytest.mark.server("chromium"),
    pytest.mark.server("chromedriver"),
    pytest.mark.slow,
]

DATE = "2026-11-09"
DAG = "nightly_install"
HELD, FREE = "Held/x86", "Free/x86"
BUILD = build_of_victims(DATE, (FREE, 2), ("Other/x86", 1), (HELD, 0))
NIGHT = f"?slot=faults&date={DATE}"
NAVIGATED = {page.name: page.title for page in PAGES if page.nav}
DIALOG = "[role=dialog][aria-modal=true]"
CHART = ".chart .main-svg"
BAD_IMPACTS = {"serious", "critical"}
AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]})
  .then((found) => done(found.violations), (error) => done(String(error)));
"""
CROSS_SITE = """
const [url, mode, kind, ids, done] = arguments;
fetch(url, {method: "POST", mode, credentials: "include", headers: {"Content-Type": kind}, body: JSON.stringify({ids})})
  .then((reply) => done(reply.type), () => done("refused"));
"""


@dataclass
class Night:
    """A night that a form started, and of which one artifact is held while it is uploaded."""

    quoted: str
    """The id of its run, as the address has it."""
    form: str
    errors: list[str]
    fault: Fault

    @property
    def run_id(self) -> str:
        return unquote(self.quoted)

    @property
    def page(self) -> str:
        return f"/dags/{DAG}/runs/{self.quoted}"


@pytest.fixture(scope="module")
def night(deployment: Deployment, browser: Browser) -> Iterator[Night]:
    deployment.drop(BUILD)
    fault = deployment.store_proxy.hold(method="PUT", path=upload_of(HELD), times=None)
    deployment.api.unpause(DAG)
    browser.errors()  # those of pages before
    browser.open(f"/dags/{DAG}")
    browser.click("[data-testid=trigger-dag-button]")
    browser.see(DIALOG)
    choose(browser, "slot", "faults")
    year, month, day = DATE.split("-")
    browser.find("#element_build_date").send_keys(f"{month}{day}{year}")
    browser.wait(lambda driver: driver.find_element(By.ID, "element_build_date").get_attribute("value") == DATE)
    form, errors = browser.see(DIALOG).text, browser.errors()
    browser.screenshot("form-night")
    browser.click("[data-testid=trigger-dag-submit]")
    browser.wait(lambda driver: "/runs/" in driver.current_url)
    run = browser.driver.current_url.rpartition("/runs/")[2]
    fault.wait(120)
    yield Night(run, form, errors, fault)
    fault.release()
    deployment.store_proxy.clear()


def choose(browser: Browser, param: str, value: str) -> None:
    """Choose one of the values that a form offers for a param."""
    browser.find(f"#element_{param} input").send_keys(value, Keys.ENTER)
    browser.wait(lambda driver: driver.find_element(By.NAME, f"element_{param}").get_attribute("value") == value)


@pytest.fixture(scope="module")
def ended(deployment: Deployment, night: Night) -> Night:
    """The night, once it was let go and has succeeded."""
    night.fault.release()
    assert deployment.follow(DAG, night.run_id).state == "success"
    return night


@pytest.fixture(scope="module")
def transfers(deployment: Deployment) -> list[int]:
    """Transfers that the administrator requested by REST, the newest first."""
    files = [
        {"source": "pisa", "source_name": f"/store/temp/{number}.root", "size": 1000,
         "destination": "bari", "destination_name": f"/store/user/{ADMIN}/{number}.root"}
        for number in range(3)
    ]  # fmt: skip
    request = {"key": "e2e", "workflow": "browser", "files": files}
    assert deployment.api._call("POST", f"{STAGEOUT_API}/requests", json=request).json()["files"] == 3
    return [row["id"] for row in rows_of(deployment.api)]


def rows_of(api: AirflowApi) -> list[dict[str, Any]]:
    return list(api._call("GET", f"{STAGEOUT_API}/transfers?workflow=browser").json()["rows"])


@contextmanager
def framed(browser: Browser, title: str = "Nights") -> Iterator[None]:
    """Inside a page of ours, within Airflow's."""
    browser.driver.switch_to.frame(browser.find(f"iframe[title='{title}']"))
    try:
        yield
    finally:
        browser.driver.switch_to.default_content()


def choose_theme(browser: Browser, name: str, *, framed: bool) -> None:
    """Choose it as a user does: Airflow keeps it in the browser, and shows it by a class of its root."""
    browser.driver.execute_script("window.localStorage.setItem('theme', arguments[0])", name)
    if framed:
        browser.driver.execute_script("window.parent.document.documentElement.className = arguments[0]", name)
    else:
        browser.driver.refresh()


def kept(browser: Browser, name: str) -> None:
    """A screenshot, also where it is wanted."""
    browser.screenshot(name)
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(browser.screens / f"{name}.png", folder)


def loaded(browser: Browser) -> set[str]:
    """The hosts that the open document loaded anything from."""
    urls = browser.driver.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    return {urlsplit(url).netloc for url in urls if not url.startswith("data:")}


def faults_of_axe(browser: Browser) -> list[dict[str, Any]]:
    """What axe-core finds in the open document that is serious."""
    spec = find_spec("axe_core_python")
    assert spec is not None
    assert spec.origin is not None
    browser.driver.execute_script((Path(spec.origin).parent / "axe.min.js").read_text())
    found = browser.driver.execute_async_script(AXE)
    assert isinstance(found, list), found
    return [
        {"id": one["id"], "nodes": [node["html"] for node in one["nodes"]][:3]}
        for one in found if one["impact"] in BAD_IMPACTS
    ]  # fmt: skip


def errors_of_console(browser: Browser) -> list[str]:
    """What our pages wrote; what Airflow's own wrote is not ours."""
    return [one["message"] for one in browser.driver.get_log("browser") if "nightshift" in one["message"]]


def test_without_a_login_airflow_answers_401(deployment: Deployment) -> None:
    def get(path: str, token: str | None) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return requests.get(f"{deployment.lab.airflow_url}{path}", headers=headers, timeout=60)

    for token in (None, "wrong"):
        for path in ("static/shell.js", *(f"{page.name}{part}" for page in PAGES for part in ("", "/live"))):
            answer = get(f"{PREFIX}/{path}", token)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        for path in ("transfers", "summary", "openapi.json"):
            answer = get(f"{STAGEOUT_API}/{path}", token)
            assert (answer.status_code, answer.json()["code"]) == (401, "http-401"), path


def test_a_form_asks_with_titles_and_says_what_each_answer_means(deployment: Deployment, night: Night) -> None:
    for param in deployment.rest("GET", f"/dags/{DAG}/details")["params"].values():
        assert param["schema"]["title"] in night.form
        assert param["description"] in night.form
    assert night.errors == []


@dataclass(frozen=True)
class Stop:
    """A page of the walk: its name, its query, the texts on it by selector, and what else is seen."""

    page: str
    query: str = ""
    texts: tuple[tuple[str, str], ...] = ()
    seen: tuple[str, ...] = ()


def stops(run_id: str, transfer: int) -> list[Stop]:
    """All pages while the night is in progress."""
    history = (("div[aria-label='History']", "requested"), ("dl.facts", "pisa to bari"))
    in_progress = (
        ("h1", f"Night of faults, {DATE}"), ("#live", "2 of 3 artifacts have ended"),
        ("table.matrix .busy", "preparing"),
    )  # fmt: skip
    place = BUILD.destination(*FREE.split("/"))
    published = (("h1", "Who published /"), ("tbody", f"{DAG}/{run_id}/artifact.publish"))
    facts = (("dl.facts", "in the store"), ("dl.facts", "ends "))
    return [
        Stop("nights", "", (("h1", "Nights"),)),
        Stop("nights", NIGHT, in_progress),
        Stop("repositories", f"?repository={FQRN}", facts, (CHART, "a[id$=-path]")),
        Stop("publications", f"?repository={FQRN}", (), (CHART, f"a[aria-label^='log of {FREE}']")),
        Stop("provenance", f"?repository={FQRN}&path={place}", published),
        Stop("transfers", "?workflow=browser", (("h1", "Transfers"),)),
        Stop("transfer", f"?id={transfer}", history),
        Stop("analytics", "", (("h1", "Analytics"), ("body", "is archived"))),
        Stop("sites", "", (("h1", "Sites"), ("body", "No site has a probe"))),
        Stop("caches", "", (("h1", "Caches"), ("body", "The settings name no cache"))),
        Stop("audit", "", (("h1", "Audit"),)),
        Stop("benchmarks", "", (("body", "No campaign was judged yet"),)),
        Stop("start", f"?action=freeze&repository={FQRN}", (("h1", "Freeze a repository"),)),
    ]


def test_a_walk_through_all_pages_in_light_and_in_dark(
    deployment: Deployment, browser: Browser, night: Night, transfers: list[int]
) -> None:
    browser.driver.get_log("browser")
    walk = stops(night.run_id, transfers[0])
    assert {stop.page for stop in walk} == {page.name for page in PAGES}
    for number, stop in enumerate(walk):
        title, address = NAVIGATED.get(stop.page), f"{PREFIX}/{stop.page}{stop.query}"
        browser.open(f"/plugin/nightshift-{stop.page}{address}" if title else address)
        for colours in ("light", "dark"):
            with framed(browser, title) if title else nullcontext():
                choose_theme(browser, colours, framed=title is not None)
                browser.see(f"html[data-theme={colours}]")
                for css, text in stop.texts:
                    browser.wait_for_text(css, text)
                for css in stop.seen:
                    browser.see(css)
                assert faults_of_axe(browser) == [], address
                assert loaded(browser) == {urlsplit(deployment.lab.airflow_url).netloc}, address
            kept(browser, f"{number}-{stop.page}-{colours}")
    assert errors_of_console(browser) == []


def test_a_cell_leads_to_the_log_of_its_task_which_can_be_read_while_it_works(
    deployment: Deployment, browser: Browser, night: Night
) -> None:
    """No component serves logs."""
    browser.open(f"/plugin/nightshift-nights/nightshift/nights{NIGHT}")
    with framed(browser):
        artifact = browser.find(f"a[aria-label='artifact {HELD}']").get_attribute("href")
        assert str(artifact).startswith(f"{deployment.store_proxy.url}/builds/faults/{DATE}/")
        browser.click(f"a[aria-label='log of {HELD}']")
    browser.wait(lambda driver: "/tasks/artifact.prepare/mapped/" in driver.current_url)
    browser.wait_for_text("body", "artifact.prepare")
    assert len(browser.driver.window_handles) == 1
    number = int(urlsplit(browser.driver.current_url).path.rpartition("/mapped/")[2].partition("/")[0])
    log = deployment.task_log(DAG, night.run_id, "artifact.prepare", map_index=number)
    assert "Filling up the DagBag" in log
    assert "prepared" not in log
    assert "Could not read served logs" not in log
    # what can be reached by keyboard shows where it is
    browser.open(f"/nightshift/nights{NIGHT}")
    driver = browser.driver
    driver.execute_script("document.querySelector('.skip').focus()")
    link = driver.find_element(By.CSS_SELECTOR, ".skip")
    assert driver.execute_script("return arguments[0].getBoundingClientRect().left", link) >= 0
    log = browser.find(f"a[aria-label='log of {HELD}']")
    driver.execute_script("arguments[0].focus({focusVisible: true})", log)
    assert log.value_of_css_property("outline-style") == "solid"


def test_progress_moves_without_a_reload_and_a_run_has_its_night_as_a_tab(
    deployment: Deployment, browser: Browser, night: Night
) -> None:
    browser.open(f"{night.page}/plugin/nightshift-run-nights")
    with framed(browser):
        browser.wait_for_text("#live", "2 of 3 artifacts have ended")
        browser.driver.execute_script("window.sameDocument = true")
        log = browser.find(f"a[aria-label='log of {HELD}']").get_attribute("id")
        browser.driver.execute_script("document.getElementById(arguments[0]).focus()", log)
        night.fault.release()
        browser.wait_for_text("#live", "All that is required is there.")
        browser.wait_for_text("#status", "3 published")
        assert browser.driver.execute_script("return window.sameDocument && document.activeElement.id") == log
        assert faults_of_axe(browser) == []
    kept(browser, "night-tab")


def test_a_run_has_a_note_and_its_tasks_link_to_what_they_worked_on(deployment: Deployment, ended: Night) -> None:
    run = f"/dags/{DAG}/dagRuns/{ended.quoted}"
    assert deployment.rest("GET", run)["note"] == f"Slot faults, build of {DATE}"
    repository, builds = deployment.settings.repository(FQRN).public_url, f"{deployment.store_proxy.url}/builds"
    page = f"{deployment.lab.airflow_url}{PREFIX}/nights{NIGHT}"
    for task, number, name, leads_to in (
        ("artifact.publish", 0, "Repository", f"{repository}/.cvmfspublished"),
        ("artifact.prepare", 0, "Artifact", f"{builds}/faults/{DATE}/"),
        ("find_build", -1, "Build index", f"{builds}/faults/{DATE}/index.json"),
        ("links", -1, "Night", page),
        ("gate", -1, "Night", page),
    ):
        links = deployment.rest("GET", f"{run}/taskInstances/{task}/links", params={"map_index": number})
        assert links["extra_links"][name].startswith(leads_to), links


def test_a_form_of_ours_starts_nothing_while_its_dag_is_paused_and_then_a_run_with_its_parameters(
    deployment: Deployment, browser: Browser, ended: Night
) -> None:
    deployment.api.pause("intervene")
    try:
        browser.open(f"/nightshift/start?action=freeze&repository={FQRN}")
        browser.wait_for_text("#refusal", "The DAG intervene is paused")
        browser.find("input[name=reason]").send_keys("a disk is replaced")
        browser.click("form.action button")
        browser.wait_for_text("form.action output", "Not started: see below.")
        assert faults_of_axe(browser) == []
        assert deployment.rest("GET", "/dags/intervene/dagRuns?limit=1&state=queued")["total_entries"] == 0
    finally:
        deployment.api.unpause("intervene")
    browser.open(f"/plugin/nightshift-nights/nightshift/nights{NIGHT}")
    with framed(browser):
        browser.click("#night-actions summary")
        browser.click("#night-actions a[href^='start?action=redo']")
        browser.wait_for_text("h1", "Redo a build")
        browser.click("form.action button")
    browser.wait(lambda driver: "/dags/intervene/runs/" in driver.current_url)
    run_id = unquote(urlsplit(browser.driver.current_url).path.rpartition("/runs/")[2])
    assert deployment.follow("intervene", run_id).state == "success"
    conf = deployment.rest("GET", f"/dags/intervene/dagRuns/{run_id}")["conf"]
    assert conf == {"action": "redo", "slot": "faults", "build_id": BUILD.build_id}


def test_operators_kill_and_resubmit_transfers_by_buttons_and_a_page_of_another_site_changes_nothing(
    deployment: Deployment, browser: Browser, transfers: list[int]
) -> None:
    def states() -> list[str]:
        return [row["state"] for row in rows_of(deployment.api)]

    assert rows_of(AirflowApi(deployment.lab.airflow_url, VIEWER, deployment.lab.secrets.viewer_password)) == []
    browser.driver.get_log("browser")
    browser.open("/plugin/nightshift-transfers/nightshift/transfers?workflow=browser")
    with framed(browser, "Transfers"):
        browser.click("#user-1-1")  # only those that wait
        browser.wait_for_text("div[aria-label='Files']", f"/store/user/{ADMIN}/2.root")
    browser.open("/plugin/nightshift-transfers/nightshift/transfers?workflow=browser")
    with framed(browser, "Transfers"):
        browser.click("#kill")
        browser.wait_for_text("form.change output", "3 transfers.")
        browser.click("#kill-cancel")
        assert states() == ["new"] * 3
        browser.click("#kill")
        browser.click("#kill-yes")
        browser.wait_for_text("form.change output", "3 killed")
        browser.wait_for_text("div[aria-label='Files']", "killed by")
        assert faults_of_axe(browser) == []
        browser.click("a[aria-label^='history of transfer']")
        browser.click("#resubmit")
        browser.click("#resubmit-yes")
        browser.wait_for_text("div[aria-label='History']", "resubmitted by")
    kept(browser, "transfer-resubmitted")
    assert states() == ["new", "killed", "killed"]
    browser.open("/nightshift/transfers")
    browser.see(CHART)
    assert faults_of_axe(browser) == []
    assert errors_of_console(browser) == []

    # `localhost` is another site than the address that the login is for
    browser.driver.get(browser.url.replace("127.0.0.1", "localhost") + f"{PREFIX}/static/shell.js")
    for mode, kind in (("no-cors", "text/plain"), ("cors", "application/json")):
        answered = browser.driver.execute_async_script(
            CROSS_SITE, f"{browser.url}{STAGEOUT_API}/transfers/kill", mode, kind, transfers
        )
        assert answered in {"opaque", "refused"}
    browser.driver.get_log("browser")  # it says what it refused
    assert states() == ["new", "killed", "killed"]


def test_connections_have_forms_of_their_own(browser: Browser) -> None:
    browser.open("/connections")
    browser.press("Add Connection")
    choice = browser.find(f"{DIALOG} [role=combobox]")
    for name, labels, fields in (
        ("CernVM-FS gateway", ("Key id", "Key secret"), ("max_lease_time_s", "authorities")),
        ("Object store (S3)", ("Access key", "Secret key"), ("url", "region", "addressing")),
        ("FTS (file transfer service)", ("Bearer token",), ("certificate", "key", "authorities")),
    ):
        choice.send_keys(name, Keys.ENTER)
        for label in labels:
            browser.wait_for_text(DIALOG, label)
        for field in fields:
            browser.find(f"{DIALOG} [name=element_{field}]")
