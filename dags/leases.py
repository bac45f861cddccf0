"""`leases`: whose the leases on every gateway are, and the end of those of our own tasks that are dead.

The file only declares.
"""

from datetime import timedelta

from airflow.sdk import DAG, Asset

from include.settings.load import load
from operators.operations import EndLeasesOperator, ListLeasesOperator
from operators.params import flag
from operators.publishing import dag_defaults

DOC = """
### Leases that were left behind

A task that is killed may leave its lease at the gateway, where it blocks the path until it expires.

| lease | action |
|---|---|
| of a task of ours that is dead (ended, failed, or waiting for its next try) | ended |
| of a task of ours that runs, waits or is about to | nothing, ever |
| taken with our key, but by no task that this Airflow knows | reported |
| of another program | reported, with key, holder and time |

The lease's holder identifies the task, `<DAG>/<run>/<task>[<index>] try <n>`; the task's state is read from Airflow. A
lease is ended by its path, with the administrator's key of the connection `gateway_admin` of the repository, only if
no other lease would end with it, and only if it still is the one that was checked. `dry_run` only lists them.

The run is green and the task `end` skipped when nothing was ended; it fails when a gateway did not answer, or when a
dead task's lease could not be ended because there is no administrator's key.
"""

ENDED = Asset(name="leases_ended", uri="nightshift://leases/ended", group="cvmfs")

if load().repositories:
    with DAG(
        dag_id="leases",
        dag_display_name="Stale leases",
        description="Release stale leases of dead tasks; report all others",
        doc_md=DOC,
        max_active_runs=1,
        dagrun_timeout=timedelta(minutes=30),
        **dag_defaults("*/15 * * * *", retries=1, priority=50, execution_timeout=timedelta(minutes=5)),
        params={"dry_run": flag("Dry run", "Report which leases would be ended; change nothing.")},
        tags=["cvmfs", "gateway"],
    ) as leases:
        looked = ListLeasesOperator(
            task_id="look",
            task_display_name="List leases",
            doc_md="Lists the leases of every repository's gateway with their holders.",
        )
        EndLeasesOperator(
            task_id="end",
            task_display_name="End stale leases",
            looked=looked.output,
            outlets=[ENDED],
            doc_md="Ends those of our own dead tasks, each checked again right before.",
        )
