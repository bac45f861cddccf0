"""`stage_out_census`: finds what is stuck, every hour, and deletes old runs. The file only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from include.settings.load import load
from operators.params import flag
from operators.stageout import DeleteOldRunsOperator, TakeCensusOperator, dag_settings

DOC = """
### Census of transfers

`census` compares the ledger with FTS and with the storages, and finds what is stuck: transfers that are in one state
for too long, jobs that FTS does not know, claims that are over. It makes due again what is safe, and names the rest on
the page *Transfers*. Files in temporary areas that no transfer names are reported when they are older than
`stageout.unknown_days`, and deleted only at sites with `clean_unknown: true`.

`delete_runs` deletes runs of the DAGs that run every few minutes, with their logs: successful ones after
`stageout.keep_run_hours`, failed ones after seven times as long. It needs `stageout.runs_connection`, a user of
Airflow's API who may delete runs, and is skipped without it. More: docs/stage-out.md.
"""

_site = load()
if _site.sites:
    with DAG(
        dag_id="stage_out_census",
        dag_display_name="Stage-out: census",
        description="Find stuck transfers and unknown files; delete old runs",
        doc_md=DOC,
        **dag_settings("17 * * * *", params={"dry_run": flag("Dry run", "Report unknown files; delete none.")}),
    ) as stage_out_census:
        TakeCensusOperator(
            task_id="census",
            task_display_name="Find what is stuck",
            execution_timeout=timedelta(minutes=50),
            doc_md="Compares ledger, FTS and storages; makes due again what is safe, and names the rest.",
        )
        DeleteOldRunsOperator(
            dag_ids=["stage_out_submit", "stage_out_monitor", "stage_out_read_back", "stage_out_finish"],
            task_id="delete_runs",
            task_display_name="Delete old runs",
            doc_md="Deletes old runs of the DAGs that run every minute, and their logs.",
        )
