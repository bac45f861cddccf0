"""Publishing beside others on the real services: busy paths, tries that died in between, three publishers at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NoReturn

import pytest
from sqlalchemy import update

from include.cvmfs.check.check import check
from include.gateway.client.leases import Lease
from include.nightlies.errors import StaleAttempt
from include.nightlies.records import publications as records
from include.nightlies.records.tables import publications
from include.nightlies.rules.publication import Move, Phase, State
from include.nightlies.steps.plan import plan_publication
from include.nightlies.steps.prepare import prepare_batch
from include.nightlies.steps.publish import publish_batch, reserve_run
from include.nightlies.steps.values import Batch, PublicationRequest
from include.publishers.native import NativePublisher
from include.settings.scheduling import pools
from operators.lease_task import Done, Waiting
from operators.publishing import PublishArtifactsOperator
from tests.dags.conftest import FQRN, MiniSite
from tests.fakes.attempts import attempt
from tests.fakes.builds import Build, tree
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

pytestmark = pytest.mark.server("weed")
PUBLISHERS = 3


def test_a_busy_path_is_waited_for_in_the_triggerer_and_then_published(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Build("2026-09-06").add("Busy", "x86_64", tree({"a": b"a"}))
    site.drop(build)
    place = build.destination("Busy", "x86_64")
    # reserving passes by what is reserved already, publishing does not
    site.opened.publisher(FQRN).reserve([place], nested=[], holder="another run", now=datetime.now(UTC))
    leases: list[Lease] = []
    deferred: list[str] = []
    publish, defer = PublishArtifactsOperator.attempt, PublishArtifactsOperator.defer
    with site.client() as client:

        def taken_before(self: PublishArtifactsOperator, *arguments: Any) -> Done | Waiting:
            if not leases:  # only now: until the task comes so far, a lease could end by itself
                leases.append(client.acquire(FQRN, place, hostname="another user"))
            return publish(self, *arguments)

        def given_back(self: PublishArtifactsOperator, **kwargs: Any) -> NoReturn:
            client.drop(leases[0])
            deferred.append(kwargs["method_name"])
            defer(self, **kwargs)

        monkeypatch.setattr(PublishArtifactsOperator, "attempt", taken_before)
        monkeypatch.setattr(PublishArtifactsOperator, "defer", given_back)
        run = site.run("nightly_install_main", build_date="2026-09-06")
    assert deferred == ["resume"]
    assert run.state == "success", run
    assert run.states() == {"Busy/x86_64": "published"}
    assert site.leases() == []


def _prepared(site: MiniSite, run: str, path: str, content: bytes = b"x") -> Batch:
    """A batch that is reserved and prepared."""
    store = site.opened.store("builds")
    store.put(f"{run}.tar.gz", tree({"file": content}))
    plan = plan_publication(
        site.opened, attempt(run), PublicationRequest(FQRN, path, f"{store.url}/{run}.tar.gz", overwrite=True)
    )
    (batch,) = plan.batches
    reserve_run(site.opened, attempt(holder=run), plan.batches)
    outcome = prepare_batch(site.opened, attempt(), batch)
    assert outcome.failures == {}
    return batch


def test_a_try_after_a_crash_finds_what_the_first_published_and_makes_no_revision(site: MiniSite) -> None:
    batch = _prepared(site, "crash", "/crash/1")
    assert publish_batch(site.opened, attempt(holder="first"), batch).failures == {}
    # as if the process had died after its commit and before its last word to the ledger
    ended = publications.c.run_id == batch.run
    with site.opened.ledger.begin() as connection:
        connection.execute(update(publications).where(ended).values(state="publishing", ended_at=None))
    before = site.revision()
    again = publish_batch(site.opened, attempt(holder="second", number=2), batch)
    assert again.failures == {}
    (done,) = again.done
    assert done.state is State.PUBLISHED
    assert "an earlier try" in done.reason
    assert site.revision() == before


def test_a_process_that_outlived_its_task_cannot_turn_back_what_the_later_try_did(site: MiniSite) -> None:
    batch = _prepared(site, "outlived", "/outlived/1")
    key = batch.key(batch.items[0])
    assert publish_batch(site.opened, attempt(holder="second", number=2), batch).failures == {}
    late = publish_batch(site.opened, attempt(holder="first"), batch)
    assert late.failures == {}
    found = records.publication(site.opened.ledger, key)
    assert found is not None
    assert (found.state, found.publish_try) == (State.PUBLISHED, 2)
    with refused(StaleAttempt, try_number=1, recorded=2):
        records.move(
            site.opened.ledger, key, Move(State.FAILED, Phase.PUBLISH, "late"), try_number=1, now=datetime.now(UTC)
        )


def test_two_tries_at_once_make_one_revision(site: MiniSite) -> None:
    batch = _prepared(site, "twins", "/twins/1")
    before = site.revision()
    outcomes = []

    def publish(number: int) -> None:
        while True:
            outcome = publish_batch(site.opened, attempt(holder=f"try {number}", number=number), batch)
            if not outcome.busy:
                outcomes.append(outcome)
                return
            threading.Event().wait(0.2)

    threads = [threading.Thread(target=publish, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 2
    assert site.revision() == before + 1
    found = records.publication(site.opened.ledger, batch.key(batch.items[0]))
    assert found is not None
    assert found.state.good, found
    assert site.leases() == []


def test_three_publish_tasks_hold_their_leases_at_once_and_all_of_it_is_published(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [_prepared(site, f"three-{number}", f"/three/{number}", b"%d" % number) for number in range(PUBLISHERS)]
    leased: list[list[str]] = []
    at_once = threading.Barrier(PUBLISHERS, action=lambda: leased.append(site.leases()))
    commit = NativePublisher._commit

    def commit_together(self: NativePublisher, *arguments: Any) -> int:
        at_once.wait(60)  # broken, and the test fails, unless all are under their leases
        return commit(self, *arguments)

    monkeypatch.setattr(NativePublisher, "_commit", commit_together)

    def publish(number: int) -> Any:
        task = PublishArtifactsOperator(task_id=f"publish_{number}", batch=batches[number].to_json())
        return task.execute(task_context(map_index=number))

    before = site.revision()
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        assert all(pool.map(publish, range(PUBLISHERS)))
    assert leased == [[f"{FQRN}/three/{number}" for number in range(PUBLISHERS)]]
    repository = site.opened.repository(FQRN)
    assert before < repository.manifest.revision <= before + PUBLISHERS
    for number in range(PUBLISHERS):
        assert repository.revision.read(f"/three/{number}/file") == b"%d" % number
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
