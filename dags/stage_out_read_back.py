"""`stage_out_read_back`: reads large copies whose sites report no checksum. The file only declares."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from include.settings.load import load
from operators.stageout import StageoutPassOperator, dag_settings

DOC = """
### Read large copies

Where a site reports no checksum (`checksum: read-back`), a copy is read, and its checksum computed here. The reporter
of `stage_out_monitor` reads what has 64 MiB at most, and leaves the rest to this DAG. A task reads up to 16 files,
eight at the same time, and may take `stageout.read_back_hours`; `stageout.shards` runs are at work at a time. What was
read is recorded at once.

A task that is killed loses no transfer: what it had claimed is due again after three minutes, and is read from the
beginning. A run of a backfill is refused. More: docs/stage-out.md.
"""

_site = load()
if _site.sites:
    _hours = timedelta(hours=_site.stageout.read_back_hours)
    with DAG(
        dag_id="stage_out_read_back",
        dag_display_name="Stage-out: read back",
        description="Verify large copies by reading them, where sites report no checksum",
        doc_md=DOC,
        **{**dag_settings("*/10 * * * *", longest=_hours), "max_active_runs": _site.stageout.shards},
    ) as stage_out_read_back:
        StageoutPassOperator(
            components=["read_back"],
            task_id="read",
            task_display_name="Read and verify",
            doc_md="Reads large copies at their destinations, and compares their checksums.",
        )
