"""`stage_out_analytics`: daily figures of transfers. The file only declares."""

from __future__ import annotations

from airflow.sdk import DAG

from include.settings.load import load
from operators.stageout import SummariseTransfersOperator, dag_settings

DOC = """
### Figures of transfers

`archive` of `stage_out_finish` counts each transfer once, when it is archived: by day, user, workflow, link, outcome
and class of failure, with volumes and latencies. `summarise` adds up the last day whose complete transfers are all
archived, and logs its links; the task returns the figures. They are kept; `nightshift stageout export` writes all of
them as CSV.
"""

_site = load()
if _site.sites:
    with DAG(
        dag_id="stage_out_analytics",
        dag_display_name="Stage-out: analytics",
        description="Add up the figures of transfers",
        doc_md=DOC,
        **dag_settings("41 3 * * *", params={}),
    ) as stage_out_analytics:
        SummariseTransfersOperator(
            task_id="summarise",
            task_display_name="Add up figures",
            doc_md="Adds up the last day whose complete transfers are archived.",
        )
