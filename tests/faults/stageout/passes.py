"""Passes of the components, and what people do, as the machine runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial

from include.stageout.components.archivist import archive
from include.stageout.components.cleaner import clean
from include.stageout.components.monitor import monitor
from include.stageout.components.register import register
from include.stageout.components.reporter import read_back, report
from include.stageout.components.retry_manager import kill, resubmit, retry_waiting
from include.stageout.components.submitter import submit
from include.stageout.components.tools import Stageout
from include.stageout.registration.blocks import close_workflow
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


def kill_workflow(world: StageoutWorld, owner: str, workflow: str) -> None:
    kill(world.ledger, by=owner, now=world.time, owner=owner, workflow=workflow)


def resubmit_workflow(world: StageoutWorld, owner: str, workflow: str) -> None:
    resubmit(world.ledger, by=owner, now=world.time, owner=owner, workflow=workflow)


def close_known_workflow(world: StageoutWorld, owner: str, workflow: str) -> None:
    if any((file.owner, file.workflow) == (owner, workflow) for file in world.files.values()):
        close_workflow(world.ledger, owner, workflow, now=world.time)
        world.closed.add((owner, workflow))
