"""The nights: `nightly_install_<slot>` for every slot of the site configuration, and `nightly_install` by hand.

One body for all. The file only declares; what the tasks do is in `operators/` and `include/nightlies/steps/`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AssetAlias, CronTriggerTimetable, Param, TriggerRule, XComArg

from hooks.task import CHECK_INDEX
from include.nightlies.rules.passes import starts
from include.settings.load import load
from include.settings.model import SiteSettings, Slot
from operators.night import (
    INHERITED,
    AnnounceBuildOperator,
    CheckBuildOperator,
    CheckCompletenessOperator,
    CheckIndexOperator,
    PlanNightOperator,
    SetLinksOperator,
    StartNextPassOperator,
    slot_asset,
)
from operators.params import NAME_PATTERN, choice, choose_artifacts, flag
from operators.publishing import dag_defaults, publishing_tasks
from sensors.build import BuildSensor

DOC = """
### Install a nightly build and publish it

Finds the build of the run's date, and publishes each of its artifacts to {repository} as
{destination}.

| task | what it does |
|---|---|
| `find_build` | resolves the build date; a scheduled run waits until the index has something new, or is complete |
| `plan` | reads the index; settles what the repository holds already as *unchanged*; orders and batches the rest |
| `reserve` | one short commit: an empty nested catalog at every destination |
| `artifact` | for each batch: `prepare` without a lease, `publish` under its own; each artifact fails alone |
| `inherited` | for a partial build: takes what it does not list from the build that it names; no data is sent |
| `verify` | reads back through the public URL, with the public key only |
| `gate` | fails the run if anything required is missing, by name and reason; what is optional is only reported |
| `links` | points `latest` and the weekday to a complete build, and tags its revision; forward only |
| `announce` | emits the event of the slot's asset |
| `next_pass` | starts the run of the night's next pass, while the night is open |

Where the repository asks for approval, all of a pass is prepared first, then `ask` records one question and `approve`
waits for its answer (docs/operations.md, approval); nothing of it is in the repository before a yes. Without an answer
by the deadline, or after a no, it is *skipped* with that reason, and `gate` reports it.

Where the slot has `quality`, `check_index` judges the index before anything is published, and `check_build` the build
before links move (docs/quality.md). A suite that blocks fails its task, with what it found; `gate` repeats it, and
links stay. `accept_quality` with a reason lets the build pass all the same; the reason is recorded.

A night begins by the slot's schedule, with its first artifact (`night__<date>__first`), or with either, by `begins:` of
the slot. It stays open until its index is complete, or until the slot's `cutoff`. What the index lists is
published as it comes, by one pass after the other: each is a run, `night__<date>__<time>__pass<n>`, that takes what is
new. Only the last one takes all, also what failed before, and goes on through `links` and `announce`; in one before it,
`gate` fails if something required did that this pass took, and the night goes on all the same. Cleared, failed or
killed, a pass is done again and starts no second successor.

An artifact goes in after those that it depends on; if one of them fails, it is skipped, and the reason names it.
Links lead to later builds only, by build date and build id: no backfill, retry or cleared task moves one back. Why a
link stays is in the log of `gate` or `links`, and in the ledger.

The build date is the parameter `build_date`; else the run's partition key; else its logical date, or when it was
started if it has none, in {timezone}{offset}.
One that is later than today in the slot's time zone is refused unless `allow_future` is on. In a backfill `build_date`
is refused: each of its runs has its own date.
`without` lists artifacts that may be missing in this run: `gate` only reports them, and links move without them.
A second run of the same build publishes nothing and makes no revision. `dry_run` reports what would be published and
how much of it is stored already, and writes to no store, gateway or repository.
{backfill}"""

BACKFILL = """
Older dates:

    nightshift lab airflow backfill create --dag-id {dag_id} --from-date 2026-11-02 --to-date 2026-11-04T23:59

