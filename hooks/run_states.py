"""Ends runs as failed that Airflow would leave waiting, or end as a success without a task.

Listeners of Airflow's, called in the scheduler, which stores what they change with the run. The run's note says why,
and its alert is sent as that of any other run that failed. When a person marks a run as failed, Airflow skips what had
not begun, and *Clear, only failed* leaves that skipped: here it is cleared, too, once the run goes on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from include.dag_runs import OWNER, why_no_such_date

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.serialization.definitions.dag import SerializedDAG

MOST = 1000
"""Characters of a note."""
SHOWN = 5


@hookimpl
def on_dag_run_running(dag_run: DagRun) -> None:
    """End a run that no task would ever begin in; let a run that was cleared go on with all that had not begun."""
    dag = _ours(dag_run)
    if dag is None:
        return
    # Airflow makes the tasks of a backfill whatever the start date is
    start = None if dag_run.run_type == "backfill" else dag.start_date
    if reason := why_no_such_date(dag.dag_id, dag_run.logical_date, now=datetime.now(UTC), start=start):
        fail(dag_run, dag, reason)
    elif dag_run.clear_number:
        for ti in _never_begun(dag_run):
            ti.state = ti.start_date = ti.end_date = ti.duration = None


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
