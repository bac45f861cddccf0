"""The main job as `make nightly` runs it, on a few projects: a night, the same night again, and the next one."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta

import pytest

from include.lab.follow import Snapshot
from include.lab.night import Viewer, Wishes, run_night
from include.lab.report import NightReport
from tests.e2e.deployment import Deployment

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

SLOT = "machine"
DAY = date(2026, 11, 16)
PROJECTS, PLATFORMS = 3, 2


@dataclass
class Nights:
    """Reports in the order of their runs, and how many tasks were seen at once."""

    reports: list[NightReport] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def run(self, deployment: Deployment, day: date) -> None:
        seen: list[Snapshot] = []
        viewer = Viewer(say=self.said.append, packed=self.said.append, run=seen.append)
        wishes = Wishes(SLOT, day)
        self.reports.append(run_night(deployment.lab, deployment.site, deployment.secrets, wishes, viewer))
        self.busy.append(max(one.busy for one in seen))


@pytest.fixture(scope="module")
def nights(deployment: Deployment) -> Nights:
    """A date, the same date, the next date."""
    done = Nights()
    for day in (DAY, DAY, DAY + timedelta(days=1)):
        done.run(deployment, day)
    return done


def test_every_artifact_is_published_and_the_check_is_silent(nights: Nights) -> None:
    first = nights.reports[0]
    assert first.good, (first.problems, [line.reason for line in first.lines])
    assert first.published == first.expected == PROJECTS * PLATFORMS
    assert first.total("files") > 100
    assert first.total("objects_new") > 100


def test_platforms_differ_in_bytes(nights: Nights) -> None:
    sizes = {line.platform: 0 for line in nights.reports[0].lines}
    for line in nights.reports[0].lines:
        sizes[line.platform] += line.bytes
    assert len(set(sizes.values())) == PLATFORMS


def test_at_least_three_tasks_run_at_once(nights: Nights) -> None:
    assert nights.busy[0] >= 3


def test_the_same_night_again_is_unchanged_and_makes_no_revision(nights: Nights) -> None:
    first, again = nights.reports[:2]
    assert again.good
    assert again.unchanged == again.expected
    assert (again.revision, again.root_hash) == (first.revision, first.root_hash)


def test_the_next_night_uploads_only_what_changed(nights: Nights) -> None:
    first, following = nights.reports[0], nights.reports[2]
    assert following.good
    assert following.published == following.expected
    assert 0 < following.total("objects_new") < 0.3 * first.total("objects_new")
    assert following.total("objects_reused") > 0.7 * first.total("objects_new")


def test_nothing_stays_leased(deployment: Deployment, nights: Nights) -> None:
    assert nights.reports
    assert deployment.leases() == []
