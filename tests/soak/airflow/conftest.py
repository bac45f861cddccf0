"""Drills on the whole deployment of tests/e2e, which show least that `make test` does not: `make soak PART=airflow`."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import deployment

__all__ = ["deployment"]
TIMEOUT_S = 600  # the first test of each file pays for what all of them look at


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))
