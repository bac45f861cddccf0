"""How a task is called in the ledger and on its leases, and which of its errors are tried again."""

from __future__ import annotations

import pytest
from airflow.sdk import RetryAction

from hooks.retry import RetryByKind
from hooks.site import run_name
from include.cvmfs.errors import DestinationError, ManifestConflict, SourceError
from include.gateway.errors import BAD_SIGNATURE, PathBusy
from include.nightlies.steps.errors import ArtifactMissing, ArtifactSize, BatchFailed, GateClosed
from include.storage.errors import Unavailable
from operators.base import batches_of, holder_name, tries_left
from tests.fakes.taskcontext import task_context


def test_the_owner_of_a_lease_names_dag_run_task_map_index_and_try() -> None:
    assert holder_name(task_context(map_index=3, try_number=2)) == "night/run-1/publish[3] try 2"
    assert holder_name(task_context()) == "night/run-1/publish try 1"
    assert run_name(task_context()) == "night/run-1"


def test_the_last_try_has_none_left() -> None:
    assert tries_left(task_context(try_number=2, max_tries=2))
    assert not tries_left(task_context(try_number=3, max_tries=2))


def test_a_plan_that_did_not_end_hands_on_no_batches() -> None:
    assert batches_of(None) == []


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (SourceError("a", "b"), RetryAction.FAIL),
        (DestinationError("/a", "b"), RetryAction.FAIL),
        (ArtifactSize("a", "b", 1, 2), RetryAction.FAIL),
        (BAD_SIGNATURE("no"), RetryAction.FAIL),
        (GateClosed("run", ["x"]), RetryAction.FAIL),
        (ManifestConflict("nights.example.org"), RetryAction.RETRY),
        (ArtifactMissing("a", "b"), RetryAction.RETRY),
        (PathBusy("busy"), RetryAction.RETRY),
        (RuntimeError("unknown"), RetryAction.DEFAULT),
        (BatchFailed({"a": SourceError("a", "b")}), RetryAction.FAIL),
        (BatchFailed({"a": SourceError("a", "b"), "b": RuntimeError("x")}), RetryAction.RETRY),
    ],
)
def test_an_error_is_tried_again_if_its_kind_may_pass(error: Exception, action: RetryAction) -> None:
    assert RetryByKind().evaluate(error, 1, 2).action is action


def test_a_store_that_is_away_is_tried_again() -> None:
    assert Unavailable.retryable
    assert RetryByKind.deserialize(RetryByKind().serialize()).evaluate(ValueError(), 1, 2).action is RetryAction.DEFAULT
