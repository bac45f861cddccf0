"""A night, a run by hand and a backfill of one date and slot at the same time: they neither collide nor starve."""

from __future__ import annotations

import pytest

from include.cli.airflow_connections import Snapshot
from include.nightlies.rules.publication import Publication
from include.settings.scheduling import BACKFILL, NIGHTLY
from tests.e2e.deployment import FQRN, Deployment
from tests.fakes.builds import Build, tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

DAG, BY_HAND = "nightly_install_main", "nightly_install"
DATE = "2026-11-09"
RUN_S = 400.0  # one slot of a backfill, beside two other runs
MARKED_S = 60.0  # the scheduler marks a backfill as complete every 30 s, and allows one at a time
PROJECTS = ("Boole", "Brunel", "DaVinci", "Gaudi")
RUNS = {
    "night": (DAG, f"night__{DATE}__1"),
    "hand": (BY_HAND, f"manual__{DATE}"),
    "backfill": (DAG, f"backfill__{DATE}T01:00:00+00:00"),  # 02:00 in Zurich, in winter
}


@pytest.fixture(scope="module")
def ended(deployment: Deployment) -> dict[str, Snapshot]:
    """All three, begun before any of them can have ended."""
    build = Build(DATE)
    for project in PROJECTS:
        build.add(project, "x86_64", tree({"lib.so": project.encode() * 500}))
    deployment.drop(build)
    deployment.unpause_quietly(DAG)
    path = "/backfills"
    deployment.wait_until(
        lambda: all(one["completed_at"] for one in deployment.rest("GET", path, params={"dag_id": DAG})["backfills"]),
        "backfills of other tests are complete",
        MARKED_S,
    )
    asked = ("--dag-id", DAG, "--from-date", DATE, "--to-date", f"{DATE}T23:59")
    result = deployment.airflow("backfill", "create", *asked)
    assert result.returncode == 0, result.stdout + result.stderr
    deployment.trigger(*RUNS["night"], build_date=DATE)
    deployment.trigger(*RUNS["hand"], build_date=DATE, slot="main")
    return {name: deployment.follow(*run, timeout_s=RUN_S) for name, run in RUNS.items()}


def publications(deployment: Deployment) -> list[Publication]:
    return [one for run in RUNS.values() for one in deployment.publications(*run).values()]


def test_each_of_them_comes_to_its_end(ended: dict[str, Snapshot]) -> None:
    assert {name: run.state for name, run in ended.items()} == dict.fromkeys(RUNS, "success")


def test_each_artifact_is_written_once_and_found_by_the_others(deployment: Deployment, ended: object) -> None:
    done = publications(deployment)
    assert len(done) == len(RUNS) * len(PROJECTS)
    assert all(one.state.good for one in done)
    assert sorted(str(one.project) for one in done if one.state.value == "published") == sorted(PROJECTS)
    revisions = [one.revision_after for one in done if one.state.value == "published"]
    assert all(revision is not None for revision in revisions)
    repository = deployment.site.repository(FQRN)
    for project in PROJECTS:
        assert (
            repository.revision.read(f"{Build(DATE).destination(project, 'x86_64')}/lib.so") == project.encode() * 500
        )
    assert deployment.problems() == ()
    assert deployment.leases() == []


def test_the_backfill_took_no_slot_of_the_others(deployment: Deployment, ended: object) -> None:
    pools = {name: {one["pool"] for one in deployment.tasks(*run)} for name, run in RUNS.items()}
    assert pools["backfill"] == {BACKFILL}
    assert pools["night"] == pools["hand"] == NIGHTLY - {"collect"}  # no night of theirs removes anything
