"""Callbacks of the DAGs: keep why a task failed, and send an alert for each run that failed or takes too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hooks.site import OnSite, run_name
from operators.base import clock
from operators.watch import log_of, night_page_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

BY_HAND = {"manual", "backfill"}
"""Types of runs that a person starts."""


def note_failure(context: Context) -> None:
    """Keep why a task failed. Airflow calls this in the task's process when no try is left."""
    from include.monitoring.runs import TaskFault, note_fault

    error, ti = context.get("exception"), context["ti"]
    task = ti.task_id if ti.map_index is None or ti.map_index < 0 else f"{ti.task_id}[{ti.map_index}]"
    if isinstance(error, BaseException):
        subject = getattr(error, "repository", None) or getattr(error, "fqrn", None)
        fault = TaskFault.of(ti.task_id, error, f"{task}: {error}", subject)
    else:
        fault = TaskFault(ti.task_id, "", f"{task}: {error or 'it ended without its own error'}")
    note_fault(OnSite().site(), run_name(context), fault, now=clock())


def alert_failed_run(context: Context) -> None:
    """Send a message for each cause of a failed run. Airflow calls this in the DAG processor, once for each failure."""
    from include.monitoring.runs import FailedRun, tell_failed_run

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
    tell_failed_run(OnSite().site(), failed, now=clock(), log_of=log_of, page_of=night_page_of)


def alert_late_run(context: Mapping[str, Any], hours: float) -> None:
    """Send a message for a run that is not over `hours` after it was queued. Airflow calls this by a deadline alert."""
    from include.notify.message import Message, NotifyEvent
    from include.notify.notifier import Notifier

    run = context["dag_run"]
    dag_id, run_id = str(run["dag_id"]), str(run["dag_run_id"])
    text = f"Run {run_id} of {dag_id} was queued {hours:g} hours ago and is not over."
    cure = "Check which of its tasks runs or waits, and for what; see its log."
    message = Message(
        f"run-late:{dag_id}:{run_id}", NotifyEvent.DEADLINE, "warning", f"{dag_id} takes longer than {hours:g} hours",
        text, cure, {"run": log_of(f"{dag_id}/{run_id}")},
    )  # fmt: skip
    Notifier.of(OnSite().site()).tell(message, now=clock())
