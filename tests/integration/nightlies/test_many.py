"""More artifacts in one night than Airflow maps over: all of them pass through the steps, in batches.

The arithmetic of batches is in `tests/unit/nightlies/rules/test_order.py`; 1,500 artifacts pass in `make bench-night`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date

import pytest

from include.nightlies.records.publications import publications_of_run
from include.nightlies.rules.states import State
from include.nightlies.steps.gate import gate
from include.nightlies.steps.plan import plan_night
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import publish_batch
from include.nightlies.steps.reserve import reserve_run
from include.nightlies.steps.values import Batch, Night
from include.nightlies.steps.verify import verify_run
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.integration.nightlies.conftest import FQRN, Nights

pytestmark = pytest.mark.slow
PROJECTS, PLATFORMS = 4, 3
MAPPED = 8  # fewer than there are artifacts, as Airflow's limit is for a night of thousands
AT_ONCE = 6  # publish tasks


def test_more_artifacts_than_airflow_maps_over_pass_through_in_batches(nights: Nights) -> None:
    build = Build("2026-11-20")
    for platform in range(PLATFORMS):
        for project in range(PROJECTS):
            build.add(f"P{project:03}", f"x86_64-{platform}", tree({"version": f"{project} {platform}".encode()}))
    build.store_in(nights.site.store("cvmfs"))
    night = Night("night/many", "main", date(2026, 11, 20), "test")
    batches = plan_night(nights.site, attempt(), night, max_mapped=MAPPED).batches
    assert sum(len(batch.items) for batch in batches) == PROJECTS * PLATFORMS > MAPPED
    assert len(batches) == MAPPED
    reserve_run(nights.site, attempt(), batches)

    def publish(batch: Batch) -> None:
        assert not prepare_batch(nights.site, attempt(), batch).failures
        outcome = publish_batch(nights.site, attempt(), batch)
        assert not outcome.failures
        assert not outcome.busy

    with ThreadPoolExecutor(AT_ONCE) as tasks:
        list(tasks.map(publish, batches))
    verify_run(nights.site, attempt(night.run))
    passed = gate(nights.site, attempt(night.run), night=night)
    assert passed.counts == {State.PUBLISHED.value: PROJECTS * PLATFORMS}
    done = publications_of_run(nights.site.ledger, night.run)
    assert len({one.destination for one in done}) == PROJECTS * PLATFORMS
    assert nights.client().leases() == []
    revision = nights.site.head(FQRN).manifest.revision
    again = Night("night/again", "main", night.date, "test")
    assert plan_night(nights.site, attempt(), again).batches == ()
    assert nights.site.head(FQRN).manifest.revision == revision
