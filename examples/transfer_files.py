"""Copy a small data set to another site by FTS, and wait until FTS has compared the copies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from operators.fts import FtsTransferOperator

with DAG(
    dag_id="transfer_files",
    description="Copy files between storages by FTS",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["example", "fts"],
    # a template becomes the list that the param is, not its text
    render_template_as_native_obj=True,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5), "execution_timeout": timedelta(hours=1)},
    params={
        "fts_conn_id": Param("fts_default", type="string", description="A connection of type `fts`."),
        "files": Param(
            type="array",
            minItems=1,
            maxItems=1000,
            description="Files: `source` and `destination` (URL, or site:/name), perhaps `size` and `checksum`.",
        ),
    },
) as dag:
    FtsTransferOperator(
        task_id="copy", fts_conn_id="{{ params.fts_conn_id }}", files="{{ params.files }}", timeout=6 * 3600
    )
