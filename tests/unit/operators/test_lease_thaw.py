"""Whatever changes a repository waits for its thaw without a worker, and then begins anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.cvmfs.coordination.freeze import KEY, Freeze, freeze
from include.cvmfs.errors import RepositoryFrozen
from include.gateway.errors import RepositoryDisabled
from include.nightlies.steps import care, verify
from include.storage.store import Store
from operators.base import clock
from operators.care import PruneTagsOperator
from operators.lease import WritingOperator
from operators.publishing import VerifyArtifactsOperator
from tests.fakes.plainsite import FQRN, plain_site
from tests.fakes.taskcontext import task_context

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
    """What a step does that asks whether it may."""

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
    assert deferred.value.method_name == "thawed"


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
