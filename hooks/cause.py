"""Reasons of failed runs: the first tasks leave the reason of their failure for the tasks that run in any case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException

FIND_BUILD, CHECK_INDEX, PLAN = "find_build", "check_index", "plan"
"""The tasks that find, judge and plan what a run publishes, in every DAG that has them."""
REASON = "reason"
"""The key under which they leave why they failed; Airflow takes it away when the task is tried again."""

MOST = 4000
"""Characters of a reason."""


@contextmanager
def reason_kept(context: Context) -> Iterator[None]:
    """Leave the reason of a failure of what is done within, and let it go on."""
    try:
        yield
    except AirflowSkipException:
        raise
    except Exception as error:
        context["ti"].xcom_push(key=REASON, value=str(error)[:MOST])
        raise


def first_cause(context: Context) -> str | None:
    """Return the first task of the run that failed, and why; None if none left a reason."""
    for task in (FIND_BUILD, CHECK_INDEX, PLAN):
        reason = context["ti"].xcom_pull(task_ids=task, key=REASON)
        if reason:
            return f"task {task} failed: {reason}"
    return None


def why_no_build(context: Context) -> str:
    """Return the reason why there is no night to work on."""
    return first_cause(context) or f"task {FIND_BUILD} found no build; see its log"


def why_no_plan(context: Context) -> str:
    """Return the reason why there is nothing to work on."""
    return first_cause(context) or f"task {PLAN} planned nothing; see its log"
