"""What the benchmarks of nights make of times, and of where a link led."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from include.nightlies.rules.publication import Publication
from include.nightlies.rules.states import Phase, State

BENCH = Path(__file__).parents[3] / "bench"
BEGAN = datetime(2026, 11, 21, 2, tzinfo=UTC)
PUBLICATION = Publication(
    **dict.fromkeys((name for name in Publication.__dataclass_fields__), None)  # type: ignore[arg-type]
    | {"id": 1, "state": State.PUBLISHED, "phase": Phase.PUBLISH, "seconds": {"prepare": 2.0, "commit": 1.0}}
    | {"ended_at": BEGAN + timedelta(seconds=20)}
)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    from nights import times

    return times


def test_each_second_outside_is_told_once_and_by_the_task_that_ran(times: ModuleType) -> None:
    ran = times.Ran
    tasks = [ran("plan", 1, 3), ran("links", 2, 4), ran("artifact.prepare", 5, 10), ran("verify", 12, 13)]
    assert times.attributed([(6, 9), (7, 10)], tasks, (0, 14)) == {
        "links": 2, "plan": 1, "verify": 1, "artifact.prepare": 1, "between tasks": 5,
    }  # fmt: skip


def test_an_artifact_is_worked_on_when_the_ledger_says_so(times: ModuleType) -> None:
    at = BEGAN.timestamp()
    assert times.preparing([PUBLICATION], {1: BEGAN}) == [(at, at + 2)]
    assert times.publishing([PUBLICATION]) == [(at + 19, at + 20)]
    assert times.publishing([replace(PUBLICATION, ended_at=None)]) == []
    assert times.covered([(1, 3), (2, 4), (6, 7)]) == 4
    assert times.at_once([(1, 3), (2, 4)], [0, 2, 3, 9]) == [0, 2, 1, 0]


def test_latest_that_moves_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from backfill import Latest

    lab: Any = None
    latest = Latest(lab)
    for build in ("b20261118", "b20261118", "b20261120", "b20261119", "b20261121"):
        latest.note(build)
    assert latest.samples == 5
    assert latest.seen == ["b20261118", "b20261120", "b20261119", "b20261121"]
    assert latest.wrong == ["from b20261120 back to b20261119"]
