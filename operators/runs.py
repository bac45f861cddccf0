"""Start a run of a DAG, once, whoever asks and how often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from airflow.sdk.exceptions import DagRunTriggerException


def start_once(dag_id: str, run_id: str, *, conf: Mapping[str, Any], note: str) -> NoReturn:
    """End the task that calls this by having Airflow start the run; skipped if a run of that id is there already.

    Nobody waits for the run. `note`: what people read on its page.
    """
    raise DagRunTriggerException(
        trigger_dag_id=dag_id,
        dag_run_id=run_id,
        conf=dict(conf),
        reset_dag_run=False,
        skip_when_already_exists=True,
        wait_for_completion=False,
        allowed_states=[],
        failed_states=[],
        poke_interval=0,
        deferrable=False,
        note=note,
    )
