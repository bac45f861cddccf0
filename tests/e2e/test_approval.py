"""A person is asked through the whole of Airflow: what is held meanwhile, a no, and a yes in the browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from include.nightlies.records import questions
from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.approval import Answer
from include.settings.scheduling import NIGHTLY
from tests.e2e.browser import Browser
from tests.e2e.deployment import ASKING, Deployment
from tests.fakes.builds import tree

pytestmark = [
    pytest.mark.server("weed"),
    pytest.mark.server("chromium"),
    pytest.mark.server("chromedriver"),
    pytest.mark.slow,
]

DAG = "publication"
SOON_S = 300.0
WAITING = "awaiting_input"


def dropped(deployment: Deployment, content: bytes) -> str:
    """The URL of a tarball in the store."""
    store, name = deployment.site.store("builds"), f"asked/{content.decode()}.tar.gz"
    store.put(name, tree({"a": content}))
    return f"{store.url}/{name}"


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
        lambda: state(deployment, run, "approve", map_index) == WAITING, f"{run} waits for an answer", SOON_S
    )
    return dict(deployment.rest("GET", question(run, map_index)))


def settled(deployment: Deployment, run: str, map_index: int) -> bool:
    """Whether the scheduler has seen that the task of this question paused in its current try."""
    (task,) = (
        one for one in deployment.tasks(DAG, run) if (one["task_id"], one["map_index"]) == ("approve", map_index)
    )
    key = f"task_id='approve', run_id='{run}', try_number={task['try_number']}, map_index={map_index})"
    lines = (deployment.place.log / "scheduler.log").read_text(errors="replace").splitlines()
    return any("Received executor event with state success" in line and key in line for line in lines)


def answer(deployment: Deployment, run: str, map_index: int, give: Callable[[], object]) -> None:
    """Answers as a person does, who is not faster than the scheduler; where Airflow asks once more, once more.

    An answer before the scheduler has seen that the task paused makes it take the task for lost, which costs a try.
    """

    def received() -> bool:
        return bool(deployment.rest("GET", question(run, map_index))["response_received"])

    def over() -> bool:
        now = state(deployment, run, "approve", map_index)
        if now == WAITING and settled(deployment, run, map_index) and not received():
            give()
            deployment.wait_until(received, f"the answer to question {map_index} of {run} is received", SOON_S)
        return now in {"success", "skipped"}

    deployment.wait_until(over, f"the answer to question {map_index} of {run} counts", SOON_S)


def fate(deployment: Deployment, run: str) -> tuple[str, str]:
    (one,) = publications_of_run(deployment.site.ledger, f"{DAG}/{run}")
    return one.state.value, one.reason


def test_a_no_then_a_yes_in_the_browser_to_the_question_asked_anew(deployment: Deployment, browser: Browser) -> None:
    # a no
    deployment.trigger(
        DAG, "answered", repository=ASKING, path="/asked/answered", source=dropped(deployment, b"approved")
    )
    before, shown = deployment.revision(ASKING), asked(deployment, "answered", 0)
    occupied = {one["name"]: one["occupied_slots"] for one in deployment.rest("GET", "/pools")["pools"]}
    assert (deployment.leases(), deployment.revision(ASKING), {occupied[name] for name in NIGHTLY}) == ([], before, {0})
    assert shown["subject"] == f"Publish /asked/answered to {ASKING}?"
    assert "| `/asked/answered` | `/asked/answered` | `2 files" in shown["body"]
    assert [one["id"] for one in shown["assigned_users"]] == ["admin"]
    no = {"chosen_options": ["Reject"], "params_input": {"comment": "not today"}}
    answer(deployment, "answered", 0, lambda: deployment.rest("PATCH", question("answered", 0), json=no))
    assert deployment.follow(DAG, "answered").state == "failed"
    assert fate(deployment, "answered")[0] == "skipped"
    assert "rejected by admin" in fate(deployment, "answered")[1]
    assert "not today" in fate(deployment, "answered")[1]

    # asked anew
    deployment.rest(
        "POST", f"/dags/{DAG}/clearTaskInstances",
        json={
            "dry_run": False, "dag_run_id": "answered", "task_ids": ["ask"], "include_downstream": True,
            "only_failed": False, "reset_dag_runs": True,
        },
    )  # fmt: skip
    again = asked(deployment, "answered", 1)
    assert again["response_received"] is False
    deployment.wait_until(
        lambda: state(deployment, "answered", "approve", 0) == "success", "the question is answered", SOON_S
    )

    # the question is a table, and a yes needs no comment
    def approve() -> None:
        browser.open(f"/dags/{DAG}/runs/answered/tasks/approve/mapped/1/required_actions")
        browser.wait_for_text("table thead", "Destination")
        rows = browser.texts("table tbody tr")
        browser.screenshot("approval")
        assert len(rows) == 1
        assert rows[0].startswith("/asked/answered /asked/answered 2 files, ")
        assert browser.link("Run and its logs") == f"{deployment.lab.airflow_url}/dags/{DAG}/runs/answered"
        browser.press("Approve")

    answer(deployment, "answered", 1, approve)
    browser.leave()
    assert deployment.follow(DAG, "answered").state == "success"
    assert fate(deployment, "answered")[0] == "published"
    assert deployment.site.repository(ASKING).revision.read("/asked/answered/a") == b"approved"
    first, second = questions.of_run(deployment.site.ledger, f"{DAG}/answered")
    assert (first.answer, second.answer, second.comment) == (Answer.REJECTED, Answer.APPROVED, "")
