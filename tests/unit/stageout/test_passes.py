"""Passes of components: in turns, bounded, and none stopped by the failure of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

from include.fts.errors import FtsUnreachable
from include.stageout.passes import PassAccount, PassEnd, run_pass
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 23, tzinfo=UTC)


@dataclass(frozen=True)
class Report:
    rows: int = 0
    held: Mapping[str, int] = field(default_factory=dict)


def component(log: list[str], name: str, *rows: int, error: Exception | None = None) -> Callable[..., Report]:
    """Takes so many rows in each batch, and then fails with the error, or finds nothing."""
    left = list(rows)

    def batch(_: Any, *, now: Callable[[], datetime], limit: int) -> Report:
        assert (now(), limit) == (NOW, 10)
        log.append(name)
        if not left and error is not None:
            raise error
        return Report(left.pop(0) if left else 0, {"banned": 2})

    return batch


def run(components: Mapping[str, Any], left: Iterator[bool] | None = None, said: Any = None) -> PassAccount:
    times = repeat(True) if left is None else left
    told = [] if said is None else said
    return run_pass(
        None,  # type: ignore[arg-type]
        components,
        now=lambda: NOW,
        left=lambda: next(times),
        limit=10,
        say=lambda name, counts: told.append((name, counts)),
    )


def test_components_take_turns_until_nothing_is_due_for_any() -> None:
    log: list[str] = []
    said: list[Any] = []
    done = run({"one": component(log, "one", 3, 4), "two": component(log, "two", 5)}, said=said)
    assert log == ["one", "two", "one", "two", "one", "two"]
    assert done.ended is PassEnd.IDLE
    assert done.to_json() == {
        "ended": "nothing is due",
        "one": {"batches": 3, "rows": 7, "held: banned": 6},
        "two": {"batches": 3, "rows": 5, "held: banned": 6},
    }
    assert [name for name, _ in said] == ["one", "two", "one"], "what is only held is not due"
    done.require_sound()


def test_a_pass_ends_with_its_time_between_two_batches() -> None:
    log: list[str] = []
    done = run({"one": component(log, "one", *[1] * 99)}, left=iter([True, True, False]))
    assert (done.ended, log) == (PassEnd.TIME, ["one", "one"])


def test_a_component_that_fails_stops_no_other_and_fails_the_pass_in_the_end() -> None:
    log: list[str] = []
    fault = FtsUnreachable("away")
    done = run({"one": component(log, "one", 1, error=fault), "two": component(log, "two", 1, 1, 1)})
    assert log == ["one", "two", "one", "two", "two", "two"]
    assert done.to_json()["one"] == {"batches": 1, "rows": 1, "held: banned": 2, "fault": fault.code}
    with refused(FtsUnreachable):
        done.require_sound()
