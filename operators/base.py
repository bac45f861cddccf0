"""The base of every operator: the site's connections, and its try as the steps know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperator, Context, conf

from hooks.task import OnSite, RetryByKind, run_name
from include.gateway.protocol import TaskName
from include.nightlies.steps.values import Batch
from triggers.poll import OutlastsOutages

if TYPE_CHECKING:
    from include.nightlies.steps.values import Attempt, OnLease


def airflow_url() -> str:
    """Return the address of Airflow's pages, without a slash at the end."""
    return str(conf.get("api", "base_url", fallback="http://localhost:8080")).rstrip("/")


def log_of(run: str) -> str:
    """The address of a run of the ledger in Airflow's pages."""
    dag_id, _, run_id = run.partition("/")
    return f"{airflow_url()}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def night_page_of(run: str) -> str:
    """The address of the page of a run's night."""
    return f"{airflow_url()}/nightshift/nights?{urlencode({'run': run})}"


BY_HAND = {"manual", "backfill"}
"""Types of runs that a person starts."""


def note_failure(context: Context) -> None:
    """Keep why a task failed. Airflow calls this in the task's process when no try is left."""
    from include.monitoring.watch import TaskFault, note_fault

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
    from include.monitoring.watch import FailedRun, tell_failed_run

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
    from include.notify import Message, Notifier, NotifyEvent

    run = context["dag_run"]
    dag_id, run_id = str(run["dag_id"]), str(run["dag_run_id"])
    text = f"Run {run_id} of {dag_id} was queued {hours:g} hours ago and is not over."
    cure = "Check which of its tasks runs or waits, and for what; see its log."
    message = Message(
        f"run-late:{dag_id}:{run_id}", NotifyEvent.DEADLINE, "warning", f"{dag_id} takes longer than {hours:g} hours",
        text, cure, {"run": log_of(f"{dag_id}/{run_id}")},
    )  # fmt: skip
    Notifier.of(OnSite().site()).tell(message, now=clock())


class NightshiftOperator(OutlastsOutages, OnSite, BaseOperator):
    """An operator around steps of `include/`; retries by the kind of the error (`hooks.task.RetryByKind`).

    Args:
        **kwargs: Those of every operator.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByKind())
        super().__init__(**kwargs)


def clock() -> datetime:
    """The time that the steps record."""
    return datetime.now(UTC)


def holder_name(context: Context, task_id: str | None = None) -> str:
    """Return the name of a lease's holder: DAG, run, task, map index and try (docs/formats.md, holders of leases).

    Args:
        context: The context of the task.
        task_id: Another task of the run, which gives the lease back; None: the task itself.

    Returns:
        `<dag>/<run>/<task>[<index>] try <n>`.
    """
    ti = context["ti"]
    index = ti.map_index if ti.map_index is not None else -1
    return TaskName(ti.dag_id, ti.run_id, task_id or ti.task_id, index, 1 if task_id else ti.try_number).format()


def attempt_of(context: Context, *, outlast: bool = False, on_lease: OnLease | None = None) -> Attempt:
    """The try that runs now, for the steps.

    Args:
        context: The context of the task.
        outlast: Whether the operator waits out an outage, of which the steps then record nothing.
        on_lease: Called with each lease that a step takes; see `Attempt`.

    Returns:
        The try, as steps record it.
    """
    from include.nightlies.steps.values import Attempt

    number, last = context["ti"].try_number, not tries_left(context)
    user = started_by(context)
    by = f"{user}@airflow" if user else ""
    return Attempt(run_name(context), holder_name(context), number, clock, last, outlast, on_lease, by)


def started_by(context: Context) -> str:
    """Return the user who started the run, as Airflow names them; "" for a run of a schedule.

    Args:
        context: The context of the task.

    Returns:
        The name of the user.
    """
    return str(getattr(context["dag_run"], "triggering_user_name", None) or "")


def log_folder() -> Path:
    """Return the folder of the logs of tasks."""
    return Path(conf.get("logging", "base_log_folder"))


def tries_left(context: Context) -> bool:
    """Tell whether a failure of this try would be followed by another one."""
    ti = context["ti"]
    return bool(ti.try_number <= (ti.max_tries or 0))


def batches_of(value: Sequence[dict[str, Any]] | dict[str, Any] | None) -> list[Batch]:
    """The batches that a plan handed on; none where the plan did not end."""
    if value is None:
        return []
    return [Batch.from_json(batch) for batch in ([value] if isinstance(value, dict) else value)]
