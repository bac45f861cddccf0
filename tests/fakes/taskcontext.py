"""What Airflow hands to an operator, as far as ours look at it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from airflow.sdk.api.datamodels._generated import DagRunType


def task_context(
    *,
    try_number: int = 1,
    max_tries: int = 2,
    map_index: int = -1,
    logical_date: datetime | None = None,
    partition_key: str | None = None,
    run_type: str = "manual",
    xcoms: dict[tuple[str, str], Any] | None = None,
    **params: Any,
) -> Any:
    """A context of the DAG `night`, run `run-1`, task `publish`. `xcoms`: what tasks left, by task and key."""
    left = {} if xcoms is None else xcoms
    ti = SimpleNamespace(
        dag_id="night",
        run_id="run-1",
        task_id="publish",
        map_index=map_index,
        try_number=try_number,
        max_tries=max_tries,
        xcom_pull=lambda *, task_ids, key="return_value": left.get((task_ids, key)),
        xcom_push=lambda *, key, value: left.update({("publish", key): value}),
    )
    kind = DagRunType(run_type)  # in a task it is this enumeration, whose text is not its value
    run = SimpleNamespace(logical_date=logical_date, partition_key=partition_key, run_type=kind, run_id="run-1",
                          run_after=logical_date or datetime(2026, 11, 21, 2, 5, tzinfo=UTC))  # fmt: skip
    return {
        "ti": ti,
        "dag": SimpleNamespace(dag_id="night"),
        "run_id": "run-1",
        "dag_run": run,
        "params": params,
        "outlet_events": {},
    }
