"""`night_watch`: alerts while the nights run, and a summary of each in the morning.

The file only declares.
"""

from datetime import timedelta

from airflow.sdk import DAG

from include.settings.load import load
from operators.operations import WatchNightsOperator
from operators.publishing import dag_defaults

DOC = """
### Watch the nights

| message | when |
|---|---|
| an artifact failed | a pass of a night is done with it: within minutes, not at the night's end |
| a run failed | and no artifact of it did, such as a pass that could not be planned |
| any other run failed | at once, by its DAG itself: by hand, backfill, publication, undo, care, `leases`; this DAG repeats what could not be sent |
| a night did not start | `notify.late_minutes` after its schedule there is no run, or one that is only queued |
| a deadline was missed | the slot's `cutoff` passed, and something that is required is missing |
| a whitelist ends | in less than `notify.whitelist_days`, or it has |
| a disk is nearly full | less than 2 GiB are free where logs, ledger, state, spool or a store are written |
| a lease is stuck | it has been held for `notify.stuck_lease_minutes` |

Each cause once within `notify.window_hours`, with a hint, by the services of `notify:`; the ledger has all.
Artifacts that failed in the same way are one message, with their reasons, what was skipped because of them, and links
to the logs. A store or gateway that does not respond is one cause for all that it hits; an artifact that fails later by
its own fault comes in a separate message. The summary shows what a later pass repaired.
A skipped or paused schedule is silent in Airflow: this DAG compares each slot's schedule with the runs that there are.
It watches nothing while the scheduler is down: check `/api/v2/monitor/health` from outside.

At a slot's `summary_at` the night's summary is made from the ledger, sent, and kept below `summaries/` of `paths.var`
as HTML, text and JSON. The same at any time: `nightshift nightly summary --date YYYY-MM-DD`.
"""  # noqa: E501 - a row of a table is one line

if load().slots:
    with DAG(
        dag_id="night_watch",
        dag_display_name="Night watch",
        description="Send alerts and summaries of the nights",
        doc_md=DOC,
        max_active_runs=1,
        dagrun_timeout=timedelta(minutes=30),
        **dag_defaults("*/5 * * * *", retries=1, priority=50, execution_timeout=timedelta(minutes=10)),
        tags=["nightlies", "care"],
    ) as night_watch:
        WatchNightsOperator(
            task_id="watch",
            task_display_name="Watch the nights",
            doc_md="Checks all slots and repositories once, and sends what is new.",
        )
