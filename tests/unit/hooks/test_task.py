"""A run whose first task failed: those that run in any case say why, and die of nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from hooks.task import FIND_BUILD, PLAN, REASON, first_cause, reason_kept, why_no_build, why_no_plan
from include.nightlies.errors import BuildMissing, GateClosed
from operators.approve import AskApprovalOperator
from operators.night import AnnounceBuildOperator, CheckCompletenessOperator, SetLinksOperator, StartNextPassOperator
from sensors.build import BuildSensor
from tests.fakes.plainsite import plain_site
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

NIGHT = {"run": "night/run-1", "slot": "main", "date": "2026-11-21", "reason": "why", "projects": [], "platforms": []}
MISSING = "slot main has no build for 2026-11-21"
WORDS = f"task find_build failed: {MISSING}"


def failed(**params: Any) -> Any:
    """What the tasks of a run see that found no build."""
    return task_context(xcoms={(FIND_BUILD, REASON): MISSING}, **params)


def test_a_failure_leaves_its_reason_and_goes_on_and_a_skip_leaves_none() -> None:
    xcoms: dict[tuple[str, str], Any] = {}
    context = task_context(xcoms=xcoms)
    with pytest.raises(AirflowSkipException), reason_kept(context):
        raise AirflowSkipException("not tonight")
    assert xcoms == {}
    with pytest.raises(BuildMissing), reason_kept(context):
        raise BuildMissing("main", "2026-11-21", "s3://builds/index.json")
    assert MISSING in xcoms["publish", REASON]


def test_the_message_of_what_runs_in_any_case_repeats_why_there_is_no_build(tmp_path: Path) -> None:
    with refused(GateClosed, missing=(WORDS,)):
        CheckCompletenessOperator(task_id="gate").execute(failed())
    links = SetLinksOperator(task_id="links", night=None)
    for run in (
        AskApprovalOperator(task_id="ask", batches=None).execute,
        StartNextPassOperator(task_id="next_pass", night=None, plan="plan").execute,
        AnnounceBuildOperator(task_id="announce", night=None, passed=None, linked=None).execute,
        lambda context: links.attempt(context, plain_site(tmp_path)),
    ):
        with pytest.raises(AirflowSkipException, match=WORDS):
            run(failed())


def test_the_cause_is_that_of_the_first_task_that_failed_and_without_one_its_log_is_named() -> None:
    both = task_context(xcoms={(PLAN, REASON): "b", (FIND_BUILD, REASON): "a"})
    assert (first_cause(task_context()), first_cause(both)) == (None, "task find_build failed: a")
    assert why_no_build(task_context()) == "task find_build found no build; see its log"
    assert why_no_plan(task_context()) == "task plan planned nothing; see its log"
    with refused(GateClosed, missing=(why_no_build(task_context()),)):
        CheckCompletenessOperator(task_id="gate").execute(task_context())
    with pytest.raises(AirflowSkipException):
        AskApprovalOperator(task_id="ask", batches=None).execute(task_context())


def test_a_gate_that_was_marked_by_hand_tells_nobody_of_a_build() -> None:
    announce = AnnounceBuildOperator(task_id="announce", night=NIGHT, passed=None, linked={"links": {}})
    with pytest.raises(AirflowSkipException):
        announce.execute(task_context())


def test_the_task_that_finds_a_build_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> None:
        raise AirflowFailException(MISSING)

    monkeypatch.setattr(BuildSensor, "site", unknown)
    for way in (lambda one, it: one.execute(it), lambda one, it: one.found(it, {"error": "gone"})):
        xcoms: dict[tuple[str, str], Any] = {}
        with pytest.raises(AirflowFailException):
            way(BuildSensor(task_id=FIND_BUILD, slot="main"), task_context(xcoms=xcoms))
        assert xcoms
