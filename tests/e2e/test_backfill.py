"""`airflow backfill create`, the real command, on the slot's own schedule; `make soak PART=airflow` runs backfills."""

from __future__ import annotations

import pytest

from tests.e2e.deployment import Deployment

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

DAG = "nightly_install_main"


def test_a_bare_to_date_is_its_midnight_and_misses_the_run_of_that_day(deployment: Deployment) -> None:
    dates = ("2026-11-15", "2026-11-16", "2026-11-17")
    asked = ("--dag-id", DAG, "--from-date", dates[0], "--to-date", dates[-1], "--dry-run")
    planned = deployment.airflow("backfill", "create", *asked).stdout
    assert [date for date in dates if f"{date} 01:00:00" in planned] == list(dates[:-1])
    assert "`--to-date` is its midnight" in deployment.rest("GET", f"/dags/{DAG}/details")["doc_md"]
