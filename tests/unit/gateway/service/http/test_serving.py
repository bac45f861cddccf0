"""A client above its rate learns when to come again; one that waits for a path learns its place."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from include.gateway.protocol import LeasePath, overlap
from include.gateway.service.config import Limiter, Rate, RateLimits
from include.gateway.service.http.serving import PATIENCE_S, WaitingList
from include.gateway.service.requests import Malformed

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
    limiter = Limiter(RateLimits(per_key=Rate(10, 3)), time, hit.append)
    for _ in range(3):
        limiter.signed("k")
    with pytest.raises(Malformed) as refused:
        limiter.signed("k")
    assert (refused.value.status, refused.value.headers, hit) == (429, {"Retry-After": "1"}, ["key"])
    limiter.signed("another key")
    time.now += 0.1
    limiter.signed("k")


def test_a_client_that_guesses_signatures_is_held_off_and_no_other(time: Time) -> None:
    limiter = Limiter(RateLimits(refused=Rate(1, 5)), time, lambda _: None)
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


def test_the_first_is_first_in_line_and_keeps_its_place_while_it_asks_again(time: Time) -> None:
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


def test_a_waiter_that_got_its_lease_or_no_longer_asks_leaves_the_line(time: Time) -> None:
    line = waiting(time)
    line.refused(at("/a"), "k", "one", 60.0)
    line.refused(at("/a"), "k", "two", 60.0)
    line.granted(at("/a"), "k", "one")
    assert line.refused(at("/a"), "k", "two", 30.0).position == 1
    assert [(place.waiter.hostname, place.expected_s) for place in line.places(lambda _: 30.0)] == [("two", 30.0)]
    time.now += PATIENCE_S + 1
    assert len(line) == 0


PATHS = st.lists(st.sampled_from(["a", "b", "a-", "a0", "é"]), max_size=3).map(
    lambda parts: "".join(f"/{one}" for one in parts)
)


@given(
    st.lists(
        st.tuples(st.sampled_from([REPOSITORY, "other.example.org"]), PATHS, st.integers(0, 2), st.integers(0, 3)),
        max_size=int(PATIENCE_S // 3),  # all within the patience of the first
    )
)
def test_places_are_those_among_all_that_overlap(calls: list[tuple[str, str, int, int]]) -> None:
    time = Time()
    line, since = waiting(time), dict[tuple[str, str, str], float]()
    for repository, path, who, seconds in calls:
        time.now += seconds
        key = (repository, path, str(who))
        if who == 2 and (repository, path, "1") in since:
            line.granted(at(path, repository), "k", "1")
            del since[repository, path, "1"]
        since.setdefault(key, time.now)
        refused = line.refused(at(path, repository), "k", str(who), 1.0)
        beside = [at_s for (name, other, _), at_s in since.items() if name == repository and overlap(path, other)]
        assert (refused.position, refused.waiting) == (1 + sum(at_s < since[key] for at_s in beside), len(beside))
    places = line.places(lambda _: 1.0)
    assert [place.waiter.since_s for place in places] == sorted(since.values())
    for place in places:
        path = place.waiter.path
        again = line.refused(path, "k", place.waiter.hostname, 1.0)
        assert (place.position, place.waiting) == (again.position, again.waiting)


def test_a_refusal_meanwhile_waits_for_no_list(time: Time) -> None:
    line, asked = waiting(time), list[LeasePath]()
    for number in range(20):
        line.refused(at(f"/{number % 4}"), "k", str(number), 1.0)

    def remaining_s(path: LeasePath) -> float:
        assert line._lock.acquire(blocking=False), "the list is made beside those who are refused"
        line._lock.release()
        asked.append(path)
        return 1.0

    assert len(line.places(remaining_s)) == 20
    assert len(asked) == 4, "each path is looked up once"
