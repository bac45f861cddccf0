"""The DAGs of stage-out: passes of its components every minute, a census, daily figures. The file only declares."""

from datetime import timedelta

from airflow.sdk import DAG

from include.settings.load import load
from operators.params import flag
from operators.stageout import (
    DeleteOldRunsOperator,
    RemindUsersOperator,
    StageoutPassOperator,
    SummariseTransfersOperator,
    TakeCensusOperator,
    dag_settings,
    passes,
)

SUBMIT = """
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

MONITOR = """
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

READ_BACK = """
### Read large copies

Where a site reports no checksum (`checksum: read-back`), a copy is read, and its checksum computed here. The reporter
of `stage_out_monitor` reads what has 64 MiB at most, and leaves the rest to this DAG. A task reads up to 16 files,
eight at the same time, and may take `stageout.read_back_hours`; `stageout.shards` runs are at work at a time. What was
read is recorded at once.

A task that is killed loses no transfer: what it had claimed is due again after three minutes, and is read from the
beginning. A run of a backfill is refused. More: docs/stage-out.md.
"""

FINISH = """
### Finish transfers

Each run is one pass, in which three components take turns until nothing is due or 50 seconds are over:

| component | what it does |
|---|---|
| `register` | puts verified files into blocks of their data set, and registers closed blocks in the catalogue |
| `clean` | removes the source of a file: after its verified copy and, where it has a data set, its registration |
| `archive` | moves what ended long ago out of the tables of transfers that have not |

Sources are removed only below the temporary area of a site with `clean: true`, in the folder of the file's user.
Sources of failed transfers stay until they cannot be resubmitted any more.

A task that is killed loses and doubles nothing: what it had claimed is due again after three minutes. A run of a
backfill is refused. The tasks of a run (`stageout.shards`) share the work by claims. More: docs/stage-out.md.
"""

CENSUS = """
### Census of transfers

`census` compares the ledger with FTS and with the storages, and finds what is stuck: transfers that are in one state
for too long, jobs that FTS does not know, claims that are over. It makes due again what is safe, and names the rest on
the page *Transfers*. Files in temporary areas that no transfer names are reported when they are older than
`stageout.unknown_days`, and deleted only at sites with `clean_unknown: true`.

`delete_runs` deletes runs of the DAGs that run every few minutes, with their logs: successful ones after
`stageout.keep_run_hours`, failed ones after seven times as long. It needs `stageout.runs_connection`, a user of
Airflow's API who may delete runs, and is skipped without it. More: docs/stage-out.md.
"""

ANALYTICS = """
### Figures of transfers

`archive` of `stage_out_finish` counts each transfer once, when it is archived: by day, user, workflow, link, outcome
and class of failure, with volumes and latencies. `summarise` adds up the last day whose complete transfers are all
archived, and logs its links; the task returns the figures. They are kept; `nightshift stageout export` writes all of
them as CSV.
"""

_site = load()
if _site.sites:
    with DAG(
        dag_id="stage_out_submit",
        dag_display_name="Stage-out: submit",
        description="Submit new transfers to FTS",
        doc_md=SUBMIT,
        **dag_settings("* * * * *"),
    ) as stage_out_submit:
        passes(
            _site,
            ["submit"],
            task_id="submit",
            task_display_name="Submit to FTS",
            doc_md="Makes FTS jobs of new transfers, and settles submissions whose reply was lost.",
        )

    with DAG(
        dag_id="stage_out_monitor",
        dag_display_name="Stage-out: monitor",
        description="Follow transfers at FTS, verify their copies, and retry",
        doc_md=MONITOR,
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

    _hours = timedelta(hours=_site.stageout.read_back_hours)
    with DAG(
        dag_id="stage_out_read_back",
        dag_display_name="Stage-out: read back",
        description="Verify large copies by reading them, where sites report no checksum",
        doc_md=READ_BACK,
        **{**dag_settings("*/10 * * * *", longest=_hours), "max_active_runs": _site.stageout.shards},
    ) as stage_out_read_back:
        StageoutPassOperator(
            components=["read_back"],
            task_id="read",
            task_display_name="Read and verify",
            doc_md="Reads large copies at their destinations, and compares their checksums.",
        )

    with DAG(
        dag_id="stage_out_finish",
        dag_display_name="Stage-out: finish",
        description="Register verified files, remove their sources, archive",
        doc_md=FINISH,
        **dag_settings("* * * * *"),
    ) as stage_out_finish:
        passes(
            _site,
            ["register", "clean", "archive"],
            task_id="finish",
            task_display_name="Register, clean, archive",
            doc_md="Registers blocks of verified files, removes temporary sources, and archives what ended.",
        )

    with DAG(
        dag_id="stage_out_census",
        dag_display_name="Stage-out: census",
        description="Find stuck transfers and unknown files; delete old runs",
        doc_md=CENSUS,
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

    with DAG(
        dag_id="stage_out_analytics",
        dag_display_name="Stage-out: analytics",
        description="Add up the figures of transfers",
        doc_md=ANALYTICS,
        **dag_settings("41 3 * * *", params={}),
    ) as stage_out_analytics:
        SummariseTransfersOperator(
            task_id="summarise",
            task_display_name="Add up figures",
            doc_md="Adds up the last day whose complete transfers are archived.",
        )
