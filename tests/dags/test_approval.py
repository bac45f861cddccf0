"""Runs that wait for somebody: what is asked, what each answer does, and that nothing is held or changed meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from airflow.sdk import TriggerRule
from sqlalchemy.exc import OperationalError

from include.nightlies.records import questions
from include.nightlies.rules.approval import Answer
from include.notify.message import NotifyEvent
from include.notify.records import alerts_since
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.dags.conftest import FQRN, MiniSite, read_dags, record
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


@pytest.fixture(scope="module")
def asking(site: MiniSite) -> Iterator[MiniSite]:
    """The same site, whose repository now asks anna for approval."""
    text = (site.folder / "site.yaml").read_text()
    file = site.folder / "asking.yaml"
    file.write_text(text.replace("    limits:", "    approval: {deadline_minutes: 60, approvers: [anna]}\n    limits:"))
    environment = {**site.environment, "NIGHTSHIFT_CONFIG": str(file)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        opened, bag = Site(load(), EnvSecrets({**os.environ})), read_dags()
    record(bag)
    yield MiniSite(site.folder, opened, site.gateway_url, bag, environment)
    opened.ledger.dispose()
    record(site.bag)


@dataclass
class Shown:
    """What somebody saw when asked, and what was held and published at that moment."""

    subject: str
    body: str
    assigned: list[str]
    leases: list[str]
    revision: int
    map_index: int
    seconds_left: float


@dataclass
class Anna:
    """Answers every question as Airflow's API does; ``None`` is the end of the time for it."""

    site: MiniSite
    says: str | None
    seen: list[Shown] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)

    def watch(self, stop: threading.Event) -> None:
        while not stop.wait(0.3):
            try:
                self._look()
            except OperationalError:
                continue  # SQLite is busy
            except BaseException as fault:
                self.faults.append(fault)
                raise

    def _look(self) -> None:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from airflow.utils.state import TaskInstanceState
        from sqlalchemy import select
        from sqlalchemy.orm import joinedload

        with create_session() as session:
            query = select(TaskInstance).where(TaskInstance.state == TaskInstanceState.AWAITING_INPUT)
            waiting = session.scalars(query.options(joinedload(TaskInstance.hitl_detail))).all()
            answered = [self._answer(session, ti, ti.hitl_detail) for ti in waiting]
        self.seen += answered  # an answer that SQLite was too busy to keep is given again, and counts once

    def _answer(self, session: Any, ti: Any, detail: Any) -> Shown:
        from airflow.models.trigger import handle_event_submit
        from airflow.triggers.base import TriggerEvent

        now = datetime.now(UTC)
        shown = Shown(
            detail.subject, detail.body, [one["id"] for one in detail.assignees or []], self.site.leases(),
            self.site.revision(), ti.map_index, (ti.trigger_timeout - now).total_seconds(),
        )  # fmt: skip
        event = {"error": "no response", "error_type": "timeout"}
        if self.says is not None:
            detail.chosen_options, detail.params_input = [self.says], {"comment": "seen by anna"}
            detail.responded_by, detail.responded_at = {"id": "anna", "name": "anna"}, now
            event = detail.as_resume_event_payload()
        handle_event_submit(TriggerEvent(event), task_instance=ti, session=session)
        return shown


@contextmanager
def anna(site: MiniSite, says: str | None) -> Iterator[Anna]:
    person, stop = Anna(site, says), threading.Event()
    thread = threading.Thread(target=person.watch, args=(stop,), daemon=True)
    thread.start()
    yield person
    stop.set()
    thread.join(20)
    assert not person.faults


def _build(day: int, *projects: str) -> Build:
    build = Build(f"2026-06-{day:02}")
    for project in projects:
        build.add(project, "x86_64", tree({"file": f"{project} of {day}".encode()}))
    return build


