"""Who asks too much is told when to come again; who waits for a path is told where he stands."""

from __future__ import annotations

import pytest

from include.gateway.paths import LeasePath
from include.gateway.service.limits import Limiter, Limits, Rate
from include.gateway.service.replies import Malformed
from include.gateway.service.waiting import PATIENCE_S, WaitingList

REPOSITORY = "test.example.org"


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def test_a_burst_is_let_through_and_the_rest_at_the_rate(time: Time) -> None:
    hit: list[str] = []
    limiter = Limiter(Limits(per_key=Rate(10, 3)), time, hit.append)
    for _ in range(3):
        limiter.signed("k")
    with pytest.raises(Malformed) as refused:
        limiter.signed("k")
    assert (refused.value.status, refused.value.headers, hit) == (429, {"Retry-After": "1"}, ["key"])
    limiter.signed("another key")
    time.now += 0.1
    limiter.signed("k")


def test_who_guesses_signatures_is_held_off_and_nobody_else(time: Time) -> None:
    limiter = Limiter(Limits(refused=Rate(1, 5)), time, lambda _: None)
    for _ in range(5):
        limiter.request("10.0.0.1")
        limiter.refused("10.0.0.1")
    with pytest.raises(Malformed):
        limiter.request("10.0.0.1")
    limiter.request("10.0.0.2")
    time.now += 1
    limiter.request("10.0.0.1")


def waiting(time: Time, mean_s: float | None = None) -> WaitingList:
    return WaitingList(time, 100.0, lambda _: mean_s)


def at(path: str, repository: str = REPOSITORY) -> LeasePath:
    return LeasePath(repository, path)


def test_first_come_is_first_in_line_and_keeps_the_place_while_he_comes_again(time: Time) -> None:
    line = waiting(time, 4.0)
    first = line.refused(at("/a"), "k", "one", 60.0)
    assert (first.position, first.waiting, first.expected_s) == (1, 1, 4.0)
    time.now += 5
    second = line.refused(at("/a/b"), "k", "two", 2.0)
    assert (second.position, second.waiting, second.expected_s) == (2, 2, 6.0)
    assert line.refused(at("/z"), "k", "two", 1.0).position == 1, "another path is another line"
    assert line.refused(at("/a", "other.example.org"), "k", "two", 1.0).position == 1
    time.now += PATIENCE_S - 10
    again = line.refused(at("/a"), "k", "one", 1.0)
    assert (again.position, again.waited_s) == (1, PATIENCE_S - 5)


def test_who_got_it_or_comes_no_more_leaves_the_line(time: Time) -> None:
    line = waiting(time)
    line.refused(at("/a"), "k", "one", 60.0)
    line.refused(at("/a"), "k", "two", 60.0)
    line.granted(at("/a"), "k", "one")
    assert line.refused(at("/a"), "k", "two", 30.0).position == 1
    assert [(place.waiter.hostname, place.expected_s) for place in line.places(lambda _: 30.0)] == [("two", 30.0)]
    time.now += PATIENCE_S + 1
    assert len(line) == 0
