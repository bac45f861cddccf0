"""What every operator of Nightshift has: the site's connections, and its try as the steps know it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from hooks.retry import RetryByKind
from hooks.site import OnSite, run_name
from triggers.outage import OutlastsOutages

if TYPE_CHECKING:
    from airflow.sdk import Context

    from include.nightlies.attempt import Attempt, OnLease
    from include.nightlies.steps.values import Batch


class NightshiftOperator(OutlastsOutages, OnSite, BaseOperator):
    """An operator around steps of `include/`; retries by the kind of the error (`hooks.retry.RetryByKind`).

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
    """What others see as the holder of a lease: DAG, run, task, map index and try (docs/formats.md, holders of leases).

    Args:
        context: The context of the task.
        task_id: Another task of the run, which gives the lease back; None: the task itself.

    Returns:
        `<dag>/<run>/<task>[<index>] try <n>`.
    """
    from include.gateway.protocol import TaskName

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
    from include.nightlies.attempt import Attempt

    number, last = context["ti"].try_number, not tries_left(context)
    return Attempt(run_name(context), holder_name(context), number, clock, last, outlast, on_lease)


def log_folder() -> Path:
    """Where Airflow keeps the logs of tasks."""
    from airflow.sdk import conf

    return Path(conf.get("logging", "base_log_folder"))


def tries_left(context: Context) -> bool:
    """Whether a failure of this try would be followed by another one."""
    ti = context["ti"]
    return bool(ti.try_number <= (ti.max_tries or 0))


def batches_of(value: Sequence[dict[str, Any]] | dict[str, Any] | None) -> list[Batch]:
    """The batches that a plan handed on; none where the plan did not end."""
    from include.nightlies.steps.values import Batch

    if value is None:
        return []
    return [Batch.from_json(batch) for batch in ([value] if isinstance(value, dict) else value)]
