"""Airflow's own scheduler: runs that it would leave waiting or end without work, and which tasks it takes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
from airflow.jobs.job import Job
from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.db_callback_request import DbCallbackRequest
from airflow.models.pool import Pool
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select
from sqlalchemy.orm import Session

from include.settings.scheduling import BACKFILL, pools
from operators.publishing import PublishArtifactsOperator
from tests.dags.conftest import MiniSite, Run
from tests.fakes.builds import Build, tree

pytestmark = pytest.mark.server("weed")


@pytest.fixture
def session() -> Iterator[Session]:
    with create_session() as opened:
        yield opened


class Runs:
    """Runs of one DAG, begun by Airflow's scheduler."""

    def __init__(self, session: Session, dag_id: str) -> None:
        found = SerializedDagModel.get_dag(dag_id, session=session)
        assert found is not None
        self.session, self.dag = session, found

    def start(
        self, logical_date: datetime | None = None, kind: DagRunType = DagRunType.MANUAL, **conf: object
    ) -> DagRun:
        """Start a run as Airflow's interface does, and let the scheduler begin it."""
        now = datetime.now(UTC) - timedelta(seconds=2)  # SQLite compares it with a clock of whole seconds
        return self.begin(self.make(logical_date, kind, DagRunState.QUEUED, now, **conf))

    def make(
        self, logical_date: datetime | None, kind: DagRunType, state: DagRunState, after: datetime, **conf: object
    ) -> DagRun:
        run = self.dag.create_dagrun(
            run_id=f"{kind.value}__{after.isoformat()}", run_type=kind, logical_date=logical_date, run_after=after,
            data_interval=None if logical_date is None else (logical_date, logical_date),
            triggered_by=DagRunTriggeredByType.REST_API, state=state, session=self.session, conf=conf,
        )  # fmt: skip
        self.session.flush()
        return run

    def begin(self, run: DagRun) -> DagRun:
        """One look of the scheduler at what is queued."""
        scheduler = SchedulerJobRunner(Job(), num_runs=1)
        scheduler._start_queued_dagruns(self.session)
        self.session.flush()
        return run

    def states(self, run: DagRun) -> dict[str, TaskInstanceState | None]:
        return {ti.task_id: ti.state for ti in run.get_task_instances(session=self.session)}


@pytest.fixture
def unpaused(site: MiniSite, session: Session) -> Iterator[None]:
    """As an operator leaves it; other runs of the DAGs are over, so that the new one is begun at once."""

    for model in session.scalars(select(DagModel)):
        model.is_paused = False
    for run in session.scalars(select(DagRun).where(DagRun.state.in_(["queued", "running"]))):
        run.state = DagRunState.FAILED
    session.flush()
    yield
    session.rollback()


@pytest.mark.usefixtures("unpaused")
@pytest.mark.parametrize("dag_id", ["nightly_install_main", "nightly_install", "undo_build", "nightly_gc", "leases"])
def test_a_run_from_the_future_or_from_before_the_first_day_is_failed_with_the_reason(
    session: Session, dag_id: str
) -> None:
    runs = Runs(session, dag_id)
    conf = {"slot": "main"} if dag_id == "nightly_install" else {}
    conf |= {"slot": "main", "build_id": "b1", "reason": "test"} if dag_id == "undo_build" else {}
    for logical_date, why in (
        (datetime.now(UTC) + timedelta(days=96), "is in the future"),
        (datetime(2021, 11, 21, 2, tzinfo=UTC), "is before the DAG's start date"),
    ):
        told = len(session.scalars(select(DbCallbackRequest)).all())
        run = runs.start(logical_date, **conf)
        assert run.state == DagRunState.FAILED
        assert run.end_date is not None
        assert why in (run.note or "")
        assert "Start the run without a logical date" in (run.note or "")
        callback = session.scalars(select(DbCallbackRequest)).all()[told:]
        assert [why in str(one.get_callback_request().msg) for one in callback] == [True]


@pytest.mark.usefixtures("unpaused")
def test_a_run_without_a_logical_date_or_in_the_next_minutes_and_a_backfill_of_older_builds_begin(
    session: Session,
) -> None:
    runs = Runs(session, "nightly_install_main")
    assert runs.start().state == DagRunState.RUNNING
    assert runs.start(datetime.now(UTC) + timedelta(minutes=2)).state == DagRunState.RUNNING
    old = runs.start(datetime(2021, 11, 21, 2, tzinfo=UTC), DagRunType.BACKFILL_JOB)
    assert old.state == DagRunState.RUNNING
    assert runs.states(old).keys() == set(runs.dag.task_ids)