def test_a_night_publishes_what_was_approved_and_a_build_is_undone_after_a_yes_and_stays_after_a_no(
    asking: MiniSite,
) -> None:
    asking.drop(_build(1, "A", "B").lose("B", "x86_64"))
    before = asking.revision()
    with anna(asking, "Approve") as person:
        run = asking.run("nightly_install_main", build_date="2026-06-01")
    (shown,) = person.seen
    assert shown.subject == f"Publish A/x86_64 to {FQRN}?"
    assert "| `A/x86_64` | `/nightlies/main/b20260601/A/x86_64` | `2 files" in shown.body
    assert (shown.assigned, shown.leases, shown.revision) == (["anna"], [], before)
    assert 3000 < shown.seconds_left <= 3600
    assert run.states() == {"A/x86_64": "published", "B/x86_64": "failed"}
    assert (run.tasks["ask"], run.tasks["approve[0]"], run.tasks["reserve"]) == ("success",) * 3
    assert sorted(run.tasks[f"artifact.publish[{index}]"] for index in (0, 1)) == ["failed", "success"]
    assert (run.state, run.tasks["gate"]) == ("failed", "failed")
    (question,) = questions.of_run(asking.opened.ledger, run.name)
    assert (question.answer, question.answered_by, question.comment) == (Answer.APPROVED, "anna", "seen by anna")
    assert question.digest in shown.body

    before = asking.revision()
    form = {"slot": "main", "build_id": "b20260601", "reason": "it crashes", "dry_run": False, "approval": False}
    with anna(asking, "Reject") as person:
        kept = asking.run("undo_build", **form)
    (shown,) = person.seen
    assert "A/x86_64: /nightlies/main/b20260601/A/x86_64 (2 files" in shown.body
    assert (kept.tasks["approve[0]"], kept.tasks["undo"], asking.revision()) == ("skipped", "skipped", before)
    with anna(asking, "Approve"):
        gone = asking.run("undo_build", **form)
    assert (gone.tasks["undo"], asking.revision()) == ("success", before + 1)
    assert asking.opened.head(FQRN).revision.lookup("/nightlies/main/b20260601") is None


def test_a_tree_by_hand_without_an_answer_is_skipped_with_the_reason_and_people_are_told(asking: MiniSite) -> None:
    asking.drop(_build(2, "A"))
    before, begun = asking.revision(), datetime.now(UTC) - timedelta(seconds=1)
    with anna(asking, None) as person:
        run = asking.run(
            "publication", repository=FQRN, path="/by/hand/asked",
            source="s3://builds/main/2026-06-02/b20260602/A-x86_64.tar.gz",
        )  # fmt: skip
    assert [one.subject for one in person.seen] == [f"Publish /by/hand/asked to {FQRN}?"]
    assert (run.state, asking.revision(), asking.leases()) == ("failed", before, [])
    (publication,) = run.publications.values()
    assert publication.state.value == "skipped"
    assert "had no answer by its deadline" in publication.reason
    assert run.tasks["approve[0]"] == run.tasks["reserve"] == run.tasks["tree.publish"] == "skipped"
    told = [one for one in alerts_since(asking.opened.ledger, begun) if one.event == NotifyEvent.APPROVAL.value]
    (asked, refused) = sorted(told, key=lambda one: one.first_seen_at)
    assert "/by/hand/asked" in asked.text
    assert "had no answer by its deadline" in refused.text
    assert "clear the task" in refused.text


def test_without_a_build_nobody_is_asked_and_the_gate_says_where_it_was_looked_for(
    asking: MiniSite, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    run = asking.run("nightly_install_main", build_date="2031-01-01")
    assert {name for name, state in run.tasks.items() if state == "failed"} == {"find_build", "gate"}
    assert run.tasks["ask"] == "skipped"
    missing = "slot main has no build for 2031-01-01: nothing at s3://builds/main/2031-01-01/index.json. Check the date"
    assert f"- task find_build failed: {missing}" in capfd.readouterr().out, "the gate repeats it"


def test_only_where_somebody_may_be_asked_a_run_waits_for_all_that_is_prepared(
    site: MiniSite, asking: MiniSite
) -> None:
    for dag_id in ("nightly_install", "nightly_install_main", "publication"):
        assert not {"ask", "approve"} & set(site.dags[dag_id].task_ids)
        dag = asking.dags[dag_id]
        group = "tree" if dag_id == "publication" else "artifact"
        order = [f"{group}.prepare", "ask", "approve", "reserve", f"{group}.publish", "verify"]
        for earlier, later in pairwise(order):
            assert earlier in dag.get_task(later).upstream_task_ids
        # one that fails to be prepared keeps no other from being asked about
        assert dag.get_task("ask").trigger_rule == TriggerRule.ALL_DONE
        assert f"{group}.prepare" not in dag.get_task(f"{group}.publish").upstream_task_ids
        assert dag.dagrun_timeout is not None
        assert dag.dagrun_timeout > timedelta(minutes=720) + timedelta(hours=6)
    assert {"prepare_inherited", "inherited"} <= set(asking.dags["nightly_install"].task_ids)
