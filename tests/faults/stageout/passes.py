"""Passes of the components, the census, and what people do, as the machine runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import select

from include.ledger.engine import reading
from include.stageout.archive import archive
from include.stageout.blocks import close_workflow
from include.stageout.components.census import take_census
from include.stageout.components.cleaner import clean
from include.stageout.components.monitor import monitor
from include.stageout.components.register import register
from include.stageout.components.reporter import read_back, report
from include.stageout.components.retry_manager import kill, resubmit, retry_waiting
from include.stageout.components.submitter import submit
from include.stageout.errors import WORKFLOW_UNKNOWN, StageoutError
from include.stageout.jobs import declare_dead
from include.stageout.opening import Stageout
from include.stageout.states import TransferJobState
from include.stageout.tables import stageout_jobs, stageout_transfers
from tests.faults.stageout.world import StageoutWorld

LIMIT = 7
Component = Callable[..., object]


def _run(component: Component, world: StageoutWorld, worker: str) -> None:
    stageout: Stageout = world.stageout(worker)
    now: Callable[[], datetime] = world.now
    component(stageout, now=now, limit=LIMIT)


PASSES: Mapping[str, Callable[[StageoutWorld, str], None]] = {
    component.__name__: partial(_run, component)
    for component in (submit, monitor, report, read_back, retry_waiting, register, clean, archive)
}


def census(world: StageoutWorld, worker: str) -> None:
    take_census(world.stageout(worker), now=world.now, deletes=True)


def declare_job_dead(world: StageoutWorld, number: int) -> None:
    """A server is set up again without one of its jobs; an operator declares the job dead."""
    columns = stageout_jobs.c
    # not one whose submission is on its way
    running = columns.state.in_([TransferJobState.SUBMITTED.value, TransferJobState.ACTIVE.value])
    with reading(world.ledger) as connection:
        jobs = connection.execute(select(columns.fts_id, columns.server).where(running).order_by(columns.id)).all()
    if jobs:
        job = jobs[number % len(jobs)]
        world.forget(job.server, [job.fts_id], archived=False)
        declare_dead(world.ledger, job.fts_id, by="olga", now=world.time, margin=timedelta(minutes=10))


BESIDE: Mapping[str, Callable[[StageoutWorld, str], None]] = {
    **PASSES, "census": census, "declare_dead": lambda world, _: declare_job_dead(world, 0),
}  # fmt: skip
"""What may happen between two steps of a component."""


def kill_workflow(world: StageoutWorld, owner: str, workflow: str) -> None:
    kill(world.ledger, by=owner, now=world.time, owner=owner, workflow=workflow)


def resubmit_workflow(world: StageoutWorld, owner: str, workflow: str) -> None:
    resubmit(world.ledger, by=owner, now=world.time, owner=owner, workflow=workflow)


def close_known_workflow(world: StageoutWorld, owner: str, workflow: str) -> None:
    """Close a workflow that had files; it is unknown only when all of them were archived, and its requests deleted."""
    numbers = [number for number, file in world.files.items() if (file.owner, file.workflow) == (owner, workflow)]
    if not numbers:
        return
    columns = stageout_transfers.c
    with reading(world.ledger) as connection:
        kept = list(connection.scalars(select(columns.id).where(columns.id.in_(numbers))))
    try:
        close_workflow(world.ledger, owner, workflow, now=world.time)
    except StageoutError as error:
        if kept or error.code != WORKFLOW_UNKNOWN.code:
            raise
    else:
        world.closed.add((owner, workflow))
