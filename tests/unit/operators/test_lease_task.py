"""Waiting for a busy path, giving up, and being killed with a lease in hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.coordination.freeze import KEY, Freeze, freeze
from include.cvmfs.errors import CollectionRunning, RepositoryFrozen
from include.gateway.client.leases import LeaseInfo
from include.gateway.errors import PathBusy, RepositoryDisabled
from include.nightlies.errors import DEPENDENCY_WAIT_S, DependencyPending
from include.nightlies.steps import care, verify
from include.publishers.errors import NodeBusy
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.store import Store
from operators.base import clock
from operators.care import PruneTagsOperator
from operators.lease_task import (
    MARGIN_S,
    NODE_PAUSE_S,
    Done,
    Killed,
    LeaseTaskOperator,
    WaitedTooLong,
    Waiting,
    WritingOperator,
)
from operators.publishing import VerifyArtifactsOperator
from tests.fakes.plainsite import FQRN, plain_site
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context

HOLDER = LeaseInfo(FQRN, "/a/b", "key-1", datetime.now(UTC), "night/run-0/publish try 1")


def busy(remaining_s: float = 10.0) -> PathBusy:
    return PathBusy("path busy", time_remaining_s=remaining_s, holder=HOLDER, repository=FQRN, path="/a/b")


class Waiter(LeaseTaskOperator):
    """Finds its path busy a given number of times."""

    def __init__(self, times: int, remaining_s: float = 10.0, **kwargs: Any) -> None:
        super().__init__(task_id="waiter", **kwargs)
        self.times = times
        self.remaining_s = remaining_s
        self.given_up: list[str] = []

    def site(self) -> Site:
        return Site(SiteSettings.model_validate({"gateway": {"max_lease_time_s": 120}}), EnvSecrets({}))

    def attempt(self, context: Any, site: Any) -> Done | Waiting:
        self.times -= 1
        if self.times < 0:
            return Done("published")
        return Waiting({"A/x": busy(self.remaining_s)}, lambda name, why: self.given_up.append(f"{name}: {why}"))


def test_a_path_is_waited_for_in_the_task_and_published_when_it_is_free() -> None:
    assert Waiter(times=1, patience_s=5.0).execute(task_context()) == "published"
    event = {"free": True, "reason": "free", "since": datetime.now(UTC).isoformat()}
    assert Waiter(times=0).resume(task_context(), event) == "published"
    Waiter(times=0).on_kill()  # it is not at work, and has nothing to give back


def waits_for(error: Exception) -> tuple[dict[str, Any], float, timedelta | None]:
    """Return what is left to the triggerer for this error: the row, its seconds, and Airflow's own time out."""
    waiter = Waiter(times=99, patience_s=0.0)
    waiter.attempt = lambda context, site: Waiting({"A/x": error})  # type: ignore[method-assign, dict-item]
    with pytest.raises(TaskDeferred) as deferred:
        waiter.execute(task_context())
    _, row = deferred.value.trigger.serialize()
    left = datetime.fromisoformat(row["deadline"]) - datetime.now(UTC)
    return row, left.total_seconds(), deferred.value.timeout


@pytest.mark.parametrize(("remaining_s", "at_least"), [(10.0, 120 + MARGIN_S - 5), (7000.0, 7000.0)])
def test_a_path_that_stays_busy_is_left_to_the_trigger_for_a_lease_lifetime_or_longer(
    remaining_s: float, at_least: float
) -> None:
    row, left, _ = waits_for(busy(remaining_s))
    assert (row["check"], row["arguments"]) == ("lease-free", {"repository": FQRN, "path": "/a/b"})
    assert left > at_least


def test_a_publisher_node_that_is_busy_is_looked_at_again_after_a_pause() -> None:
    row, left, timeout = waits_for(NodeBusy("busy", time_remaining_s=7200, repository=FQRN, path="/a/b"))
    assert (row["check"], 0 < left <= NODE_PAUSE_S) == ("pause", True)
    assert row["since"] is not None
    assert timeout is not None
    assert timeout > timedelta(seconds=7000)


def test_a_collection_is_waited_for_until_it_has_swept_the_shards_that_count() -> None:
    running = CollectionRunning("/a/b", "condemned", 7, (3, 200), FQRN)
    row, left, _ = waits_for(running)
    assert (row["check"], row["arguments"]) == ("collection", {"repository": FQRN, "number": 7, "shards": [3, 200]})
    assert left > running.time_remaining_s


