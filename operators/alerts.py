"""Callbacks of every DAG: keep why a task failed, and send an alert for each run that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hooks.site import OnSite, run_name
from operators.base import clock
from operators.watch import log_of

if TYPE_CHECKING:
    from airflow.sdk import Context

BY_HAND = {"manual", "backfill"}
"""Types of runs that a person starts."""


def note_failure(context: Context) -> None:
    """Keep why a task failed. Airflow calls this in the task's process when no try is left."""
    from include.care.watch.runs import Fault, note_fault

    error, ti = context.get("exception"), context["ti"]
    task = ti.task_id if ti.map_index is None or ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
    if isinstance(error, BaseException):
        subject = getattr(error, "repository", None) or getattr(error, "fqrn", None)
        fault = Fault.of(ti.task_id, error, f"{task}: {error}", subject)
    else:
        fault = Fault(ti.task_id, "", f"{task}: {error or 'it ended without an error of its own'}")
    note_fault(OnSite().site(), run_name(context), fault, now=clock())


def alert_failed_run(context: Context) -> None:
    """Send a message for each cause of a failed run. Airflow calls this in the DAG processor, once for each failure."""
    from include.care.watch.runs import FailedRun, tell_failed_run

    run: Any = context.get("dag_run")
    began = str(getattr(run.run_type, "value", run.run_type)) if run is not None else ""
    ti: Any = context.get("ti")
    failed = FailedRun(
        dag_id=context["dag"].dag_id,
        run_id=str(context["run_id"]),
        by_itself=began not in BY_HAND or str(context["run_id"]).startswith("night__"),
        reason=str(context.get("reason") or ""),
        task=ti.task_id if ti is not None else None,
    )
    tell_failed_run(OnSite().site(), failed, now=clock(), log_of=log_of)
