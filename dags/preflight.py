"""`preflight`: an hour before the first slot, whether a night could run; everything that is wrong at once.

The file only declares.
"""

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param

from include.settings.load import load
from include.settings.scheduling import hour_before_first
from operators.operations import RunPreflightOperator
from operators.publishing import dag_defaults

DOC = """
### Could a night run now?

| check | an error if | a warning if |
|---|---|---|
| connections | one that is named is not defined | |
| ledger | it does not answer, or is of a newer version | |
| stores | one does not answer; a role cannot put, get or delete a probe | racing writers were never tried there |
| clocks | a store's or gateway's is 5 minutes off ours | it is 5 s off |
| disks of `var`, task logs, ledger, gateway state, spool and stores in folders | less than 2 GiB are free on one | less than a tenth is |
| gateways | one is away, does not serve the repository, or refuses our key | it gives out no leases |
| leases | | one is open |
| repositories | readers cannot read or trust it; the whitelist ends within a day | readers see an older revision than the store has; the whitelist ends soon; it is frozen |
| publisher nodes | we cannot log in | |
| pools | one is missing | one is smaller than meant, or Airflow cannot be asked |
| DAGs | | one that has to run by itself is paused: a slot's, `night_watch`, `leases`, `preflight`, `repository_care`, `nightly_gc`; or one that is started by hand, such as `intervene` |

All findings come at once, each with a hint; an error fails the run and sends a notification as in `notify:`. The same by
hand: `nightshift preflight`.
"""  # noqa: E501 - a row of a table is one line

_site = load()
if _site.slots:
    slots = sorted(_site.slots)
    when = hour_before_first(_site.slots.values())
    with DAG(
        dag_id="preflight",
        dag_display_name="Preflight",
        description="Check before the nights whether they can run",
        doc_md=DOC,
        max_active_runs=1,
        dagrun_timeout=timedelta(minutes=30),
        **dag_defaults(
            CronTriggerTimetable(when[0], timezone=when[1]) if when else None,
            retries=1,
            priority=50,
            execution_timeout=timedelta(minutes=10),
        ),
        params={
            "slot": Param(
                None,
                title="Slot",
                type=["null", "string"],
                enum=[None, *slots],
                description="Only what this slot needs. Empty: all.",
            )
        },
        tags=["nightlies", "care"],
    ) as preflight:
        RunPreflightOperator(
            task_id="look",
            task_display_name="Check what a night needs",
            doc_md="Checks everything that a night needs, side by side.",
        )
