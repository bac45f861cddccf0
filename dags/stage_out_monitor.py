"""`stage_out_monitor`: what became of transfers at FTS, a pass every minute. The file only declares."""

from __future__ import annotations

from airflow.sdk import DAG

from include.settings.load import load
from operators.stageout import RemindUsersOperator, dag_settings, passes

DOC = """
### Follow transfers

Each run is one pass, in which three components take turns until nothing is due or 50 seconds are over:

| component | what it does |
|---|---|
| `monitor` | asks FTS for the files of up to 100 jobs at once, and reacts to each file long before its job ends |
| `report` | compares size and checksum of each copy at its destination; only then it is done |
| `retry` | makes transfers new again when their wait is over, or the credential is there that they wait for |

Users whose transfers need a credential are named in a message by `notify:`, once within its window.

A task that is killed loses and doubles nothing: what it had claimed is due again after three minutes. A run of a
backfill is refused. The tasks of a run (`stageout.shards`) share the work by claims. More: docs/stage-out.md.
"""

_site = load()
if _site.sites:
    with DAG(
        dag_id="stage_out_monitor",
        dag_display_name="Stage-out: monitor",
        description="Follow transfers at FTS, verify their copies, and retry",
        doc_md=DOC,
        **dag_settings("* * * * *"),
    ) as stage_out_monitor:
        passes(
            _site,
            ["monitor", "report", "retry"],
            task_id="follow",
            task_display_name="Monitor, verify, retry",
            doc_md="Asks FTS for jobs, compares copies with what was declared, and tries failed transfers again.",
        )
        RemindUsersOperator(
            task_id="remind",
            task_display_name="Name missing credentials",
            doc_md="Sends a message for each user whose transfers wait for a credential.",
        )
