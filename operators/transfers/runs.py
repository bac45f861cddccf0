"""Delete old runs of DAGs that run every minute: Airflow itself keeps every run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from operators.base import NightshiftOperator, clock, log_folder
from operators.transfers.passes import require_no_backfill

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from include.airflow_api import AirflowApi

MOST = 2000
"""Runs of one DAG that are deleted at a time: more than a day has."""
FAILED_STAY = 7
"""How much longer failed runs stay."""


class DeleteOldRunsOperator(NightshiftOperator):
    """Deletes scheduled runs that have ended, by Airflow's REST API, and their logs where they are on this machine.

    The user of the connection `stageout.runs_connection` needs the right to delete runs; skipped without it. Returns
    how many went, by DAG.

    Args:
        dag_ids: The DAGs.
        **kwargs: Those of every operator.
    """

    ui_color = "#fee2e2"

    def __init__(self, *, dag_ids: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dag_ids = dag_ids

    def execute(self, context: Context) -> dict[str, int]:
        from include.airflow_api import site_api

        require_no_backfill(context)
        site = self.site()
        settings = site.settings.stageout
        if settings.runs_connection is None:
            raise AirflowSkipException("no `stageout.runs_connection` in the configuration: old runs stay")
        api = site_api(site.settings, site.secrets, settings.runs_connection)
        keep, logs = timedelta(hours=settings.keep_run_hours), log_folder()
        gone = {}
        for dag_id in self.dag_ids:
            gone[dag_id] = self._delete(api, dag_id, "success", keep, logs)
            gone[dag_id] += self._delete(api, dag_id, "failed", FAILED_STAY * keep, logs)
            self.log.info("%s: %d runs deleted", dag_id, gone[dag_id])
        return gone

    def _delete(self, api: AirflowApi, dag_id: str, state: str, keep: timedelta, logs: Path) -> int:
        gone = 0
        while gone < MOST:
            runs = api.old_runs(dag_id, state=state, before=clock() - keep)
            for run_id in runs:
                api.delete_run(dag_id, run_id)
                folder = logs / f"dag_id={dag_id}" / f"run_id={run_id}"
                # an id is no path: one with slashes would lead elsewhere
                if folder.parent == logs / f"dag_id={dag_id}":
                    shutil.rmtree(folder, ignore_errors=True)
            gone += len(runs)
            if not runs:
                break
        return gone
