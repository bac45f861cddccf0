"""What was seen is judged: clocks, room, leases, pools, and when to look."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from include.gateway.client.values import LeaseInfo
from include.preflight.findings import Severity
from include.preflight.gateways import judged_lease
from include.preflight.pools import judged_pools
from include.preflight.schedule import FALLBACK, hour_before_first
from include.preflight.stores import judged_skew, judged_space
from include.settings.pools import Pool

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("seconds", "severity"),
    [(0.9, Severity.OK), (-4.9, Severity.OK), (5, Severity.WARNING), (-299, Severity.WARNING), (300, Severity.ERROR)],
)
def test_clocks_may_differ_by_seconds_and_not_by_minutes(seconds: float, severity: Severity) -> None:
    found = judged_skew("store s", seconds)
    assert found.severity is severity
    assert ("NTP" in found.cure) is (severity is not Severity.OK)


@pytest.mark.parametrize(
    ("free", "severity"), [(200 * GIB, Severity.OK), (50 * GIB, Severity.WARNING), (GIB, Severity.ERROR)]
)
def test_room_is_needed(free: int, severity: Severity) -> None:
    assert judged_space("var", free, 1000 * GIB).severity is severity


def test_a_lease_is_told_with_whose_it_is_and_when_it_was_renewed() -> None:
    ours = LeaseInfo("r.example.org", "/a", "key", NOW + timedelta(seconds=20), "night/run-1/publish try 1")
    assert "a task of ours" in judged_lease(ours, NOW, 120).seen
    assert "100 s ago" in judged_lease(ours, NOW, 120).seen
    other = LeaseInfo("r.example.org", "/a", "key", NOW + timedelta(seconds=500), "somebody")
    assert "somebody else, 'somebody' with key key, renewed about 0 s ago" in judged_lease(other, NOW, 120).seen


def test_pools_that_are_missing_or_small_are_named() -> None:
    wanted = [Pool(name, 4, "") for name in ("prepare", "publish", "control", "more")]
    found = list(judged_pools(wanted, {"prepare": 4, "publish": 3, "control": 0}))
    assert [one.severity for one in found] == [Severity.OK, Severity.WARNING, Severity.ERROR, Severity.ERROR]
    assert all(one.cure for one in found[1:])


def slots(*schedules: str | None) -> Any:
    return [SimpleNamespace(schedule=one, timezone="Europe/Zurich") for one in schedules]


@pytest.mark.parametrize(
    ("schedules", "when"),
    [
        ((None, "0 2 * * *", "30 22 * * 1-5"), ("30 21 * * *", "Europe/Zurich")),
        (("15 0 * * *", "0 6 * * *"), ("15 23 * * *", "Europe/Zurich")),
        (("*/5 * * * *",), FALLBACK),
        ((None,), None),
        ((), None),
    ],
)
def test_it_is_looked_an_hour_before_the_first_slot(schedules: tuple[str | None, ...], when: object) -> None:
    assert hour_before_first(slots(*schedules)) == when
