"""Runs the steps of a campaign, and removes what it has created. Both go on where a killed process stopped."""

from __future__ import annotations

import fcntl
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from include.benchmarks.campaign.folder import CampaignFolder, CampaignRecord, StepRecord
from include.benchmarks.campaign.machine import CpuTicks, MachineNoise, load_now
from include.benchmarks.errors import (
    CAMPAIGN_CLOSED,
    LIMIT_REACHED,
    RESULT_UNREADABLE,
    RUNNER_FAILED,
    TARGET_BUSY,
    BenchmarkError,
)
from include.benchmarks.loads import LoadAccess
from include.benchmarks.runners.choose import PROGRAMS, RUNNERS
from include.benchmarks.scenarios.plan import CampaignPlan, CampaignWish, PlannedStep, make_plan
from include.benchmarks.targets.base import AreaRemoval, BenchmarkTarget, RunArea, TargetSpace

OVER_TIME = "benchmark-over-time"
_OF_ONE_STEP = frozenset({RUNNER_FAILED.code, RESULT_UNREADABLE.code})
"""Errors after which the other steps are run."""
Clock = Callable[[], datetime]


def new_campaign(root: Path, target: BenchmarkTarget, wish: CampaignWish, *, now: datetime) -> CampaignFolder:
    """Plan a campaign and keep it; nothing of the target is changed.

    Args:
        root: The folder of all campaigns.
        target: One that may be measured.
        wish: What is asked for.
        now: When it begins.

    Raises:
        BenchmarkError: TARGET_UNUSABLE, PRESET_UNKNOWN, PLAN_REFUSED or RUNNER_MISSING.
    """
    target.check()
    space = target.space()
    plan = make_plan(wish, target.settings, target.kind, space)
    require_runners(plan)
    campaign = f"{wish.target}-{wish.preset}-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    folder = CampaignFolder(root, campaign)
    folder.create(CampaignRecord(campaign, plan, now, socket.gethostname(), space))
    return folder


def require_runners(plan: CampaignPlan) -> None:
    """Refuse a plan whose programs are not installed here. Raises BenchmarkError (RUNNER_MISSING)."""
    for runner in {step.load.runner for step in plan.steps}:
        if runner in PROGRAMS:
            PROGRAMS[runner].path()


def run_campaign(
    folder: CampaignFolder,
    target: BenchmarkTarget,
    *,
    clock: Clock,
    each: Callable[[StepRecord], None] | None = None,
    more: Callable[[Sequence[StepRecord]], bool] | None = None,
) -> None:
    """Run the steps that have not ended yet. A step whose runner fails is kept with its error, and the next one is run.

    After as many rounds as were asked for, further ones are run as long as `more` and the time of the target allow.

    Args:
        folder: Of the campaign.
        target: What it measures.
        clock: The time of day.
        each: Called with each step that ends.
        more: Whether further rounds are wanted after these steps of a phase; None: all that are planned.

    Raises:
        BenchmarkError: CAMPAIGN_CLOSED, TARGET_BUSY, TARGET_UNUSABLE, AREA_FOREIGN or LIMIT_REACHED.
    """
    record = folder.record()
    if folder.closed:
        raise CAMPAIGN_CLOSED(folder.id, "its data were removed from the target")
    with target_lock(folder.path.parent, target.name):
        area = target.area(folder.id)
        area.create()
        spent = sum(ended.seconds for ended in folder.steps())
        over: set[int] = set()
        for step in record.plan.steps:
            if folder.has(step) or step.phase in over:
                continue
            if not _goes_on(step, folder, record.plan, more, spent=spent, target=target):
                over.add(step.phase)
                continue
            target.check()
            ended = _run_step(step, folder, target, area, spent=spent, clock=clock)
            folder.store(ended)
            spent += ended.seconds
            if each is not None:
                each(ended)


def remove_data(folder: CampaignFolder, target: BenchmarkTarget) -> AreaRemoval:
    """Remove what the campaign's plan lists from the target, and nothing else; again, it changes nothing.

    Raises:
        BenchmarkError: TARGET_BUSY, TARGET_UNUSABLE or AREA_FOREIGN.
    """
    area = target.area(folder.id)
    removed = 0
    left: list[str] = []
    with target_lock(folder.path.parent, target.name):
        for load in folder.record().plan.datasets.values():
            removal = area.remove_files(load.names())
            removed += removal.removed
            left += removal.left
        left += [name for name in area.remove().left if name not in left]
        folder.close()
    return AreaRemoval(removed, tuple(left))


@contextmanager
def target_lock(root: Path, target: str) -> Iterator[None]:
    """One campaign measures a target at a time; the kernel ends the lock of a process that dies."""
    locks = root / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(locks / target, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TARGET_BUSY(target, "another campaign is measuring it") from None
        yield
    finally:
        os.close(descriptor)


def utc_now() -> datetime:
    """The clock of campaigns that are not tests."""
    return datetime.now(UTC)


def _goes_on(
    step: PlannedStep,
    folder: CampaignFolder,
    plan: CampaignPlan,
    more: Callable[[Sequence[StepRecord]], bool] | None,
    *,
    spent: float,
    target: BenchmarkTarget,
) -> bool:
    """Whether a step is to be run. Only at the beginning of a round that was not asked for it may not be."""
    own = [other for other in plan.steps if (other.phase, other.round) == (step.phase, step.round)]
    if step.round <= plan.wish.rounds or step != own[0]:
        return True
    before = [ended for ended in folder.steps() if ended.step.phase == step.phase]
    took = sum(ended.seconds for ended in before if ended.step.round == step.round - 1)
    if spent + took > min(_limit_s(target), 60 * (plan.wish.minutes or math.inf)):
        return False
    return more is None or step.round - 1 not in plan.looks or more(before)


def _limit_s(target: BenchmarkTarget) -> int:
    return target.settings.limits.minutes * 60


def _run_step(
    step: PlannedStep, folder: CampaignFolder, target: BenchmarkTarget, area: RunArea, *, spent: float, clock: Clock
) -> StepRecord:
    began_at, begin = clock(), time.monotonic()
    load_before, ticks = load_now(), CpuTicks.now()
    result = error = code = None
    limit_s = _limit_s(target)
    for load in step.load.loads:
        if load.access is LoadAccess.WRITE:
            # each round writes new files; overwriting is another thing
            area.remove_files(load.names())
    space = target.space()
    _require_room(step, target, space)
    if spent + step.load.seconds > limit_s:
        error, code = f"not run: the campaign took {spent:.0f} of {limit_s} s before", OVER_TIME
    else:
        ticks = CpuTicks.now()
        try:
            result = RUNNERS[step.load.runner].run(step.load, area, folder.scratch(step))
        except BenchmarkError as failure:
            if failure.code not in _OF_ONE_STEP:
                raise
            target.check()  # the runner fails where the target vanishes: then the campaign ends
            error, code = str(failure), failure.code
    noise = MachineNoise.between(ticks, CpuTicks.now(), load_before)
    return StepRecord(step, began_at, time.monotonic() - begin, noise, space, result, error, code)


def _require_room(step: PlannedStep, target: BenchmarkTarget, space: TargetSpace | None) -> None:
    limit = target.settings.limits.fill_percent
    if space is not None and step.bytes:
        level = 100 - 100 * (space.free - step.bytes) / space.total if space.total else 100.0
        if level > limit:
            what = f"step {step.load.name} would make it {level:.0f} % full, over its limit of {limit} %"
            raise LIMIT_REACHED(target.name, what)
