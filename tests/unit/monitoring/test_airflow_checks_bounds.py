"""What bounds a night is read from the last one that published something."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from include.ledger.migrate import migrate
from include.monitoring.airflow_checks import look_at_bounds, night_bounds
from include.nightlies.records import builds, publications
from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.publication import Figures, Move, Planned, PublicationKey
from include.nightlies.rules.states import Phase, State
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
FQRN = "nightlies.example.org"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    file = tmp_path / "site.yaml"
    file.write_text(f'ledger: "sqlite:///{tmp_path}/ledger.db"\n')
    opened = Site(load(file, environ={}), EnvSecrets({}))
    migrate(opened.ledger)
    yield opened
    opened.ledger.dispose()


def record(site: Site, day: int, *, publish: bool) -> None:
    """A build of one artifact: 120 s of preparing, 30 s under the lease and in the commit."""
    artifacts = (Artifact("A", "x86", "A.tar", 10, f"{day}" * 32),)
    index = BuildIndex("main", f"b{day}", date(2026, 11, day), complete=True, artifacts=artifacts, rejected=())
    build = builds.record_build(site.ledger, index, index_url="u", now=NOW)
    key = PublicationKey(FQRN, f"/{day}/A", f"run{day}")
    planned = Planned(artifact=build.artifacts[0].id, sha256=f"{day}" * 32, reason="new")
    publications.plan(site.ledger, key, planned, try_number=1, now=NOW)
    moves = [Move(State.PREPARING, Phase.PREPARE, "begins")]
    if publish:
        moves += [
            Move(State.PREPARED, Phase.PREPARE, "prepared", Figures(seconds={"prepare": 120.0})),
            Move(State.PUBLISHING, Phase.PUBLISH, "begins"),
            Move(State.PUBLISHED, Phase.PUBLISH, "published", Figures(seconds={"lease": 10.0, "commit": 20.0})),
        ]
    for move in moves:
        publications.move(site.ledger, key, move, try_number=1, now=NOW)


def test_what_takes_longest_comes_first() -> None:
    work = [{"prepare": 60.0, "lease": 2.0, "commit": 8.0}] * 8 + [{"prepare": 90.0}]
    assert night_bounds(work, {"prepare": 2, "publish": 4}) == [
        ("preparing in 2 slots", 285.0), ("the longest artifact", 90.0), ("publishing in 4 slots", 20.0),
    ]  # fmt: skip
    assert night_bounds(work, {"prepare": 8, "publish": 4})[0] == ("the longest artifact", 90.0)


def test_the_last_build_of_which_something_was_published_is_taken(site: Site) -> None:
    record(site, 18, publish=True)
    record(site, 19, publish=False)
    (finding,) = look_at_bounds(site, "main")
    assert finding.seen.startswith("1 artifacts of build b18 of 2026-11-18 take at least: the longest artifact 2.5 min")


def test_before_the_first_night_nothing_is_known(site: Site) -> None:
    record(site, 18, publish=False)
    (finding,) = look_at_bounds(site, "main")
    assert finding.seen.startswith("not known")
    assert (finding.severity.value, finding.cure) == ("ok", "")
