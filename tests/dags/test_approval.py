"""Runs that wait for somebody: what is asked, what each answer does, and that nothing is held or changed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from airflow.sdk import TriggerRule

from include.nightlies.records import questions
from include.nightlies.rules.approval import Answer
from include.notify import NotifyEvent
from tests.dags.conftest import FQRN, MiniSite, anna, reconfigured
from tests.fakes.alerts import alerts_since
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


@pytest.fixture(scope="module")
def asking(site: MiniSite) -> Iterator[MiniSite]:
    """The same site, whose repository now asks anna for approval."""
    text = (site.folder / "site.yaml").read_text()
    asks = text.replace("    limits:", "    approval: {deadline_minutes: 60, approvers: [anna]}\n    limits:")
    with reconfigured(site, asks, "nightly_install", "publication", "undo_build") as made:
        yield made


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
    before, begun = asking.revision(), datetime.now(UTC) - timedelta(minutes=1)
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
    told = [one for one in alerts_since(asking.opened.ledger, begun) if "/by/hand/asked" in one.title]
    assert {one.event for one in told} == {NotifyEvent.APPROVAL.value}
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
