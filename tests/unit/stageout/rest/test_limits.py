"""A user's calls are limited; those of others are not touched by that."""

from __future__ import annotations

import pytest

from include.stageout.rest.limits import BURST, CALLS_PER_S, UserCalls
from include.stageout.rest.questions import TOO_MANY_CALLS
from tests.fakes.refused import refused


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_burst_is_taken_and_then_the_rate_counts(clock: Clock) -> None:
    calls = UserCalls(clock)
    for _ in range(int(BURST)):
        calls.take("ann")
    for _ in range(100):  # none of them delays the next one
        with refused(TOO_MANY_CALLS):
            calls.take("ann")
    calls.take("bob")
    clock.now += 1.0
    for _ in range(int(CALLS_PER_S)):
        calls.take("ann")
    with refused(TOO_MANY_CALLS):
        calls.take("ann")


def test_users_are_forgotten_when_there_are_too_many(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.stageout.rest.limits._MOST_USERS", 3)
    calls = UserCalls(clock)
    for number in range(1000):
        clock.now += 10
        calls.take(f"user{number}")
    assert len(calls._left) <= 4
