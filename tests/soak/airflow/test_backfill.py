"""`airflow backfill create`, the real command, on the slot's own DAG under the real scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from include.nightlies.rules.publication import Publication
from tests.e2e.deployment import Deployment
from tests.fakes.builds import Build, tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

DAG = "nightly_install_main"
DATES = ("2026-11-02", "2026-11-03", "2026-11-04")
WITHOUT_BUILD = "2026-11-05"
END_OF_DAY = "T23:59"  # a bare date is its midnight
MARKED_S = 60.0  # the scheduler marks a backfill as complete every 30 s, and allows one at a time


def run_of(date: str) -> str:
    """The run of a date: 02:00 in Zurich, in winter."""
    return f"backfill__{date}T01:00:00+00:00"


@dataclass
class Pass:
    """What one backfill did: states of its runs, and their publications, by date."""

    states: dict[str, str]
    publications: dict[str, Publication]
    revision: int


def backfill(deployment: Deployment, first: str, last: str, *more: str) -> None:
    asked = ("--dag-id", DAG, "--from-date", first, "--to-date", last)
    result = deployment.airflow("backfill", "create", *asked, *more)
    assert result.returncode == 0, result.stdout + result.stderr


def passed(deployment: Deployment, *dates: str) -> Pass:
    states = {date: deployment.follow(DAG, run_of(date)).state for date in dates}
    publications = {
        date: one for date in dates for one in deployment.publications(DAG, run_of(date)).values()
    }  # each build has one artifact
    return Pass(states, publications, deployment.revision())


@pytest.fixture(scope="module")
def first(deployment: Deployment) -> Pass:
    """Three dates, each with a build."""
    for date in DATES:
        content = {"lib/own.so": date.encode() * 100, "lib/common.so": b"every night" * 500}
        deployment.drop(Build(date).add("Gaudi", "x86_64", tree(content)))
    deployment.unpause_quietly(DAG)
    backfill(deployment, DATES[0], DATES[-1] + END_OF_DAY)
    return passed(deployment, *DATES)


@pytest.fixture(scope="module")
def again(deployment: Deployment, first: Pass) -> Pass:
    """The same dates again, and one that has no build."""
    path = "/backfills"
    deployment.wait_until(
        lambda: all(one["completed_at"] for one in deployment.rest("GET", path, params={"dag_id": DAG})["backfills"]),
        "the first backfill is complete",
        MARKED_S,
    )
    backfill(deployment, DATES[0], WITHOUT_BUILD + END_OF_DAY, "--reprocess-behavior", "completed")
    return passed(deployment, *DATES, WITHOUT_BUILD)


def test_three_dates_publish_three_builds(deployment: Deployment, first: Pass) -> None:
    assert first.states == dict.fromkeys(DATES, "success")
    assert {date: one.state.value for date, one in first.publications.items()} == dict.fromkeys(DATES, "published")
    repository = deployment.site.repository(first.publications[DATES[0]].repository)
    for date, one in first.publications.items():
        assert one.build_id == f"b{date.replace('-', '')}"
        assert repository.revision.read(f"{one.destination}/lib/own.so") == date.encode() * 100


def test_the_same_dates_again_are_unchanged_and_make_no_revision(first: Pass, again: Pass) -> None:
    assert {date: again.states[date] for date in DATES} == dict.fromkeys(DATES, "success")
    assert {date: one.state.value for date, one in again.publications.items()} == dict.fromkeys(DATES, "unchanged")
    assert {one.plan_try for one in again.publications.values()} == {2}
    assert again.revision == first.revision


def test_a_date_without_a_build_fails_and_says_which_index_is_missing(deployment: Deployment, again: Pass) -> None:
    assert again.states[WITHOUT_BUILD] == "failed"
    said = deployment.task_log(DAG, run_of(WITHOUT_BUILD), "find_build")
    assert f"slot main has no build for {WITHOUT_BUILD}: nothing at s3://builds/main/{WITHOUT_BUILD}/index.json" in said
    tries = {one["task_id"]: one["try_number"] for one in deployment.tasks(DAG, run_of(WITHOUT_BUILD))}
    assert tries["find_build"] == 1, "a build that is not there is not looked for again"
    assert deployment.problems() == ()
    assert deployment.leases() == []


def test_a_bare_to_date_is_its_midnight_and_misses_the_run_of_that_day(deployment: Deployment) -> None:
    dates = ("2026-11-15", "2026-11-16", "2026-11-17")
    asked = ("--dag-id", DAG, "--from-date", dates[0], "--to-date", dates[-1], "--dry-run")
    planned = deployment.airflow("backfill", "create", *asked).stdout
    assert [date for date in dates if f"{date} 01:00:00" in planned] == list(dates[:-1])
    assert "`--to-date` is its midnight" in deployment.rest("GET", f"/dags/{DAG}/details")["doc_md"]
