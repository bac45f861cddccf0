"""The pages over a real ledger: a repository in a folder, one slot, and the login that Airflow would give."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import Depends
from fastapi.testclient import TestClient

from include.cli.repository.open import open_site as of_environment
from include.dag_runs import DagState
from include.nightlies.records import builds, publications as records
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Figures, Move, Phase, Planned, PublicationKey, State
from include.pages.app import create_app
from include.pages.asked import AskDag
from include.site.site import Site
from include.stageout.rest.questions import StageoutUser
from tests.fakes.site import FQRN
from tests.fakes.transfers_site import OPERATOR, stageout_user
from tests.integration.cli.conftest import Commands, repo

__all__ = ["repo"]
DAY = date(2026, 11, 21)
NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)
RUN = "nightly_install_main/scheduled__2026-11-21T02:00:00+00:00"
HOSTILE = "<script>alert('x')</script>\"'"


@pytest.fixture
def site(repo: Commands, tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "site.yaml"
    file.write_text(
        f"{file.read_text()}\nslots:\n  main: {{repository: {FQRN}, store: files, schedule: '0 2 * * *', "
        "links: {folder: '/nightlies/{slot}'}}\n"
        f"  other: {{repository: {FQRN}, store: files}}\n"
    )
    found = of_environment()
    yield found
    found.ledger.dispose()


PAUSED: set[str] = set()
"""The DAGs that Airflow would have paused."""


def dags(user: Annotated[StageoutUser, Depends(stageout_user)]) -> AskDag:
    """As the plugin's dependency: operators may start runs."""
    return lambda dag_id: DagState(dag_id, user.operator, dag_id in PAUSED if user.operator else None)


@pytest.fixture(autouse=True)
def _nothing_is_paused() -> None:
    PAUSED.clear()


@pytest.fixture
def anybody(site: Site) -> TestClient:
    """A client without a login."""
    return TestClient(create_app(stageout_user, lambda: site, dags), base_url="http://127.0.0.1")


@pytest.fixture
def client(anybody: TestClient) -> TestClient:
    """A client with a login."""
    anybody.headers["authorization"] = f"Bearer {OPERATOR}"
    return anybody


class Night:
    """A night in the ledger, as runs would have recorded it."""

    def __init__(self, site: Site, slot: str = "main", day: date = DAY) -> None:
        self.site = site
        self.slot = slot
        self.day = day

    def listed(self, *names: str, complete: bool = True) -> None:
        """Its index lists these, each `project/platform`."""
        found = [
            Artifact(project, platform, f"https://builds.example.org/{number}.tar", 1000 + number, "a" * 64)
            for number, (project, platform) in enumerate(name.split("/") for name in names)
        ]
        index = BuildIndex(self.slot, f"b{self.day:%d}", self.day, complete, tuple(found))
        builds.record_build(self.site.ledger, index, index_url="https://builds.example.org/index.json", now=NOW)

    def planned(self, name: str, run: str = RUN) -> PublicationKey:
        """A run has planned one of them."""
        build = builds.build(self.site.ledger, self.slot, f"b{self.day:%d}")
        assert build is not None
        record = build.artifact(*name.split("/"))
        assert record is not None
        key = PublicationKey(FQRN, f"/nightlies/{self.slot}/{self.day}/{name}", run)
        records.plan(self.site.ledger, key, Planned(record.id, "a" * 64), try_number=1, now=NOW)
        return key

    def moved(self, key: PublicationKey, *moves: Move, minutes: int = 1) -> None:
        """The run went on, as task 3 of its mapped group."""
        for number, move in enumerate(moves):
            task = f"{key.run_id}/artifact.{move.phase.value}[3] try 1"
            now = NOW + timedelta(minutes=minutes + number)
            records.move(self.site.ledger, key, move, try_number=1, now=now, holder=task)

    def published(self, name: str, run: str = RUN, **figures: int) -> PublicationKey:
        """It was prepared and published."""
        key, known = self.planned(name, run), Figures(files=7, bytes=2_500_000, seconds={"prepare": 1.5})
        self.moved(
            key,
            Move(State.PREPARING, Phase.PREPARE, "try 1"),
            Move(State.PREPARED, Phase.PREPARE, "prepared", known),
            Move(State.PUBLISHING, Phase.PUBLISH, "try 1"),
            Move(State.PUBLISHED, Phase.PUBLISH, "revision 7", Figures(revision_after=7)),
        )
        return key


@pytest.fixture
def night(site: Site) -> Night:
    return Night(site)
