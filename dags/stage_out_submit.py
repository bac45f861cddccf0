"""`stage_out_submit`: new transfers become FTS jobs, a pass every minute. The file only declares."""

from __future__ import annotations

from airflow.sdk import DAG

from include.settings.load import load
from operators.stageout import dag_settings, passes

DOC = """
### Submit transfers

Each run is one pass: it takes new transfers from the ledger, fair among users, and submits them to FTS as jobs of at
most `stageout.files_per_job` files. It ends when nothing is due, or after 50 seconds. What waits is a
state in the ledger and never a task: for a free link, a banned storage, a retry, a credential.

| what happens | what follows |
|---|---|
| a task or its worker dies | what it had claimed is due again after three minutes; nothing is lost or doubled |
| FTS does not answer | its transfers stay due; other servers are served |
| a reply is lost | the job is looked for by its id before anything is sent again |
| the run is late, or was skipped | the next one takes what is due |
| a run of a backfill | refused: a pass takes what is due now, whatever its date |

The tasks of a run (`stageout.shards`) share the work by claims. All run in the pool `stageout`, after tasks of nights.
The DAG is paused until it is unpaused; old runs are deleted by `stage_out_census`. More: docs/stage-out.md.
"""

_site = load()
if _site.sites:
    with DAG(
        dag_id="stage_out_submit",
        dag_display_name="Stage-out: submit",
        description="Submit new transfers to FTS",
        doc_md=DOC,
        **dag_settings("* * * * *"),
    ) as stage_out_submit:
        passes(
            _site,
            ["submit"],
            task_id="submit",
            task_display_name="Submit to FTS",
            doc_md="Makes FTS jobs of new transfers, and settles submissions whose reply was lost.",
        )
