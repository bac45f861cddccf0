"""Publish a tarball into a repository, under a lease that lasts a moment, and wait until readers get it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from operators.cvmfs import CvmfsPublishTreeOperator
from sensors.cvmfs import CvmfsPathSensor

with DAG(
    dag_id="publish_tarball",
    description="Publish a tarball to a repository",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    tags=["example", "cvmfs"],
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30), "execution_timeout": timedelta(hours=2)},
    params={
        "fqrn": Param("nightlies.example.org", type="string", description="The repository."),
        "path": Param(type="string", pattern="^/.+", description="The destination, such as /software/tool/1.0."),
        "source": Param(type="string", description="URL or absolute path of a tarball, zip or folder."),
    },
) as dag:
    publish = CvmfsPublishTreeOperator(
        task_id="publish", fqrn="{{ params.fqrn }}", path="{{ params.path }}", source="{{ params.source }}"
    )
    visible = CvmfsPathSensor(
        task_id="visible", fqrn="{{ params.fqrn }}", path="{{ params.path }}", timeout=600, poke_interval=5
    )
    publish >> visible