installs the builds of three dates, and with `--reprocess-behavior completed` checks them again. Both ends are
moments, in UTC unless they carry a zone: a bare `--to-date` is its midnight and may miss the run of that day. One
backfill at a time; Airflow calls one complete up to half a minute after its last run. `start` of the slot is the first
day that a run may have.
"""


def night_params(settings: SiteSettings, slot: Slot | None) -> dict[str, Param]:
    """The form of a night; with a slot of its own the slot is no question."""
    pairs: dict[str, Any] = {
        "type": ["array", "null"],
        "items": {"type": "string", "pattern": f"^{NAME_PATTERN}/{NAME_PATTERN}$"},
    }
    params = {
        "build_date": Param(
            None,
            title="Build date",
            type=["null", "string"],
            format="date",
            pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
            description="Build date. Empty: date of the run in the slot's time zone. Leave it empty in a backfill.",
        ),
        "allow_future": flag(
            "Allow a future date", "Install a build whose date is later than today in the slot's time zone."
        ),
        **choose_artifacts(
            "Only these projects. Empty: all of the slot.", "Only these platforms. Empty: all of the slot."
        ),
        "without": Param(
            None,
            title="Without",
            **pairs,
            maxItems=1000,
            description="Artifacts, each project/platform, that may be missing: links move to the build all the same.",
        ),
        "dry_run": flag("Dry run", "Report what would be published; change nothing."),
        "wait_minutes": Param(
            None,
            title="Wait (minutes)",
            type=["null", "integer"],
            minimum=0,
            maximum=1440,
            description="Minutes to wait for missing artifacts. Empty: scheduled runs wait until the slot's cutoff, "
            "manual runs do not wait.",
        ),
    }
    if is_judged(settings, slot):
        params["accept_quality"] = Param(
            None,
            title="Accept quality",
            type=["null", "string"],
            maxLength=1000,
            description="Why the build is right although the quality gate blocks it; empty: the gate counts.",
        )
    if slot is None:
        params = {"slot": choice(settings.slots, title="Slot", description="The series of builds."), **params}
    return params


def is_judged(settings: SiteSettings, slot: Slot | None) -> bool:
    """Tell whether the DAG has the tasks of the quality gate: if its slot has one; without a slot, if any has."""
    return any(configured.quality is not None for configured in ([slot] if slot else settings.slots.values()))


def night(settings: SiteSettings, slot: Slot | None) -> DAG:
    """The DAG of one slot, on its schedule; or, without a slot, the same by hand for any of them."""
    dag_id = f"nightly_install_{slot.name}" if slot else "nightly_install"
    outlet = slot_asset(slot.name) if slot else AssetAlias("nightlies")
    dag = DAG(
        dag_id=dag_id,
        dag_display_name=f"Nightly builds: {slot.name}" if slot else "Nightly build by hand",
        description=f"Install the nightly builds of slot {slot.name}"
        if slot
        else "Install the build of any slot and date, by hand",
        doc_md=DOC.format(
            repository=f"`{slot.repository}`" if slot else "the slot's repository",
            destination=f"`{slot.destination}`" if slot else "the slot's destination",
            timezone=slot.timezone if slot else "the slot's time zone",
            offset=f", {slot.date_offset:+d} days" if slot and slot.date_offset else "",
            backfill=BACKFILL.format(dag_id=dag_id) if slot and slot.schedule else "",
        ),
        max_active_runs=4,
        max_active_tasks=32,
        dagrun_timeout=timedelta(hours=20),
        **dag_defaults(
            CronTriggerTimetable(slot.schedule, timezone=slot.timezone) if slot and slot.schedule else None,
            start=starts(slot) if slot else min(map(starts, settings.slots.values())),
            **({"retries": slot.retries, "priority": slot.priority} if slot else {}),
        ),
        params=night_params(settings, slot),
        tags=["nightlies", "cvmfs", *([f"slot:{slot.name}"] if slot else ["by hand"])],
    )
    repositories = [slot.repository] if slot else [configured.repository for configured in settings.slots.values()]
    judged = is_judged(settings, slot)
    with dag:
        find_build = BuildSensor(
            task_id="find_build",
            task_display_name="Find the build",
            slot=slot.name if slot else None,
            doc_md="Resolves the build date and waits for something to publish in the build's index, in the triggerer.",
        )
        plan = PlanNightOperator(
            task_id="plan",
            task_display_name="Plan the night",
            night=find_build.output,
            doc_md="Reads the index and records in the ledger what is to be published, and what is there already.",
        )
        verify = publishing_tasks(
            plan.output,
            group_id="artifact",
            prepare_timeout=timedelta(hours=6),
            inherited=XComArg(plan, INHERITED),
            approval=any(settings.repository(fqrn).approval for fqrn in repositories),
            night=find_build.output,
        )
        gate = CheckCompletenessOperator(
            task_id="gate",
            task_display_name="Check completeness",
            night=find_build.output,
            trigger_rule=TriggerRule.ALL_DONE,
            doc_md="Fails the run if anything required is missing, with its reason or the first cause.",
        )
        links = SetLinksOperator(
            task_id="links",
            task_display_name="Set links",
            night=find_build.output,
            pool="publish",
            doc_md="Moves the slot's links forward and tags the revision if the build is complete; records why if not.",
        )
        announce = AnnounceBuildOperator(
            task_id="announce",
            task_display_name="Announce the build",
            night=find_build.output,
            passed=gate.output,
            linked=links.output,
            outlets=[outlet],
            doc_md="Emits the event of the slot's asset, with what was published and where the links point to.",
        )
        following = StartNextPassOperator(
            task_id="next_pass",
            task_display_name="Start the next pass",
            night=find_build.output,
            plan=plan.task_id,
            trigger_rule=TriggerRule.ALL_DONE,
            doc_md="Starts the run of the night's next pass, while the night is open.",
        )
        if judged:
            index = CheckIndexOperator(
                task_id=CHECK_INDEX,
                task_display_name="Judge the index",
                night=find_build.output,
                doc_md="Judges the index against itself and earlier builds; a suite that blocks ends the run here.",
            )
            build = CheckBuildOperator(
                task_id="check_build",
                task_display_name="Judge the build",
                night=find_build.output,
                trigger_rule=TriggerRule.ALL_DONE,
                doc_md="Judges what was published, the night and the growth of the repository, before links move.",
            )
            index >> plan
            verify >> build >> gate
        verify >> gate >> links >> announce
        verify >> following
    return dag


_site = load()
for _slot in _site.slots.values():
    _dag = night(_site, _slot)
    globals()[_dag.dag_id] = _dag
if _site.slots:
    nightly_install = night(_site, None)
