"""A service that is slow or down delays no page: the last answer is shown, or that there is none yet."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from include.pages import asked
from include.pages.asked import FRESH_S, OLD_S, PATIENCE_S, SHARE, Answers
from include.storage.errors import StoreError

NOW = datetime(2026, 11, 21, tzinfo=UTC)


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


def test_an_answer_is_kept_for_a_while_and_then_asked_for_again() -> None:
    clock, calls = Clock(), list[int]()
    services = Answers(clock)

    def work() -> int:
        calls.append(1)
        return len(calls)

    assert [services.ask("q", work).value for _ in range(3)] == [1, 1, 1]
    clock.now += timedelta(seconds=FRESH_S)
    assert services.ask("q", work).value == 2
    assert services.ask("other", work).value == 3

    def refuses() -> str:
        raise StoreError("the store is away", key="")

    answer = services.ask("refused", refuses)
    assert (answer.value, answer.fault, answer.at) == (None, "the store is away", clock.now)


def test_a_service_that_hangs_is_asked_once_and_its_last_answer_stays() -> None:
    clock, hangs = Clock(), threading.Event()
    services = Answers(clock)
    assert services.ask("q", lambda: "before").value == "before"
    clock.now += timedelta(seconds=FRESH_S)
    calls = []

    def work() -> str:
        calls.append(1)
        assert hangs.wait(60)
        return "after"

    assert [services.ask("q", work).value for _ in range(3)] == ["before"] * 3
    assert calls == [1]
    assert services.ask("new", work).fault == "no answer yet"
    clock.now += timedelta(seconds=OLD_S)
    assert services.ask("q", work).fault == "no answer since 2026-11-21 00:00:00 UTC"
    hangs.set()


def test_counts_are_made_one_at_a_time_and_those_that_take_long_more_seldom() -> None:
    clock, counted, running = Clock(), list[int](), list[int]()
    counts = Answers(clock, workers=1, share=SHARE)
    took = timedelta(seconds=5)

    def count() -> int:
        running.append(1)
        assert len(running) == 1
        clock.now += took
        counted.append(1)
        running.clear()
        return len(counted)

    answers = counts.ask_all({"a": count, "b": count, "c": count})
    assert [answer.value for answer in answers] == [1, 2, 3]
    clock.now = NOW + took + SHARE * took - timedelta(seconds=1)
    assert counts.ask("a", count).value == 1, "the first is fresh for as long"
    assert counts.ask("a", count).fault is None
    assert len(counted) == 3


def test_a_page_does_not_wait_for_an_answer_that_takes_longer_than_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, hangs, waits = Clock(), threading.Event(), list[int]()
    counts = Answers(clock)

    def slow() -> str:
        clock.now += timedelta(seconds=2 * PATIENCE_S)
        return "before"

    assert counts.ask("q", slow).value == "before"
    clock.now += timedelta(seconds=FRESH_S)
    monkeypatch.setattr(asked, "wait", lambda running, timeout: waits.append(len(running)))
    assert counts.ask("q", lambda: str(hangs.wait(60))).value == "before"
    assert waits == []
    clock.now += timedelta(seconds=OLD_S)
    assert counts.ask("q", slow).fault == "no answer since 2026-11-21 00:00:00 UTC"
    assert waits == [1], "for one that is not shown any more"
    hangs.set()
