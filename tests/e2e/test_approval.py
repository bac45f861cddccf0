"""Somebody is asked through the whole of Airflow: where the waiting is, what holds it, and each kind of answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from selenium.webdriver.common.by import By

from include.nightlies import questions
from include.nightlies.approval import Answer
from include.nightlies.records import publications_of_run
from include.notify.message import Event
from include.notify.records import alerts_since
from include.settings.pools import NIGHTLY
from tests.e2e.deployment import FQRN, Deployment
from tests.e2e.test_browser import Browser, browser
from tests.fakes.builds import Build, tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

__all__ = ["browser"]
DAG = "publication"
READ = (DAG, "nightly_install")
DATE = "2026-05-01"
DEADLINE_MINUTES = 1  # the shorter the sooner this ends, the longer the slower a machine may be
READ_S = 200.0
WAITING = "awaiting_input"


@pytest.fixture(scope="module")
def asking(deployment: Deployment) -> Iterator[Deployment]:
    """The deployment, whose repository asks for approval for a while: nothing of it is started anew."""
    file = deployment.folder / "site.yaml"
    before = file.read_text()
    block = f"    gateway: gateway\n    approval: {{deadline_minutes: {DEADLINE_MINUTES}, approvers: [admin]}}\n"
    try:
        file.write_text(before.replace("    gateway: gateway\n", block))
        read_again(deployment, asks=True)
        yield deployment
    finally:
        file.write_text(before)
        read_again(deployment, asks=False)


def read_again(deployment: Deployment, *, asks: bool) -> None:
    """Have the files read until the DAGs are of that shape: Airflow keeps a new one at most every thirty seconds."""
    deadline = time.monotonic() + READ_S
    for dag_id in READ:
        while (
            "ask" in {one["task_id"] for one in deployment.rest("GET", f"/dags/{dag_id}/tasks")["tasks"]}
        ) is not asks:
            before = deployment.rest("GET", f"/dags/{dag_id}")
            deployment.api._call("PUT", f"/api/v2/parseDagFile/{before['file_token']}")
            deployment.wait_until(
                lambda dag_id=dag_id, before=before: (
                    deployment.rest("GET", f"/dags/{dag_id}")["last_parsed_time"] > before["last_parsed_time"]
                ),
                f"{dag_id} is read again",
                deadline - time.monotonic(),
            )


def state(deployment: Deployment, run: str, task: str, map_index: int = -1) -> str | None:
    for one in deployment.tasks(DAG, run):
        if (one["task_id"], one["map_index"]) == (task, map_index):
            return str(one["state"])
    return None


def question(run: str, map_index: int) -> str:
    return f"/dags/{DAG}/dagRuns/{run}/taskInstances/approve/{map_index}/hitlDetails"


def asked(deployment: Deployment, run: str, map_index: int) -> dict[str, Any]:
    """What Airflow shows, once the task waits."""
    deployment.wait_until(
        lambda: state(deployment, run, "approve", map_index) == WAITING, f"{run} waits for an answer", READ_S
    )
    return dict(deployment.rest("GET", question(run, map_index)))


def answer(deployment: Deployment, run: str, map_index: int, given: str, comment: str) -> None:
    """Answers as a person does: where Airflow asks once more, once more.

    It does if the answer comes in the moment in which the task pauses: the scheduler then takes the task for lost.
    """
    body = {"chosen_options": [given], "params_input": {"comment": comment}}

    def over() -> bool:
        now = state(deployment, run, "approve", map_index)
        if now == WAITING and not deployment.rest("GET", question(run, map_index))["response_received"]:
            deployment.rest("PATCH", question(run, map_index), json=body)
        return now in {"success", "skipped"}

    deployment.wait_until(over, f"the answer to question {map_index} of {run} counts", READ_S)


def fate(deployment: Deployment, run: str) -> tuple[str, str]:
    (one,) = publications_of_run(deployment.connections.ledger, f"{DAG}/{run}")
    return one.state.value, one.reason


@pytest.mark.server("chromium")
@pytest.mark.server("chromedriver")
def test_the_question_is_a_table_in_the_browser_and_is_approved_without_a_comment(
    asking: Deployment, browser: Browser
) -> None:
    build = Build(DATE, slot="asked").add("A", "x86_64", tree({"a": b"seen"}))
    asking.drop(build)
    source = f"s3://builds/asked/{DATE}/{build.build_id}/A-x86_64.tar.gz"
    # the task reads it when it asks: a browser may be slower than the answers of the other test
    file = asking.folder / "site.yaml"
    text = file.read_text()
    file.write_text(text.replace(f"deadline_minutes: {DEADLINE_MINUTES}", "deadline_minutes: 10"))
    try:
        asking.trigger(DAG, "seen", repository=FQRN, path="/asked/seen", source=source)
        asked(asking, "seen", 0)
    finally:
        file.write_text(text)
    browser.open(f"/dags/{DAG}/runs/seen/tasks/approve/mapped/0/required_actions")
    browser.wait_for_text("table thead", "Destination")
    rows = [row.text for row in browser.driver.find_elements(By.CSS_SELECTOR, "table tbody tr")]
    browser.screenshot("approval")
    assert len(rows) == 1
    assert rows[0].startswith("/asked/seen /asked/seen 2 files, ")
    assert browser.link("Run and its logs") == f"{asking.lab.airflow_url}/dags/{DAG}/runs/seen"
    browser.press("Approve")
    assert asking.follow(DAG, "seen").state == "success"
    (question_of_run,) = questions.of_run(asking.connections.ledger, f"{DAG}/seen")
    assert (question_of_run.answer, question_of_run.comment) == (Answer.APPROVED, "")


def test_a_no_then_a_yes_to_the_question_asked_anew_while_nobody_answers_another(asking: Deployment) -> None:
    build = Build(DATE, slot="asked").add("A", "x86_64", tree({"a": b"approved"}))
    asking.drop(build)
    source = f"s3://builds/asked/{DATE}/{build.build_id}/A-x86_64.tar.gz"
    before, begun = asking.revision(), datetime.now(UTC) - timedelta(seconds=1)

    # a no
    asking.trigger(DAG, "answered", repository=FQRN, path="/asked/answered", source=source)
    shown = asked(asking, "answered", 0)
    assert shown["subject"] == f"Publish /asked/answered to {FQRN}?"
    assert "| `/asked/answered` | `/asked/answered` | `2 files" in shown["body"]
    assert [one["id"] for one in shown["assigned_users"]] == ["admin"]
    answer(asking, "answered", 0, "Reject", "not today")
    assert asking.follow(DAG, "answered").state == "failed"
    assert fate(asking, "answered")[0] == "skipped"
    assert "rejected by admin" in fate(asking, "answered")[1]
    assert "not today" in fate(asking, "answered")[1]

    # another one waits, and nothing is held for it
    asking.trigger(DAG, "late", repository=FQRN, path="/asked/late", source=source)
    asked(asking, "late", 0)
    assert (asking.leases(), asking.revision()) == ([], before)
    pools = {one["name"]: one for one in asking.rest("GET", "/pools")["pools"] if one["name"] in NIGHTLY}
    assert {name: one["occupied_slots"] for name, one in pools.items()} == dict.fromkeys(NIGHTLY, 0)
    assert state(asking, "late", "approve", 0) == WAITING

    # asked anew, and a yes
    asking.rest(
        "POST", f"/dags/{DAG}/clearTaskInstances",
        json={
            "dry_run": False, "dag_run_id": "answered", "task_ids": ["ask"], "include_downstream": True,
            "only_failed": False, "reset_dag_runs": True,
        },
    )  # fmt: skip
    again = asked(asking, "answered", 1)
    assert again["response_received"] is False
    assert state(asking, "answered", "approve", 0) == "success"  # that question is none any more
    answer(asking, "answered", 1, "Approve", "now it is")
    assert asking.follow(DAG, "answered").state == "success"
    assert fate(asking, "answered")[0] == "published"
    assert asking.connections.repository(FQRN).read("/asked/answered/a") == b"approved"
    first, second = questions.of_run(asking.connections.ledger, f"{DAG}/answered")
    assert (first.answer, second.answer, second.comment) == (Answer.REJECTED, Answer.APPROVED, "now it is")

    # nobody answered the other one
    assert asking.follow(DAG, "late").state == "failed"
    assert "had no answer by its deadline" in fate(asking, "late")[1]
    assert state(asking, "late", "approve", 0) == "skipped"
    assert asking.connections.head(FQRN).lookup("/asked/late") is None
    told = {one.title for one in alerts_since(asking.connections.ledger, begun) if one.event == Event.APPROVAL.value}
    assert f"nobody answered: Publish /asked/late to {FQRN}?" in told
    assert asking.leases() == []
