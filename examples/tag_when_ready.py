"""Wait for an object that says that something is ready, then give the newest content of a repository a name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from operators.cvmfs import CvmfsTagOperator
from operators.objects import ObjectDeleteOperator
from sensors.cvmfs import CvmfsRevisionSensor
from sensors.objects import ObjectSensor

with DAG(
    dag_id="tag_when_ready",
    description="Tag a repository once an object is in a store",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["example", "cvmfs", "objects"],
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30), "execution_timeout": timedelta(hours=7)},
    params={
        "fqrn": Param("nightlies.example.org", type="string", description="The repository."),
        "store": Param("builds", type="string", description="A store of the configuration."),
        "key": Param("ready/now", type="string", description="The object to wait for; it is deleted in the end."),
        "tag": Param(type="string", pattern="^[A-Za-z0-9][A-Za-z0-9._+-]*$", description="The tag."),
    },
) as dag:
    ready = ObjectSensor(task_id="ready", store="{{ params.store }}", key="{{ params.key }}", timeout=6 * 3600)
    tag = CvmfsTagOperator(
        task_id="tag", fqrn="{{ params.fqrn }}", tag="{{ params.tag }}", message="{{ params.key }} is there"
    )
    visible = CvmfsRevisionSensor(
        task_id="visible", fqrn="{{ params.fqrn }}", tag="{{ params.tag }}", timeout=600, poke_interval=5
    )
    clean = ObjectDeleteOperator(task_id="clean", store="{{ params.store }}", keys="{{ params.key }}")
    ready >> tag >> visible >> clean