def marked_failed(runs: Runs, run: DagRun, *running: str) -> None:
    """A person marks the run as failed while these tasks run, then clears it with *Only failed*."""
    for ti in run.get_task_instances(session=runs.session):
        if ti.task_id in running:
            ti.state, ti.hostname, ti.start_date = TaskInstanceState.RUNNING, "a-worker", datetime.now(UTC)
    runs.session.flush()
    set_dag_run_state_to_failed(dag=runs.dag, run_id=run.run_id, commit=True, session=runs.session)
    assert run.state == DagRunState.FAILED
    assert set(runs.states(run).values()) == {TaskInstanceState.FAILED, TaskInstanceState.SKIPPED}
    runs.dag.clear(run_id=run.run_id, only_failed=True, session=runs.session)
    assert {name for name, state in runs.states(run).items() if state is None} == set(running)


@pytest.mark.usefixtures("unpaused")
def test_a_run_that_was_marked_failed_and_cleared_by_only_failed_does_all_that_had_not_begun(
    site: MiniSite, session: Session
) -> None:
    build = Build("2026-08-07").add("Marked", "x86_64", tree({"file": b"content"}))
    site.drop(build)
    runs = Runs(session, "nightly_install")
    run = runs.start(**{**site.defaults["nightly_install"], "slot": "main", "build_date": build.date})
    marked_failed(runs, run, "find_build")
    runs.begin(run)
    assert set(runs.states(run).values()) == {None}
    session.commit()
    name = f"nightly_install/{run.run_id}"
    ended = site.clear(Run("", {}, {}, name), "find_build")
    assert ended.state == "success", ended
    assert ended.states() == {"Marked/x86_64": "published"}
    assert ended.tasks["gate"] == "success"


@pytest.mark.usefixtures("unpaused")
def test_what_skipped_itself_or_was_done_stays_when_a_run_is_cleared(session: Session) -> None:
    runs = Runs(session, "rollback")
    run = runs.start(tag="good", reason="test")
    now = datetime.now(UTC)
    for ti in run.get_task_instances(session=session):
        ti.state, ti.hostname, ti.start_date = TaskInstanceState.SKIPPED, "a-worker", now
    begun = next(ti for ti in run.get_task_instances(session=session) if ti.task_id == "preview")
    begun.state = TaskInstanceState.FAILED
    run.set_state(DagRunState.FAILED)
    session.flush()
    runs.dag.clear(run_id=run.run_id, only_failed=True, session=session)
    runs.begin(run)
    states = runs.states(run)
    assert states.pop("preview") is None
    assert set(states.values()) == {TaskInstanceState.SKIPPED}


@pytest.mark.usefixtures("unpaused")
def test_a_failed_run_of_a_dag_with_a_deadline_can_be_cleared(session: Session) -> None:
    runs = Runs(session, "nightly_gc")
    run = runs.start()
    for ti in run.get_task_instances(session=session):
        ti.set_state(TaskInstanceState.FAILED, session=session)
    session.flush()
    run.dag = runs.dag
    run.update_state(session=session, execute_callbacks=False)
    assert run.state == DagRunState.FAILED
    session.flush()
    runs.dag.clear(run_id=run.run_id, only_failed=True, session=session)
    assert runs.begin(run).state == DagRunState.RUNNING


@pytest.mark.usefixtures("unpaused")
@pytest.mark.parametrize("dag_id", ["nightly_install", "publication"])
def test_a_run_whose_gate_was_skipped_by_hand_is_no_success_and_says_what_to_clear(
    session: Session, dag_id: str
) -> None:
    runs = Runs(session, dag_id)
    conf = {"slot": "main"} if dag_id == "nightly_install" else {"path": "/a", "source": "s3://builds/a.tar"}
    run = runs.start(**conf)
    for ti in run.get_task_instances(session=session):
        ti.set_state(TaskInstanceState.SKIPPED, session=session)
    first = next(ti for ti in run.get_task_instances(session=session) if ti.task_id in {"find_build", "plan"})
    first.state = TaskInstanceState.SUCCESS
    session.flush()
    run.dag = runs.dag
    run.update_state(session=session, execute_callbacks=False)
    assert run.state == DagRunState.FAILED
    assert "Clear these tasks with *Downstream*, and not *Only failed*." in (run.note or "")


