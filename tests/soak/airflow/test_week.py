"""The pieces of the simulated week (`make week`), on one night of one slot that is watched from its first index on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from include.storage.open import open_store
from tests.e2e.deployment import FQRN, Deployment
from tests.week import checks, place
from tests.week.expected import Expected, expected
from tests.week.night import Stage
from tests.week.plan import MONDAY, Night, Week, week
from tests.week.reader import Reader, tree_of
from tests.week.run import link_paths
from tests.week.seen import listed_of, rows_of, summaries_of, wanted

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

SLOT = "dev"


@dataclass
class Seen:
    """A night, what was to come of it, and the reader that looked all the time."""

    there: place.Deployment
    comes_to: Expected
    stage: Stage
    reader: Reader


@pytest.fixture(scope="module")
def seen(deployment: Deployment) -> Seen:
    """The slot's Monday: late artifacts, three versions of the index."""
    planned = next(one for one in week(1, 1).slot_nights() if one.slot == SLOT)
    night = Night(MONDAY, (planned,))
    comes_to = expected(Week(1, (night,)))
    there = place.Deployment(deployment.lab, deployment.settings, deployment.site, dict(deployment.environment), FQRN)
    reader = Reader(open_store(there.public_url), there.public_key, FQRN, link_paths(), wanted(comes_to))
    stage = Stage(there, lambda: reader.now_s, print)
    deployment.api.unpause(f"nightly_install_{SLOT}")
    reader.start()
    try:
        stage.play(night)
    finally:
        reader.stop()
    return Seen(there, comes_to, stage, reader)


def test_the_reader_sees_links_to_a_whole_build_only(seen: Seen) -> None:
    ours = f"/nightlies/{SLOT}/"
    seen.reader.look()
    samples = seen.reader.samples
    assert seen.reader.faults == []
    assert len(samples) > len(seen.stage.played.runs)
    assert checks.revisions_never_go_back(samples) == []
    assert checks.links_lead_to_whole_builds(samples) == []
    assert checks.links_never_go_back(samples, seen.comes_to.order) == []
    assert not any(path.startswith(ours) for path in samples[0].links)
    in_the_end = {path: led for path, led in samples[-1].links.items() if path.startswith(ours)}
    assert checks.links_in_the_end(in_the_end, seen.comes_to.links) == []


def test_every_path_is_there_once(seen: Seen) -> None:
    found = tree_of(seen.there.site.repository(FQRN).revision)
    ours = {path: what for path, what in found.items() if path.startswith(f"/nightlies/{SLOT}")}
    wanted_paths = {path: what for path, what in seen.comes_to.paths().items() if path != "/nightlies"}
    assert checks.paths_are_there_once(ours, wanted_paths) == []
    rows = rows_of(seen.there)[SLOT, MONDAY]
    assert checks.published_once(rows) == []


def test_the_summary_says_what_the_ledger_says(seen: Seen) -> None:
    key = (SLOT, MONDAY)
    (summary,) = [one for (slot, _), one in summaries_of(seen.there, seen.comes_to).items() if slot == SLOT]
    outcome = seen.comes_to.outcomes[key]
    assert checks.summary_matches(summary, outcome, rows_of(seen.there)[key], listed_of(seen.there)[key]) == []
    assert len(seen.stage.played.runs) > 1, "what came late was taken by another pass"


def test_nothing_is_left(seen: Seen, deployment: Deployment) -> None:
    assert deployment.leases() == []
    assert {one.state for one in seen.stage.played.runs} == {"success"}