def test_waiting_counts_from_its_beginning_over_deferrals_and_the_message_names_the_holder() -> None:
    operator = Waiter(times=99, patience_s=0.0)
    since = datetime.now(UTC) - timedelta(hours=1)
    with pytest.raises(WaitedTooLong, match=r"night/run-0/publish try 1.*key-1"):
        operator.resume(task_context(), {"free": False, "reason": "still held", "since": since.isoformat()})
    assert len(operator.given_up) == 1
    assert WaitedTooLong.retryable


def test_a_killed_task_gives_its_lease_back_and_stops() -> None:
    dropped: list[str] = []

    class Dies(Waiter):
        def attempt(self, context: Any, site: Any) -> Done | Waiting:
            self.on_lease(lambda: dropped.append("lease"))
            self.on_kill()  # as the signal handler does, on top of what runs
            raise AssertionError("went on")

    with pytest.raises(Killed):
        Dies(times=0).execute(task_context())
    assert dropped == ["lease"]
    assert not issubclass(Killed, Exception), "nothing on the way may take it for a failed artifact"


PENDING = DependencyPending("B/x", "it depends on A/x (preparing)", repository=FQRN, path="/n/B")


def test_a_dependency_is_looked_for_again_for_as_long_as_a_preparation_may_take() -> None:
    row, _, timeout = waits_for(PENDING)
    assert row["check"] == "pause"
    assert timeout is not None
    assert timeout.total_seconds() > DEPENDENCY_WAIT_S


def test_when_a_dependency_never_comes_the_task_says_what_it_waited_for() -> None:
    waiter, long_ago = Waiter(times=99, patience_s=0.0), datetime.now(UTC) - timedelta(seconds=DEPENDENCY_WAIT_S + 120)
    told: list[str] = []
    waiter.attempt = lambda context, site: Waiting({"B/x": PENDING}, lambda *why: told.extend(why))  # type: ignore[method-assign]
    with refused(WaitedTooLong, artifact="B/x"):
        waiter.resume(task_context(), {"reason": "looking again", "since": long_ago.isoformat()})
    assert told[0] == "B/x"
    assert "clear the run from its plan on" in told[1]


THAWED = {"found": True, "reason": "it is frozen no more"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """A frozen repository, as every operator here sees it."""
    site = plain_site(tmp_path)
    store = site.repository_store(FQRN)
    freeze(store, Freeze("f1", "disks are moved", "op@host", clock()))
    monkeypatch.setattr(WritingOperator, "site", lambda _: site)
    return store


def frozen(store: Store, done: Any) -> Any:
    """Act as a step that asks whether it may go on."""

    def step(*_: Any, **__: Any) -> Any:
        if store.exists(KEY):
            raise RepositoryFrozen(FQRN, "disks are moved")
        return done

    return step


def waits(operator: WritingOperator, context: Any) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    _, row = deferred.value.trigger.serialize()
    assert (row["check"], row["arguments"]) == ("thaw", {"repository": FQRN})
    assert (deferred.value.method_name, deferred.value.timeout) == ("thawed", None)


def test_tags_are_pruned_after_the_thaw(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(care, "prune_tags", frozen(store, care.Pruned((), done=True)))
    operator = PruneTagsOperator(task_id="prune", repository=FQRN)
    waits(operator, task_context())
    store.delete([KEY])
    assert operator.thawed(task_context(), THAWED) == []


def test_what_failed_is_taken_away_after_the_thaw_and_then_read_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "tidy_run", frozen(store, ("/a",)))
    monkeypatch.setattr(verify, "verify_run", lambda *_, **__: ())
    operator = VerifyArtifactsOperator(task_id="verify", batches=[])
    waits(operator, task_context())
    store.delete([KEY])
    assert operator.thawed(task_context(), THAWED) == {"verified": 0, "files": 0, "tidied": 1}


def test_a_gateway_that_an_administrator_disabled_is_left_to_the_retries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disabled(*_: Any, **__: Any) -> Any:
        raise RepositoryDisabled("maintenance", repository=FQRN)

    monkeypatch.setattr(care, "prune_tags", disabled)
    operator = PruneTagsOperator(task_id="prune", repository=FQRN)
    waits(operator, task_context())
    store.delete([KEY])
    with pytest.raises(RepositoryDisabled):
        operator.execute(task_context())
