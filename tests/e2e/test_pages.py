"""The pages inside Airflow's UI: a night in progress, seen in a real browser, in light and in dark.

The screenshots are artefacts: with SCREENSHOTS set they are kept in that folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import requests
from selenium.webdriver.common.by import By

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
RUN = "pages"
HELD = "Held/x86"
FRAME = "iframe[title=Nights]"
NIGHT = f"nights?slot=faults&date={DATE}"
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
class Running:
    """A night of which one artifact is held while it is uploaded."""

    fault: Fault


@pytest.fixture(scope="module")
def running(deployment: Deployment) -> Iterator[Running]:
    deployment.drop(build_of_victims(DATE, ("Free/x86", 2), ("Other/x86", 1), (HELD, 0)))
    fault = deployment.store_proxy.hold(method="PUT", path=upload_of(HELD), times=None)
    deployment.trigger("nightly_install", RUN, slot="faults", build_date=DATE)
    fault.wait(120)
    yield Running(fault)
    fault.release()
    deployment.store_proxy.clear()


@contextmanager
def framed(browser: Browser, css: str = FRAME) -> Iterator[None]:
    """Inside the page, within Airflow's."""
    frame = browser.find(css)
    browser.driver.switch_to.frame(frame)
    try:
        yield
    finally:
        browser.driver.switch_to.default_content()


