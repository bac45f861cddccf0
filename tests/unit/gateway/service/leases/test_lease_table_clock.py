"""Steps of the wall clock are noticed and move no deadline; numbers of leases go on even without the old state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from include.gateway.protocol import LeasePath
from include.gateway.service.leases.lease_table import Granted, LeaseTable, digest_of
from include.gateway.service.requests import Refused
from tests.fakes.gateway_service import ManualClock
from tests.fakes.refused import refused

REPOSITORY = "test.example.org"


def take(table: LeaseTable, path: str, **more: int) -> Granted:
    outcome = table.acquire(LeasePath(REPOSITORY, path), key_id="k", hostname="h", version=3, **more).result()
    assert isinstance(outcome, Granted)
    return outcome


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_step_is_logged_and_lengthens_no_lease_not_even_over_a_reboot(
    open_table: Callable[[], LeaseTable], clock: ManualClock, step_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = open_table()
    lease = take(table, "/a")
    clock.advance(10)
    assert table.notice_clock().result() is False
    clock.wall += step_s * 1000
    with caplog.at_level(logging.WARNING):
        assert table.notice_clock().result() is True
        assert table.notice_clock().result() is False
    assert [record.fields["step_s"] for record in caplog.records] == [step_s]  # type: ignore[attr-defined]
    row = table.valid(digest_of(lease.token))
    assert row is not None
    assert row.expires_ms == clock.wall + 90_000
    table.close()
    clock.boot, clock.monotonic = "boot-2", 5 * 10**9
    clock.wall += 1000
    table = open_table()
    row = table.valid(digest_of(lease.token))
    assert row is not None
    assert row.deadline_ns == clock.monotonic + 89 * 10**9


def test_a_clock_that_is_behind_what_was_written_gives_no_time_away(
    open_table: Callable[[], LeaseTable], clock: ManualClock
) -> None:
    table = open_table()
    take(table, "/early")
    clock.advance(30)
    lease = take(table, "/late")
    table.close()
    clock.boot, clock.monotonic = "boot-2", 0
    clock.wall -= 20_000
    table = open_table()
    left = {row.path: row.deadline_ns // 10**9 for row in table.listed()}
    assert left == {"/early": 70, "/late": 100}
    assert table.valid(digest_of(lease.token))


def test_a_gateway_without_the_old_state_gives_out_higher_numbers(clock: ManualClock, tmp_path: Path) -> None:
    epochs = []
    for name in ("one", "two"):
        table = LeaseTable(tmp_path / name / "state.db", clock=clock, max_lease_time_s=100)
        epochs += [take(table, f"/{number}").row.epoch for number in range(3)]
        table.close()
        clock.advance(1)
    assert epochs == sorted(set(epochs))


def test_a_key_holds_no_more_leases_than_it_may(open_table: Callable[[], LeaseTable]) -> None:
    table = open_table()
    for number in range(3):
        take(table, f"/{number}", most=3)
    with refused(Refused, reason="too many leases"):
        take(table, "/more", most=3)


def test_the_time_that_leases_are_held_is_known(open_table: Callable[[], LeaseTable], clock: ManualClock) -> None:
    table = open_table()
    assert table.mean_held_s(REPOSITORY) is None
    for seconds in (10, 20):
        lease = take(table, "/a")
        clock.advance(seconds)
        table.drop(digest_of(lease.token), lambda _: True).result()
    assert table.mean_held_s(REPOSITORY) == 12.0
    take(table, "/a/b")
    assert table.remaining_ns(LeasePath(REPOSITORY, "/a")) == 100 * 10**9
    assert table.remaining_ns(LeasePath(REPOSITORY, "/b")) == 0
