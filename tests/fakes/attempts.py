"""Tries of tasks, for tests that call the steps of a run themselves."""

from __future__ import annotations

from datetime import UTC, datetime

from include.nightlies.steps.values import Attempt, Clock


def _now() -> datetime:
    return datetime.now(UTC)


def attempt(
    run: str = "night/run", *, holder: str = "test", number: int = 1, clock: Clock = _now, last: bool = True,
    outlast: bool = False,
) -> Attempt:  # fmt: skip
    """A try of a task of this run; the last one, unless it is said otherwise."""
    return Attempt(run, holder, number, clock, last, outlast)
