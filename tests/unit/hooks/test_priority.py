"""Tonight's tasks go before those of a backfill, whatever their slots' priorities."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hooks.priority import NightFirst
from include.settings.model import Slot


def weight(run_id: str, priority: int) -> int:
    ti: Any = SimpleNamespace(run_id=run_id, task=SimpleNamespace(priority_weight=priority))
    return NightFirst().get_weight(ti)


def test_every_night_goes_before_every_backfill() -> None:
    (limit,) = [one.le for one in Slot.model_fields["priority"].metadata if hasattr(one, "le")]
    for run_id in ("scheduled__1", "manual__1", "night__2026-11-21__pass2"):
        assert weight(run_id, 1) > weight("backfill__1", limit)


def test_among_alike_the_priority_of_the_slot_counts() -> None:
    assert weight("scheduled__1", 20) > weight("scheduled__2", 10)
    assert weight("backfill__1", 20) > weight("backfill__2", 10)
