"""What Airflow's own scheduler takes next when a night, a run by hand and backfills want to run at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from include.settings.pools import BACKFILL, pools
from tests.dags.conftest import MiniSite

pytestmark = pytest.mark.server("weed")
DAG_ID = "nightly_install_main"
TONIGHT = datetime(2026, 11, 21, 1, tzinfo=UTC)
BACKFILLED = tuple(TONIGHT - timedelta(days=days) for days in range(5, 0, -1))
SEVERAL = 32
CORES = 2


class Scheduler:
    """Runs of the slot's DAG in Airflow's database, and the scheduler's choice among their tasks."""

    def __init__(self) -> None:
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
        from airflow.utils.session import create_session

        self._runner = SchedulerJobRunner(Job())
        self._session = create_session
        self.runs: list[str] = []

    def begin(self, run_id: str, kind: str, at: datetime | None) -> str:
        """Make a run as Airflow does; nothing of it is scheduled yet."""
        from airflow.models.dagrun import DagRun
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.utils.state import DagRunState
        from airflow.utils.types import DagRunTriggeredByType, DagRunType

        with self._session() as session:
            dag = SerializedDagModel.get(DAG_ID, session=session).dag
            run: DagRun = dag.create_dagrun(
                run_id=run_id, logical_date=at, data_interval=(at, at) if at else None, run_after=at or TONIGHT,
                run_type=DagRunType(kind), triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.RUNNING,
                session=session,
            )  # fmt: skip
            self.runs.append(run.run_id)
        return run_id

    def put(self, state: str, tasks: Sequence[tuple[str, str]]) -> None:
        """Bring (run, task) into a state: `scheduled` is what waits for a slot."""
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import update

        with self._session() as session:
            for run_id, task_id in tasks:
                where = (TaskInstance.run_id == run_id, TaskInstance.task_id == task_id)
                session.execute(update(TaskInstance).where(TaskInstance.dag_id == DAG_ID, *where).values(state=state))

    def take(self, most: int) -> list[tuple[str, str]]:
        """What the scheduler queues now, in its order; then those tasks run."""
        with self._session() as session:
            found = self._runner._executable_task_instances_to_queued(max_tis=most, session=session)
            taken = [(one.run_id, one.task_id) for one in found]
        self.put("running", taken)
        return taken

    def pool_of(self, run_id: str, task_id: str) -> str:
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import select

        with self._session() as session:
            where = (TaskInstance.run_id == run_id, TaskInstance.task_id == task_id)
            return str(session.scalar(select(TaskInstance.pool).where(*where)))

    def forget(self) -> None:
        from airflow.models.dagrun import DagRun
        from sqlalchemy import delete

        with self._session() as session:
            session.execute(delete(DagRun).where(DagRun.run_id.in_(self.runs)))


@pytest.fixture
def scheduler(site: MiniSite) -> Iterator[Scheduler]:
    """Airflow's database knows the DAGs and the pools of a machine with two cores."""
    from airflow.models.dag import DagModel
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == DAG_ID).values(is_paused=False))
    for pool in pools(site.opened.settings, cores=CORES):
        Pool.create_or_update_pool(
            pool.name, slots=pool.slots, description=pool.description, include_deferred=pool.include_deferred
        )
    made = Scheduler()
    yield made
    made.forget()


def backfill(scheduler: Scheduler) -> list[str]:
    """The runs that `airflow backfill create` makes of five dates."""
    return [scheduler.begin(f"backfill__{at.isoformat()}", "backfill", at) for at in BACKFILLED]


def test_every_task_of_a_backfill_takes_its_slot_from_the_backfills_own_pool(scheduler: Scheduler) -> None:
    first, *_ = backfill(scheduler)
    night = scheduler.begin("scheduled__tonight", "scheduled", TONIGHT)
    hand = scheduler.begin("manual__now", "manual", None)
    for task_id, pool in {
        "find_build": "control",
        "artifact.prepare": "prepare",
        "artifact.publish": "publish",
    }.items():
        assert scheduler.pool_of(first, task_id) == BACKFILL
        assert scheduler.pool_of(night, task_id) == pool
        assert scheduler.pool_of(hand, task_id) == pool


def test_a_backfill_that_came_first_keeps_no_task_of_the_night_or_of_a_run_by_hand_waiting(
    site: MiniSite, scheduler: Scheduler
) -> None:
    past = backfill(scheduler)
    scheduler.put("scheduled", [(run, task) for run in past for task in ("artifact.prepare", "artifact.publish")])
    share = next(pool.slots for pool in pools(site.opened.settings, cores=CORES) if pool.name == BACKFILL)
    assert len(scheduler.take(SEVERAL)) == share, "more of a backfill runs than its share, even if nothing else does"
    others = [
        scheduler.begin("scheduled__tonight", "scheduled", TONIGHT),
        scheduler.begin("manual__now", "manual", None),
    ]
    wanted = [(run, task) for run in others for task in ("find_build", "artifact.prepare", "artifact.publish")]
    scheduler.put("scheduled", wanted)
    taken = scheduler.take(SEVERAL)
    assert sorted(taken) == sorted(wanted)


def test_where_the_executor_has_one_slot_left_tonight_goes_before_what_waited_longer(scheduler: Scheduler) -> None:
    past = backfill(scheduler)
    scheduler.put("scheduled", [(run, "artifact.prepare") for run in past])
    night = scheduler.begin("scheduled__tonight", "scheduled", TONIGHT)
    scheduler.put("scheduled", [(night, "artifact.prepare")])
    assert scheduler.take(1) == [(night, "artifact.prepare")]
    assert scheduler.take(1) == [(past[0], "artifact.prepare")], "then the oldest date"


def test_a_night_that_wants_every_slot_leaves_a_backfill_its_share(scheduler: Scheduler) -> None:
    night = scheduler.begin("scheduled__tonight", "scheduled", TONIGHT)
    hand = scheduler.begin("manual__now", "manual", None)
    past = backfill(scheduler)
    tasks = ("reserve", "artifact.prepare", "artifact.publish")
    scheduler.put("scheduled", [(run, task) for run in (night, hand, *past) for task in tasks])
    taken = Counter(run for run, _ in scheduler.take(SEVERAL))
    assert taken[night] == taken[hand] == len(tasks), "the schedule and a run by hand are alike"
    assert sum(taken[run] for run in past) > 0, "a backfill starves"
