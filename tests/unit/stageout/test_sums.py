"""What a transfer that has ended adds to the daily sums; pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from include.stageout.sums import SumKey, TransferSums, sums_of

START = datetime(2026, 11, 23, 23, 0, tzinfo=UTC)


def ended(**fields):
    plain = {
        "owner": "ann", "workflow": "w", "source": "pisa", "destination": "bari", "state": "cleaned", "failure": None,
        "size": 7, "retries": 1, "created_at": START, "copied_at": START + timedelta(seconds=30),
        "moved_at": START + timedelta(hours=2),
    }  # fmt: skip
    return plain | fields


def test_a_complete_transfer_adds_its_size_retries_and_times_to_the_day_of_its_end():
    key, sums = sums_of(ended(failure="timeout"), START + timedelta(seconds=10), START + timedelta(seconds=40))
    assert key == SumKey(datetime(2026, 11, 24, tzinfo=UTC), "ann", "w", "pisa", "bari", "cleaned", None)
    assert sums == TransferSums(1, 7, 1, 10.0, 30.0, 40.0, 7200.0)
    assert sums.bytes_per_s == pytest.approx(7 / 20)


def test_a_failed_transfer_adds_nothing_for_what_it_did_not_reach():
    key, sums = sums_of(ended(state="failed", failure="quota", size=None, copied_at=None), None, None)
    assert (key.state, key.failure) == ("failed", "quota")
    assert sums == TransferSums(1, 0, 1, 0.0, 0.0, 0.0, 7200.0)
    assert sums.bytes_per_s is None


def test_clocks_zones_and_keys():
    local = START.astimezone(timezone(timedelta(hours=5)))
    key, sums = sums_of(ended(copied_at=START - timedelta(seconds=5), moved_at=local), None, None)
    assert sums.copied_s == 0.0, "a clock that differs makes no negative time"
    assert key.day == datetime(2026, 11, 23, tzinfo=UTC), "the day is that of UTC"
    others = [sums_of(ended(state="failed", failure=failure), None, None)[0] for failure in ("quota", "timeout")]
    assert len({key.digest, *(other.digest for other in others)}) == 3
