"""States of files and jobs, as tables, and the order in which waiting files are copied."""

from __future__ import annotations

from itertools import product

import pytest

from include.fts.states import FileState, JobState
from lab.fts.errors import FtsServiceError
from lab.fts.records import FILE_MOVES, JOB_ENDS, FileRecord, JobOptions, JobRecord, move, recount
from lab.fts.transfers import Scheduler

_F = FileState
ENDS = (_F.FINISHED, _F.FAILED, _F.CANCELED)


def _job(count: int, *, priority: int = 3, first: int = 1, link: int = 0) -> JobRecord:
    job = JobRecord(f"job{first}", "user", "vo", JobOptions(), priority, None, 0.0)
    names = [(first + index, f"mock://a{link}/{index}", f"mock://b/{first + index}") for index in range(count)]
    job.files = [
        FileRecord(file_id, index, job, source, destination, (f"mock://a{link}", "mock://b"))
        for index, (file_id, source, destination) in enumerate(names)
    ]
    recount(job)
    return job


def _queued(scheduler: Scheduler, *jobs: JobRecord) -> None:
    for job in jobs:
        for file in job.files:
            scheduler.add(file, 0.0)


def _start(scheduler: Scheduler, now: float = 0.0) -> list[int]:
    started = []
    for file in scheduler.startable(now):
        move(file, _F.ACTIVE, now)
        started.append(file.file_id)
    return started


def test_what_has_ended_stays_as_it_is_and_every_mixture_of_ends_is_the_end_of_a_job() -> None:
    assert {state for state, after in FILE_MOVES.items() if not after} == set(ENDS)
    assert all(not FILE_MOVES[state] for state in FILE_MOVES if state.terminal)
    assert {frozenset(states) for states in product(ENDS, repeat=3)} == set(JOB_ENDS)
    for state in ENDS:
        (file,) = _job(1).files
        move(file, _F.ACTIVE, 0.0)
        move(file, state, 0.0)
        with pytest.raises(FtsServiceError):
            move(file, _F.SUBMITTED, 0.0)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((_F.FINISHED, _F.FINISHED), JobState.FINISHED),
        ((_F.FINISHED, _F.FAILED), JobState.FINISHEDDIRTY),
        ((_F.FAILED, _F.FAILED), JobState.FAILED),
        ((_F.FINISHED, _F.CANCELED), JobState.CANCELED),
        ((_F.FAILED, _F.CANCELED), JobState.FAILED),
    ],
)
def test_a_job_ends_with_its_last_file(ends: tuple[FileState, FileState], expected: JobState) -> None:
    job = _job(2)
    for file in job.files:
        assert not move(file, _F.ACTIVE, 1.0)
    assert not move(job.files[0], ends[0], 2.0)
    assert (job.state, job.ended) == (JobState.ACTIVE, None)
    assert move(job.files[1], ends[1], 3.0)
    assert (job.state, job.ended) == (expected, 3.0)


def test_a_link_has_no_more_active_files_than_its_limit() -> None:
    scheduler, job, other = Scheduler(2), _job(4), _job(1, first=9, link=1)
    _queued(scheduler, job, other)
    assert sorted(_start(scheduler)) == [1, 2, 9]
    assert _start(scheduler) == []
    assert scheduler.links() == {("mock://a0", "mock://b"): (2, 2), ("mock://a1", "mock://b"): (1, 0)}
    move(job.files[0], _F.FINISHED, 1.0)
    scheduler.release(job.files[0])
    assert _start(scheduler) == [3]


def test_the_higher_priority_comes_first_and_then_the_older_file() -> None:
    scheduler = Scheduler(1)
    low, high, raised = _job(1, priority=1), _job(2, priority=5, first=5), _job(1, priority=2, first=9)
    _queued(scheduler, low, high, raised)
    raised.priority = 5
    _queued(scheduler, raised)
    order = []
    for _ in range(4):
        order += _start(scheduler)
        active = next(file for job in (low, high, raised) for file in job.files if file.state is _F.ACTIVE)
        move(active, _F.FINISHED, 0.0)
        scheduler.release(active)
    assert order == [5, 6, 9, 1]
    assert _start(scheduler) == []


def test_a_retry_is_not_started_before_it_is_due() -> None:
    scheduler, job = Scheduler(5), _job(1)
    (file,) = job.files
    _queued(scheduler, job)
    assert _start(scheduler) == [1]
    scheduler.release(file)
    move(file, _F.SUBMITTED, 1.0)
    file.due = 10.0
    scheduler.add(file, 1.0)
    assert _start(scheduler, 9.9) == []
    assert _start(scheduler, 10.0) == [1]


def test_a_file_that_was_canceled_or_is_held_is_not_started() -> None:
    scheduler, job = Scheduler(5), _job(3)
    _queued(scheduler, job)
    move(job.files[0], _F.CANCELED, 0.0)
    move(job.files[1], _F.ON_HOLD, 0.0)
    assert _start(scheduler) == [3]
