"""A runner that measures what a test says, in the place of fio."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.benchmarks.measure import choose
from include.benchmarks.measure.choose import RUNNERS
from include.benchmarks.measure.loads import RunnerKind
from tests.fakes.benchmarking import MeasuringRunner


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MeasuringRunner]:
    """Puts a runner into the place of fio, which does not have to be installed."""
    monkeypatch.delitem(choose.PROGRAMS, RunnerKind.FIO)

    def put(runner: MeasuringRunner | None = None) -> MeasuringRunner:
        runner = runner or MeasuringRunner()
        monkeypatch.setitem(RUNNERS, RunnerKind.FIO, runner)
        return runner

    return put
