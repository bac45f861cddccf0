"""Remove every day the folder of a day that is long past; `day` and `keep_days` say which."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from operators.cvmfs import CvmfsRemoveOperator
from sensors.cvmfs import CvmfsPathSensor

OLD = "{{ params.folder }}/{{ macros.ds_add(params.day or ds, -params.keep_days) }}"

with DAG(
    dag_id="remove_old_folder",
    description="Remove the folder of a day that is long past",
    schedule="0 4 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["example", "cvmfs"],
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30), "execution_timeout": timedelta(hours=1)},
    params={
        "fqrn": Param("nightlies.example.org", type="string", description="The repository."),
        "folder": Param("/daily", type="string", pattern="^/.+", description="Has a folder YYYY-MM-DD for each day."),
        "keep_days": Param(30, type="integer", minimum=1, description="For how many days a folder stays."),
        "day": Param(
            None, type=["null", "string"], format="date",
            description="Counted from this day; empty: from the run's logical date.",
        ),
    },
) as dag:  # fmt: skip
    remove = CvmfsRemoveOperator(task_id="remove", fqrn="{{ params.fqrn }}", paths=OLD)
    gone = CvmfsPathSensor(
        task_id="gone", fqrn="{{ params.fqrn }}", path=OLD, absent=True, timeout=600, poke_interval=5
    )
    remove >> gone
