"""Three publishing workers on one repository at the same time: their leases overlap in time, and nothing is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from include.cvmfs.check.check import check
from include.nightlies.steps.plan import plan_publication
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.reserve import reserve_run
from include.nightlies.steps.values import PublicationRequest
from include.publishers.native import NativePublisher
from include.settings.pools import pools
from operators.publishing import PublishArtifactsOperator
from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.attempts import attempt
from tests.fakes.builds import tree
from tests.fakes.taskcontext import task_context

pytestmark = pytest.mark.server("weed")
PUBLISHERS = 3


def clock() -> datetime:
    return datetime.now(UTC)


def prepared(site: MiniSite, number: int) -> dict[str, Any]:
    """A batch as the plan hands it on, reserved and prepared."""
    store, run = site.opened.store("builds"), f"three/{number}"
    store.put(f"three-{number}.tar.gz", tree({"file": b"of %d" % number, "lib/common": b"in all"}))
    plan = plan_publication(
        site.opened, attempt(run), PublicationRequest(FQRN, f"/three/{number}", f"{store.url}/three-{number}.tar.gz")
    )
    reserve_run(site.opened, attempt(holder=run), plan.batches)
    (batch,) = plan.batches
    assert prepare_batch(site.opened, attempt(), batch).failures == {}
    return batch.to_json()


def test_three_publish_tasks_hold_their_leases_at_once_and_all_of_it_is_published(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [prepared(site, number) for number in range(PUBLISHERS)]
    leased: list[list[str]] = []
    at_once = threading.Barrier(PUBLISHERS, action=lambda: leased.append(site.leases()))
    commit = NativePublisher._commit

    def commit_together(self: NativePublisher, *arguments: Any) -> int:
        at_once.wait(60)  # broken, and the test fails, unless all are under their leases
        return commit(self, *arguments)

    monkeypatch.setattr(NativePublisher, "_commit", commit_together)

    def publish(number: int) -> Any:
        task = PublishArtifactsOperator(task_id=f"publish_{number}", batch=batches[number])
        return task.execute(task_context(map_index=number))

    before = site.revision()
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        outcomes = list(pool.map(publish, range(PUBLISHERS)))
    assert all(outcomes)
    assert leased == [[f"{FQRN}/three/{number}" for number in range(PUBLISHERS)]]
    repository = site.opened.repository(FQRN)
    assert before < repository.manifest.revision <= before + PUBLISHERS
    for number in range(PUBLISHERS):
        assert repository.revision.read(f"/three/{number}/file") == b"of %d" % number
    assert not check(repository).problems
    assert site.leases() == []


def test_pools_and_dags_let_three_publish_at_once(site: MiniSite) -> None:
    slots = {pool.name: pool.slots for pool in pools(site.opened.settings, cores=1)}
    assert min(slots["publish"], slots["prepare"]) >= PUBLISHERS
    assert not any(pool.include_deferred for pool in pools(site.opened.settings)), "who waits takes no slot"
    for name in ("nightly_install", "nightly_install_main"):
        dag = site.dags[name]
        assert dag.max_active_tasks >= PUBLISHERS
        for task_id in ("artifact.prepare", "artifact.publish"):
            task = dag.get_task(task_id)
            limits = (task.max_active_tis_per_dag, task.max_active_tis_per_dagrun)
            assert all(limit is None or limit >= PUBLISHERS for limit in limits)
            assert task.pool_slots == 1
