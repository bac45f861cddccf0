"""Runs of our DAGs in the scheduler: each gets a note, and one that Airflow would leave waiting is ended as failed.

Listeners of Airflow's, called in the scheduler, which stores what they change with the run. A run without a note gets
its slot and build date, or what it changes. A task cannot set it: Airflow's interface for tasks takes a note only with
a run that a task starts, as `operators/night.py` does. A partition key is no substitute: Airflow does not tell
consumers of an asset without partitions of the events of a run that has one.

A run that ends as failed here has the reason in its note, and its alert is sent as that of any other run that failed.
When a person marks a run as failed, Airflow skips what had not begun, and *Clear, only failed* leaves that skipped:
here it is cleared, too, once the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from include.dag_runs import OWNER, why_no_such_date
from include.nightlies.errors import NightlyError
from include.nightlies.rules.passes import resolve_build_date
from include.settings.load import load
from include.settings.model import SiteSettings, Slot

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.serialization.definitions.dag import SerializedDAG

NIGHTS = "nightly_install"
BY_HAND = {
    "publication": "{source} to {repository}:{path}",
    "undo_build": "Undo of build {build_id}, slot {slot}: {reason}",
    "rollback": "Rollback of {repository} to {goal}: {reason}",
}
"""Notes on runs of other DAGs, by their parameters."""
MOST = 1000
"""Characters of a note."""
SHOWN = 5


@hookimpl
def on_dag_run_running(dag_run: DagRun) -> None:
    """End a run that no task would ever begin in, let a cleared one go on, and give it a note.

    Airflow logs what is raised here, and the run goes on without a note.
    """
    if (dag := _ours(dag_run)) is not None:
        _end_or_go_on(dag_run, dag)
    if dag_run.note is not None:
        return
    if note := note_of(load(), dag_run.dag_id, dag_run.conf or {}, dag_run.logical_date or dag_run.run_after):
        dag_run.note = note


def _end_or_go_on(dag_run: DagRun, dag: SerializedDAG) -> None:
    """End a run that no task would ever begin in; let a run that was cleared go on with all that had not begun."""
    # Airflow makes the tasks of a backfill whatever the start date is
    start = None if dag_run.run_type == "backfill" else dag.start_date
    if reason := why_no_such_date(dag.dag_id, dag_run.logical_date, now=datetime.now(UTC), start=start):
        fail(dag_run, dag, reason)
    elif dag_run.clear_number:
        for ti in _never_begun(dag_run):
            ti.state = ti.start_date = ti.end_date = ti.duration = None


def note_of(settings: SiteSettings, dag_id: str, conf: Mapping[str, Any], logical_date: datetime | None) -> str | None:
    """Return a note about a run, or None for a DAG whose runs need no words.

    Args:
        settings: The deployment, for the slots' time zones.
        dag_id: Of which DAG the run is.
        conf: The run's parameters, as far as they were given.
        logical_date: That of the run, or its `run_after` if it has none.

    Returns:
        The note, on one line; None: the run gets none.
    """
    given = {name: value for name, value in conf.items() if value not in (None, "", [])}
    dry = "Dry run. " if given.get("dry_run") else ""
    if dag_id == NIGHTS or dag_id.startswith(f"{NIGHTS}_"):
        slot = settings.slots.get(dag_id[len(NIGHTS) + 1 :] or given.get("slot") or "")
        return None if slot is None else f"{dry}{_night(slot, given, logical_date)}"
    if dag_id not in BY_HAND:
        return None
    words = {"goal": given.get("tag") or f"revision {given.get('revision')}", **given}
    try:
        return f"{dry}{BY_HAND[dag_id].format(**words)}"[:MOST]
    except KeyError:
        return None  # a parameter was left to its default, which a form never does


def _night(slot: Slot, given: Mapping[str, Any], logical_date: datetime | None) -> str:
    try:
        day = resolve_build_date(
            given.get("build_date"), None, logical_date, timezone=slot.timezone, date_offset=slot.date_offset
        )
    except NightlyError:
        return f"Slot {slot.name}"
    chosen = [f"{kind} {', '.join(map(str, given[kind]))}" for kind in ("projects", "platforms") if given.get(kind)]
    return "; ".join([f"Slot {slot.name}, build of {day}", *chosen])[:MOST]


@hookimpl
def on_dag_run_success(dag_run: DagRun) -> None:
    """End a run as failed whose check of completeness was skipped by hand: nothing has judged it."""
    dag = _ours(dag_run)
    if dag is None:
        return
    skipped = {ti.task_id for ti in _never_begun(dag_run)}
    # a task with this rule is skipped by no other task, only by a person
    if not any(dag.get_task(name).trigger_rule == "all_done" and dag.get_task(name).downstream_task_ids
               for name in skipped):  # fmt: skip
        return
    first = sorted(name for name in skipped if not dag.get_task(name).upstream_task_ids & skipped)
    fail(
        dag_run, dag,
        f"The run was marked before {', '.join(first[:SHOWN])} had begun, and so nothing checked what it had to do. "
        "Clear these tasks with *Downstream*, and not *Only failed*.",
    )  # fmt: skip


@hookimpl
def on_dag_run_failed(dag_run: DagRun) -> None:
    """Take away the deadlines of a run that ended before them: Airflow 3.3.2 cannot clear a run that has one."""
    from airflow.models.dagrun import DagRun
    from airflow.models.deadline import Deadline
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is not None and dag_run.dag_model.owners == OWNER:
        Deadline.prune_deadlines(session=session, conditions={DagRun.id: dag_run.id})


def fail(dag_run: DagRun, dag: SerializedDAG, reason: str) -> None:
    """End a run as failed.

    Args:
        dag_run: The run, in the session of the scheduler.
        dag: Its DAG.
        reason: What its note and its alert say.
    """
    from airflow.callbacks.database_callback_sink import DatabaseCallbackSink
    from airflow.utils.state import DagRunState
    from sqlalchemy.orm import object_session

    dag_run.set_state(DagRunState.FAILED)
    dag_run.note = " ".join(filter(None, (dag_run.note, f"Failed: {reason}")))[-MOST:]
    dag_run.notify_dagrun_state_changed(msg=reason)
    callback = dag_run.produce_dag_callback(dag=dag, success=False, reason=reason)
    session: Any = object_session(dag_run)
    if callback is not None and dag.has_on_failure_callback:
        DatabaseCallbackSink().send(callback, session=session)


def _ours(dag_run: DagRun) -> SerializedDAG | None:
    dag = dag_run.dag  # None in the API server, where a person decides on the state
    return dag if dag is not None and dag.owner == OWNER else None


def _never_begun(dag_run: DagRun) -> list[TaskInstance]:
    """The tasks that were skipped and had not begun since they were made or cleared, which gives them a new id."""
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy.orm import object_session

    session: Any = object_session(dag_run)
    skipped = dag_run.get_task_instances(state=[TaskInstanceState.SKIPPED], session=session)
    return [ti for ti in skipped if not ti.hostname or ti.start_date is None or ti.start_date < _made(ti)]


def _made(ti: TaskInstance) -> datetime:
    """Return the time at which the id was made: a UUID of version 7 begins with the milliseconds."""
    return datetime.fromtimestamp(int(ti.id.hex[:12], 16) / 1000, UTC)
