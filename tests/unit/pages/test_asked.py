"""A service that is slow or down delays no page: the last answer is shown, or that there is none yet."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from include.pages.asked import FRESH_S, OLD_S, Answers
from include.storage.errors import StoreError

NOW = datetime(2026, 11, 21, tzinfo=UTC)


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


def test_an_answer_is_kept_for_a_while_and_then_asked_for_again() -> None:
    clock, asked = Clock(), list[int]()
    services = Answers(clock)

    def work() -> int:
        asked.append(1)
        return len(asked)

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
    asked = []

    def work() -> str:
        asked.append(1)
        assert hangs.wait(60)
        return "after"

    assert [services.ask("q", work).value for _ in range(3)] == ["before"] * 3
    assert asked == [1]
    assert services.ask("new", work).fault == "no answer yet"
    clock.now += timedelta(seconds=OLD_S)
    assert services.ask("q", work).fault == "no answer since 2026-11-21 00:00:00 UTC"
    hangs.set()