def theme(browser: Browser, name: str) -> None:
    """As its user would choose it; Airflow keeps it in the browser."""
    browser.open("/")
    browser.driver.execute_script("window.localStorage.setItem('theme', arguments[0])", name)


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


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}], ids=["no token", "wrong token"])
def test_without_a_login_airflow_answers_401(deployment: Deployment, headers: dict[str, str]) -> None:
    for page in PAGES:
        for path in (page.name, f"{page.name}/live", "static/shell.js"):
            answer = requests.get(f"{deployment.lab.airflow_url}{PREFIX}/{path}", headers=headers, timeout=60)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
    for path in ("transfers", "summary", "openapi.json"):
        answer = requests.get(f"{deployment.lab.airflow_url}{STAGEOUT_API}/{path}", headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (401, "http-401"), path


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_night_in_progress_is_seen_in_airflows_navigation(
    deployment: Deployment, browser: Browser, running: Running, colours: str
) -> None:
    theme(browser, colours)
    browser.driver.get_log("browser")
    browser.open("/plugin/nightshift-nights")
    with framed(browser):
        browser.wait_for_text("h1", "Nights")
        assert browser.find("html").get_attribute("data-theme") == colours
        assert faults_of_axe(browser) == []
    kept(browser, f"nights-{colours}")
    browser.open(f"/plugin/nightshift-nights/nightshift/{NIGHT}")
    with framed(browser):
        browser.wait_for_text("h1", f"Night of faults, {DATE}")
        browser.wait_for_text("#live", "2 of 3 artifacts have ended")
        browser.wait_for_text("table.matrix .busy", "preparing")
        artifact = browser.find(f"a[aria-label='artifact {HELD}']").get_attribute("href")
        assert str(artifact).startswith(f"{deployment.store_proxy.url}/builds/faults/{DATE}/")
        assert faults_of_axe(browser) == []
        assert loaded(browser) == {urlsplit(deployment.lab.airflow_url).netloc}
    kept(browser, f"night-{colours}")
    assert errors_of_console(browser) == []


def test_a_cell_leads_to_the_log_of_its_task_in_the_same_window(browser: Browser, running: Running) -> None:
    browser.open(f"/plugin/nightshift-nights/nightshift/{NIGHT}")
    with framed(browser):
        browser.click(f"a[aria-label='log of {HELD}']")
    browser.wait(lambda driver: "/tasks/artifact.prepare/mapped/" in driver.current_url)
    browser.wait_for_text("body", "artifact.prepare")
    assert len(browser.driver.window_handles) == 1
    kept(browser, "night-log")


def test_what_can_be_reached_by_keyboard_shows_where_it_is(browser: Browser, running: Running) -> None:
    browser.open(f"/nightshift/{NIGHT}")
    driver = browser.driver
    driver.execute_script("document.querySelector('.skip').focus()")
    link = driver.find_element(By.CSS_SELECTOR, ".skip")
    assert driver.execute_script("return arguments[0].getBoundingClientRect().left", link) >= 0
    log = browser.find(f"a[aria-label='log of {HELD}']")
    driver.execute_script("arguments[0].focus({focusVisible: true})", log)
    assert log.value_of_css_property("outline-style") == "solid"


def test_progress_moves_without_a_reload_and_a_run_has_its_night_as_a_tab(
    deployment: Deployment, browser: Browser, running: Running
) -> None:
    browser.open(f"/dags/nightly_install/runs/{RUN}/plugin/nightshift-run-nights")
    with framed(browser):
        browser.wait_for_text("#live", "2 of 3 artifacts have ended")
        browser.driver.execute_script("window.sameDocument = true")
        log = browser.find(f"a[aria-label='log of {HELD}']").get_attribute("id")
        browser.driver.execute_script("document.getElementById(arguments[0]).focus()", log)
        running.fault.release()
        browser.wait_for_text("#live", "All that is required is there.")
        browser.wait_for_text("#status", "3 published")
        assert browser.driver.execute_script("return window.sameDocument && document.activeElement.id") == log
        assert faults_of_axe(browser) == []
    kept(browser, "night-tab")
    assert deployment.follow("nightly_install", RUN).state == "success"


def test_who_published_a_path_is_one_link_away(deployment: Deployment, browser: Browser, running: Running) -> None:
    running.fault.release()
    deployment.follow("nightly_install", RUN)
    for colours in ("dark", "light"):
        theme(browser, colours)
        browser.open(f"/plugin/nightshift-nights/nightshift/{NIGHT}")
        with framed(browser):
            browser.click(f"a[aria-label='who published {HELD}']")
            browser.wait_for_text("h1", "Who published /")
            browser.wait_for_text("tbody", f"nightly_install/{RUN}/artifact.publish")
            assert faults_of_axe(browser) == []
        kept(browser, f"provenance-{colours}")


def test_an_action_of_the_page_starts_its_dag_with_the_form_filled_in(
    deployment: Deployment, browser: Browser, running: Running
) -> None:
    running.fault.release()
    deployment.follow("nightly_install", RUN)
    for action, state, colours in (("Freeze", "frozen", "dark"), ("Thaw", "none", "light")):
        theme(browser, colours)
        browser.open(f"/plugin/nightshift-nights/nightshift/{NIGHT}")
        with framed(browser):
            browser.click("#night-actions summary")
            browser.find(f"#night-actions a[href^='start?action={action.lower()}']").click()
            browser.wait_for_text("h1", f"{action} a repository")
            assert browser.find("input[name=repository]").get_attribute("value") == FQRN
            if action == "Freeze":
                browser.find("input[name=reason]").send_keys("a disk is replaced")
            assert faults_of_axe(browser) == []
            browser.driver.execute_script("document.activeElement.blur()")
        kept(browser, f"start-{action.lower()}")
        with framed(browser):
            browser.click("form.action button")
        browser.wait(lambda driver: "/dags/intervene/runs/" in driver.current_url)
        run_id = unquote(urlsplit(browser.driver.current_url).path.rpartition("/runs/")[2])
        assert deployment.follow("intervene", run_id).state == "success"
        browser.open(f"/nightshift/{NIGHT}")
        browser.wait_for_text("dl.facts", state)
        kept(browser, f"freeze-{state}")


def test_a_redo_of_the_page_is_a_run_with_its_parameters(
    deployment: Deployment, browser: Browser, running: Running
) -> None:
    running.fault.release()
    deployment.follow("nightly_install", RUN)
    browser.open(f"/plugin/nightshift-nights/nightshift/{NIGHT}")
    with framed(browser):
        browser.click("#night-actions summary")
        browser.click("#night-actions a[href^='start?action=redo']")
        browser.wait_for_text("h1", "Redo a build")
        browser.click("form.action button")
    browser.wait(lambda driver: "/dags/intervene/runs/" in driver.current_url)
    run_id = unquote(urlsplit(browser.driver.current_url).path.rpartition("/runs/")[2])
    assert deployment.follow("intervene", run_id).state == "success"
    conf = deployment.rest("GET", f"/dags/intervene/dagRuns/{run_id}")["conf"]
    assert conf == {"action": "redo", "slot": "faults", "build_id": f"b{DATE.replace('-', '')}"}


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_repositories_and_publications_show_the_night_that_ended(
    deployment: Deployment, browser: Browser, running: Running, colours: str
) -> None:
    running.fault.release()
    deployment.follow("nightly_install", RUN)
    theme(browser, colours)
    browser.driver.get_log("browser")
    for title, seen in (("Repositories", "a[id$=-path]"), ("Publications", f"a[aria-label^='log of {HELD}']")):
        name = title.lower()
        browser.open(f"/plugin/nightshift-{name}/nightshift/{name}?repository={FQRN}")
        with framed(browser, f"iframe[title={title}]"):
            browser.see(".chart .main-svg")
            browser.see(seen)
            if title == "Repositories":
                browser.wait_for_text("dl.facts", "in the store")
                browser.wait_for_text("dl.facts", "ends ")
            assert faults_of_axe(browser) == []
            assert loaded(browser) == {urlsplit(deployment.lab.airflow_url).netloc}
        kept(browser, f"{name}-{colours}")
    assert errors_of_console(browser) == []


def changed_by_buttons(deployment: Deployment, browser: Browser) -> None:
    """Kills and resubmits on both pages, from within Airflow's; a page of another site changes nothing."""

    def states() -> list[str]:
        listed = deployment.api._call("GET", f"{STAGEOUT_API}/transfers?workflow=browser").json()
        return [row["state"] for row in listed["rows"]]

    browser.open("/plugin/nightshift-transfers/nightshift/transfers?workflow=browser")
    with framed(browser, "iframe[title=Transfers]"):
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
    assert errors_of_console(browser) == []
    # `localhost` is another site than the address that the login is for
    numbers = [row["id"] for row in deployment.api._call("GET", f"{STAGEOUT_API}/transfers").json()["rows"]]
    browser.driver.get(browser.url.replace("127.0.0.1", "localhost") + f"{PREFIX}/static/shell.js")
    for mode, kind in (("no-cors", "text/plain"), ("cors", "application/json")):
        answered = browser.driver.execute_async_script(
            CROSS_SITE, f"{browser.url}{STAGEOUT_API}/transfers/kill", mode, kind, numbers
        )
        assert answered in {"opaque", "refused"}
    browser.driver.get_log("browser")  # it says what it refused
    assert states() == ["new", "killed", "killed"]


def test_transfers_are_submitted_by_rest_and_seen_by_operators_with_their_history(
    deployment: Deployment, browser: Browser
) -> None:
    files = [
        {"source": "pisa", "source_name": f"/store/temp/{number}.root", "size": 1000,
         "destination": "bari", "destination_name": f"/store/user/{ADMIN}/{number}.root"}
        for number in range(3)
    ]  # fmt: skip
    request = {"key": "e2e", "workflow": "browser", "files": files}
    assert deployment.api._call("POST", f"{STAGEOUT_API}/requests", json=request).json()["files"] == 3
    viewer = AirflowApi(deployment.lab.airflow_url, VIEWER, deployment.lab.secrets.viewer_password)
    assert viewer._call("GET", f"{STAGEOUT_API}/transfers").json()["rows"] == []
    browser.driver.get_log("browser")
    browser.open("/plugin/nightshift-transfers/nightshift/transfers?workflow=browser")
    with framed(browser, "iframe[title=Transfers]"):
        browser.wait_for_text("h1", "Transfers")
        assert faults_of_axe(browser) == []
        browser.click("#user-1-1")
        browser.wait_for_text("div[aria-label='Files']", f"/store/user/{ADMIN}/2.root")
        kept(browser, "transfers")
        browser.click("a[aria-label^='history of transfer']")
        browser.wait_for_text("div[aria-label='History']", "requested")
        browser.wait_for_text("dl.facts", "pisa to bari")
        assert faults_of_axe(browser) == []
        assert loaded(browser) == {urlsplit(deployment.lab.airflow_url).netloc}
    kept(browser, "transfer")
    changed_by_buttons(deployment, browser)
    browser.open("/nightshift/transfers")
    browser.see(".chart .main-svg")
    assert faults_of_axe(browser) == []
    assert errors_of_console(browser) == []
