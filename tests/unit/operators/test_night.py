"""Runs of a night that judge its build."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from hooks.task import PLAN
from include.nightlies.steps.values import Night
from operators.night import CheckBuildOperator
from tests.fakes.taskcontext import task_context

NIGHT = Night("night/run-1", "main", date(2026, 11, 21), "why")


@pytest.mark.parametrize(
    ("night", "planned", "says"),
    [
        (replace(NIGHT, dry_run=True), True, "dry run"),
        (replace(NIGHT, last=False), True, "the night's last pass judges the build"),
        (NIGHT, False, "nothing was planned"),
    ],
)
def test_a_build_is_judged_once_it_was_planned_by_the_last_pass_and_in_no_dry_run(
    night: Night, planned: bool, says: str
) -> None:
    xcoms = {(PLAN, "return_value"): []} if planned else {}
    with pytest.raises(AirflowSkipException) as skipped:
        CheckBuildOperator(task_id="check_build", night=night.to_json()).execute(task_context(xcoms=xcoms))
    assert says in str(skipped.value)
