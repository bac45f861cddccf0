"""The main job as `make nightly` runs it, on a few projects: a night, the same night again, and the next one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

import pytest

from include.cli.airflow_connections import Snapshot
from include.storage.store import ObjectMeta
from lab.night import NightReport, Viewer, Wishes, run_night
from tests.e2e.deployment import Deployment

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

SLOT = "machine"
DAY = date(2026, 11, 16)
PROJECTS, PLATFORMS = 2, 2


@dataclass(frozen=True)
class Night:
    """The report of a run, and how many tasks were seen at once."""

    report: NightReport
    busy: int


def run(deployment: Deployment, day: date) -> Night:
    seen: list[Snapshot] = []
    viewer = Viewer(say=print, packed=print, run=seen.append)
    report = run_night(deployment.lab, deployment.settings, deployment.secrets, Wishes(SLOT, day), viewer)
    return Night(report, max(one.busy for one in seen))


@pytest.fixture(scope="module")
def first(deployment: Deployment) -> Night:
    return run(deployment, DAY)


def test_every_artifact_is_published_and_the_check_is_silent(first: Night) -> None:
    night = first.report
    assert night.good, (night.problems, [line.reason for line in night.lines])
    assert night.published == night.expected == PROJECTS * PLATFORMS
    assert night.total("files") > 100
    assert night.total("objects_new") > 100


def test_platforms_differ_in_bytes(first: Night) -> None:
    sizes = {line.platform: 0 for line in first.report.lines}
    for line in first.report.lines:
        sizes[line.platform] += line.bytes
    assert len(set(sizes.values())) == PLATFORMS


def test_at_least_three_tasks_run_at_once(first: Night) -> None:
    assert first.busy >= 3


def test_the_same_night_again_is_unchanged_and_makes_no_revision(deployment: Deployment, first: Night) -> None:
    again = run(deployment, DAY).report
    assert again.good
    assert again.unchanged == again.expected
    assert (again.revision, again.root_hash) == (first.report.revision, first.report.root_hash)
    assert deployment.leases() == []


def test_the_next_night_uploads_only_what_changed(deployment: Deployment, first: Night) -> None:
    following = run(deployment, DAY + timedelta(days=1)).report
    assert following.good
    assert following.published == following.expected
    assert 0 < following.total("objects_new") < 0.3 * first.report.total("objects_new")
    assert following.total("objects_reused") > 0.7 * first.report.total("objects_new")
    assert deployment.leases() == []


def test_a_command_installs_a_build_and_ends_with_the_exit_code_of_its_night(
    deployment: Deployment, first: Night
) -> None:
    before = deployment.site.repository(first.report.repository).manifest.revision
    done = deployment.run("nightly", "install", "--slot", SLOT, "--date", DAY.isoformat(), "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "success" in done.stdout
    assert deployment.site.repository(first.report.repository).manifest.revision == before
    absent = deployment.run("nightly", "install", "--slot", SLOT, "--date", "2026-02-01", "--wait")
    assert absent.returncode == 1, absent.stdout
    assert "failed" in absent.stdout


def test_the_demonstration_leaves_the_slot_of_a_build_system_alone(deployment: Deployment) -> None:
    def kept() -> list[ObjectMeta]:
        return sorted(deployment.site.store("builds").list("early"), key=lambda found: found.key)

    before = kept()
    done = deployment.run("nightly", "run", "--slot", "early", "--date", DAY.isoformat())
    assert done.returncode == 1
    assert "nightshift nightly install --slot early" in done.stderr
    assert kept() == before
