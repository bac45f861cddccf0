"""What keeps a run from beginning, and which keys of its conf are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.dag_runs import UNPAUSE, DagState, RunRefused, require_known_keys, why_no_such_date, why_not_startable
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("dag", "why"),
    [
        (DagState("d"), None),
        (DagState("d", paused=True), f"{UNPAUSE} d"),
        (DagState("d", paused=None), "has no DAG d"),
        (DagState("d", allowed=False, paused=True), "Your role may not start the DAG d."),
    ],
)
def test_a_dag_that_no_run_can_begin_of_is_named_with_the_reason(dag: DagState, why: str | None) -> None:
    found = why_not_startable(dag)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("at", "start", "why"),
    [
        (None, START, None),
        (NOW, START, None),
        (NOW + timedelta(minutes=4), START, None),
        (NOW + timedelta(minutes=6), START, "is in the future"),
        (NOW + timedelta(minutes=6), None, "is in the future"),
        (START, START, None),
        (START - timedelta(seconds=1), START, "is before the DAG's start date, 2026-01-01 00:00 UTC"),
        (START - timedelta(days=900), None, None),
    ],
)
def test_a_logical_date_at_which_no_task_begins_is_named(
    at: datetime | None, start: datetime | None, why: str | None
) -> None:
    found = why_no_such_date("d", at, now=NOW, start=start)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("dryrun", "(did you mean 'dry_run'?)"),
        ("Dry-Run", "(did you mean 'dry_run'?)"),
        ("projekts", "(did you mean 'projects'?)"),
        ("colour", "'colour'. It has: dry_run, projects"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(key: str, hint: str) -> None:
    with refused(RunRefused, unknown=(key,)) as caught:
        require_known_keys("d", ["projects", key], ["projects", "dry_run"])
    assert hint in str(caught.value)


def test_keys_of_airflow_and_of_our_own_passes_are_taken() -> None:
    require_known_keys("d", ["pass", "openlineage", "airflow/task_span_detail_level", "a"], ["a"])
    with refused(RunRefused, unknown=("dry_run",)):
        require_known_keys("leases", ["dry_run"], [])
