"""Counts are kept for some seconds, and longer where counting takes long."""

from __future__ import annotations

import pytest

from include.stageout.rest import remembered
from include.stageout.rest.remembered import KEPT_S, SHARE, RememberedCounts


class Ledger:
    """Counts how often it is counted, and takes its time."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now, self.counted, self.takes_s = 100.0, 0, takes_s

    def clock(self) -> float:
        return self.now

    def count(self) -> int:
        self.counted += 1
        self.now += self.takes_s
        return self.counted


def test_an_answer_is_kept_and_then_made_again() -> None:
    ledger = Ledger()
    ask = RememberedCounts(ledger.clock)
    assert [ask("all", ledger.count), ask("all", ledger.count), ask("other", ledger.count)] == [1, 1, 2]
    ledger.now += KEPT_S
    assert ask("all", ledger.count) == 3


def test_what_takes_long_is_kept_for_longer() -> None:
    ledger = Ledger(takes_s=5.0)
    ask = RememberedCounts(ledger.clock)
    ask("all", ledger.count)
    ledger.now += 5.0 * SHARE - 1
    assert ask("all", ledger.count) == 1
    ledger.now += 1
    assert ask("all", ledger.count) == 2


def test_the_question_that_was_asked_least_lately_is_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 2)
    ledger = Ledger()
    ask = RememberedCounts(ledger.clock)
    for question in ("a", "b", "a", "c"):
        ask(question, ledger.count)
    assert (ask("a", ledger.count), ask("b", ledger.count)) == (1, 4)


def test_what_failed_is_asked_again() -> None:
    ask = RememberedCounts()
    with pytest.raises(ZeroDivisionError):
        ask("all", lambda: 1 // 0)
    assert ask("all", lambda: 7) == 7