def test_what_depends_on_what_no_task_publishes_any_more_ends_at_once_and_is_not_waited_for(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Build("2026-08-09").add("Base", "x86_64", tree({"file": b"base"}))
    build.add("Top", "x86_64", tree({"file": b"top"}), dependencies=["Base"])
    site.drop(build)
    execute = PublishArtifactsOperator.execute
    names: list[str] = []
    marked = True

    def base_first(self: PublishArtifactsOperator, context: Context) -> Any:
        names.append(self.batch["items"][0]["name"])
        if names[-1] == "Base/x86_64" and marked:
            raise AirflowSkipException("marked by a person")  # nothing of it is in the ledger
        if "Base/x86_64" not in names:  # the order of mapped tasks is not fixed, and `dag.test()` runs one at a time
            raise AirflowRescheduleException(datetime.now(UTC))
        return execute(self, context)

    monkeypatch.setattr(PublishArtifactsOperator, "execute", base_first)
    run = site.run("nightly_install", slot="main", build_date=build.date)
    assert run.state == "failed"
    assert run.states() == {"Base/x86_64": "prepared", "Top/x86_64": "skipped"}
    (top,) = [one for one in run.publications.values() if one.project == "Top"]
    assert "no task publishes it any more (task artifact.publish[0] is skipped)" in top.reason
    marked = False
    names.clear()
    again = site.clear(run, "plan", *sorted(name.partition("[")[0] for name in run.tasks if name != "find_build"))
    assert (again.state, set(again.states().values())) == ("success", {"published"})


TONIGHT = datetime(2026, 11, 21, 1, tzinfo=UTC)
SEVERAL = 32
CORES = 2
WORK = ("find_build", "artifact.prepare", "artifact.publish")


class Night(Runs):
    """Tasks that the scheduler takes: a night, a run by hand, a backfill of five dates, on a machine of two cores."""

    def __init__(self, session: Session, site: MiniSite) -> None:
        super().__init__(session, "nightly_install_main")
        for pool in pools(site.opened.settings, cores=CORES):
            Pool.create_or_update_pool(
                pool.name, pool.slots, pool.description, include_deferred=pool.include_deferred, session=session
            )
        self.share = next(pool.slots for pool in pools(site.opened.settings, cores=CORES) if pool.name == BACKFILL)
        dates = [TONIGHT - timedelta(days=days) for days in range(5, 0, -1)]
        self.past = [self.make(at, DagRunType.BACKFILL_JOB, DagRunState.RUNNING, at) for at in dates]
        self.night = self.make(TONIGHT, DagRunType.SCHEDULED, DagRunState.RUNNING, TONIGHT)
        self.hand = self.make(None, DagRunType.MANUAL, DagRunState.RUNNING, TONIGHT)
        self.runner = SchedulerJobRunner(Job())

    def put(self, state: TaskInstanceState, runs: Sequence[DagRun], *tasks: str) -> None:
        """Bring tasks of runs into a state: `scheduled` is what waits for a slot."""
        for ti in (ti for run in runs for ti in run.get_task_instances(session=self.session) if ti.task_id in tasks):
            ti.state = state
        self.session.flush()

    def take(self, most: int = SEVERAL) -> list[tuple[str, str]]:
        """Queue what the scheduler queues now, in its order, and run those tasks."""
        taken = self.runner._executable_task_instances_to_queued(max_tis=most, session=self.session)
        for ti in taken:
            ti.state = TaskInstanceState.RUNNING
        self.session.flush()
        return [(ti.run_id, ti.task_id) for ti in taken]


@pytest.fixture
def night(unpaused: None, session: Session, site: MiniSite) -> Night:
    return Night(session, site)


def test_every_task_of_a_backfill_takes_its_slot_from_the_backfills_own_pool(night: Night) -> None:
    usual = {"find_build": "control", "artifact.prepare": "prepare", "artifact.publish": "publish"}
    for run in (night.past[0], night.night, night.hand):
        given = {ti.task_id: ti.pool for ti in run.get_task_instances(session=night.session) if ti.task_id in WORK}
        assert given == (dict.fromkeys(WORK, BACKFILL) if run is night.past[0] else usual)


def test_a_backfill_that_came_first_keeps_no_task_of_the_night_or_of_a_run_by_hand_waiting(night: Night) -> None:
    night.put(TaskInstanceState.SCHEDULED, night.past, "artifact.prepare", "artifact.publish")
    assert len(night.take()) == night.share, "more of a backfill runs than its share, even if nothing else does"
    others = [night.night, night.hand]
    night.put(TaskInstanceState.SCHEDULED, others, *WORK)
    assert sorted(night.take()) == sorted((run.run_id, task) for run in others for task in WORK)


def test_where_the_executor_has_one_slot_left_tonight_goes_before_what_waited_longer(night: Night) -> None:
    night.put(TaskInstanceState.SCHEDULED, [*night.past, night.night], "artifact.prepare")
    assert night.take(1) == [(night.night.run_id, "artifact.prepare")]
    assert night.take(1) == [(night.past[0].run_id, "artifact.prepare")], "then the oldest date"


def test_a_night_that_wants_every_slot_leaves_a_backfill_its_share(night: Night) -> None:
    tasks = ("reserve", "artifact.prepare", "artifact.publish")
    night.put(TaskInstanceState.SCHEDULED, [night.night, night.hand, *night.past], *tasks)
    taken = Counter(run for run, _ in night.take())
    assert taken[night.night.run_id] == taken[night.hand.run_id] == len(tasks), "schedule and hand are alike"
    assert sum(taken[run.run_id] for run in night.past) > 0, "a backfill starves"
