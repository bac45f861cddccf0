"""A runner that measures what a test says, in the place of fio."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.benchmarking import MeasuringRunner


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MeasuringRunner]:
    return lambda runner=None: (runner or MeasuringRunner()).put(monkeypatch)
