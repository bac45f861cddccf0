"""A lease table with a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.gateway.service.leases.lease_table import LeaseTable
from tests.fakes.gateway_service import ManualClock

LEASE_TIME_S = 100.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_table(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[[], LeaseTable]]:
    """Opens the one state file; what is open at the end of the test is closed."""
    tables: list[LeaseTable] = []

    def open_() -> LeaseTable:
        tables.append(LeaseTable(tmp_path / "gateway" / "state.db", clock=clock, max_lease_time_s=LEASE_TIME_S))
        return tables[-1]

    yield open_
    for table in tables:
        if table.is_open:
            table.close()


@pytest.fixture
def table(open_table: Callable[[], LeaseTable]) -> LeaseTable:
    return open_table()
