"""Tonight's tasks go before those of a backfill, whatever their slots' priorities."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from hooks.priority import NightFirst
from hooks.shares import NICENESS, give_way, task_instance_mutation_hook
from include.settings.model import Slot


def weight(run_id: str, priority: int) -> int:
    ti: Any = SimpleNamespace(run_id=run_id, task=SimpleNamespace(priority_weight=priority))
    return NightFirst().get_weight(ti)


def test_every_night_goes_before_every_backfill_and_among_alike_the_priority_of_the_slot_counts() -> None:
    (limit,) = [one.le for one in Slot.model_fields["priority"].metadata if hasattr(one, "le")]
    for run_id in ("scheduled__1", "manual__1", "night__2026-11-21__pass2"):
        assert weight(run_id, 1) > weight("backfill__1", limit)
    for kind in ("scheduled", "backfill"):
        assert weight(f"{kind}__1", 20) > weight(f"{kind}__2", 10)


@pytest.mark.parametrize(
    ("run_id", "pool", "taken"),
    [
        ("backfill__2026-11-02", "prepare", "backfill"),
        ("backfill__2026-11-02", "control", "backfill"),
        ("backfill__2026-11-02", "somebody_elses", "somebody_elses"),
        ("night__2026-11-21__pass2", "prepare", "prepare"),
        ("scheduled__1", "publish", "publish"),
        (None, "publish", "publish"),
    ],
)
def test_only_backfills_are_moved_to_their_own_pool(run_id: str | None, pool: str, taken: str) -> None:
    ti: Any = SimpleNamespace(run_id=run_id, dag_id="nightly_install", pool=pool, queue="default")
    task_instance_mutation_hook(ti, dag_run=None)
    assert ti.pool == taken


@pytest.mark.parametrize(
    ("dag_id", "pool", "given", "taken"),
    [
        ("nightly_install_main", "prepare", "default", "publish"),
        ("nightly_install_main", "control", "default", "default"),
        ("somebody_s_own", "publish", "default", "publish"),
        ("somebody_s_own", "publish", "chosen", "chosen"),
        ("nightly_gc", "publish", "default", "gateway-host"),
        ("rollback", "publish", "default", "gateway-host"),
        ("intervene", "control", "default", "gateway-host"),
        ("leases", "control", "default", "gateway-host"),
        ("preflight", "control", "default", "gateway-host"),
        ("storage_benchmark", "default_pool", "default", "benchmark"),
        ("federation_benchmark", "default_pool", "default", "benchmark"),
        ("stage_out_submit", "stageout", "default", "transfer"),
    ],
)
def test_a_task_is_put_into_the_queue_of_what_it_needs(dag_id: str, pool: str, given: str, taken: str) -> None:
    ti: Any = SimpleNamespace(run_id="scheduled__1", dag_id=dag_id, pool=pool, queue=given)
    task_instance_mutation_hook(ti, dag_run=None)
    assert ti.queue == taken


@pytest.mark.parametrize(
    ("run_id", "steps_back"), [("backfill__1", True), ("scheduled__1", False), ("manual__1", False)]
)
def test_on_its_machine_a_backfill_steps_back_for_all_others(run_id: str, steps_back: bool) -> None:
    def niceness() -> tuple[int, int]:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        give_way(run_id)
        return before, os.getpriority(os.PRIO_PROCESS, 0)

    with ThreadPoolExecutor(1) as thread:  # it is the thread that steps back
        before, after = thread.submit(niceness).result()
    assert after == (max(before, NICENESS) if steps_back else before)
