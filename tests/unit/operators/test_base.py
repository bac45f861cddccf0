"""Names of tasks in the ledger and on leases, and errors that are tried again."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import BaseOperator, RetryAction
from airflow.sdk.exceptions import AirflowSkipException

from hooks.provider import get_provider_info
from hooks.task import RetryByKind, run_name
from include.cvmfs.errors import DestinationError, ManifestConflict, SourceError
from include.errors import ErrorRow
from include.gateway.errors import BAD_SIGNATURE, PathBusy
from include.nightlies.errors import (
    COLLECTION_RUN_REFUSED,
    ROLLBACK_REFUSED,
    ArtifactMissing,
    ArtifactSize,
    BatchFailed,
    GateClosed,
)
from include.nightlies.removal.undo import Replacement, Wish
from include.stageout.errors import STAGEOUT_RUN_REFUSED
from include.storage.errors import Unavailable
from operators.base import NightshiftOperator, batches_of, holder_name, tries_left
from operators.care import BeginCollectionsOperator
from operators.stageout import (
    DeleteOldRunsOperator,
    RemindUsersOperator,
    StageoutPassOperator,
    SummariseTransfersOperator,
    TakeCensusOperator,
)
from operators.undo import PreviewRollbackOperator, RemoveExpiredOperator, RollBackOperator, UndoBuildOperator, wish_of
from tests.fakes.airflowhome import ROOT
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context


def test_the_owner_of_a_lease_names_dag_run_task_map_index_and_try() -> None:
    assert holder_name(task_context(map_index=3, try_number=2)) == "night/run-1/publish[3] try 2"
    assert holder_name(task_context()) == "night/run-1/publish try 1"
    assert run_name(task_context()) == "night/run-1"
    assert [tries_left(task_context(try_number=number, max_tries=2)) for number in (2, 3)] == [True, False]
    assert batches_of(None) == [], "of a plan that did not end"


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
        (Unavailable("away", key="a", cause="503"), RetryAction.RETRY),
        (RuntimeError("unknown"), RetryAction.DEFAULT),
        (BatchFailed({"a": SourceError("a", "b")}), RetryAction.FAIL),
        (BatchFailed({"a": SourceError("a", "b"), "b": RuntimeError("x")}), RetryAction.RETRY),
    ],
)
def test_an_error_is_tried_again_if_its_kind_may_pass(error: Exception, action: RetryAction) -> None:
    assert RetryByKind.deserialize(RetryByKind().serialize()).evaluate(error, 1, 2).action is action


INFO = get_provider_info()
MODULES = [name for kind in ("operators", "sensors", "hooks") for one in INFO[kind] for name in one["python-modules"]]
EXAMPLES: dict[str, dict[str, Any]] = {
    "CvmfsLeaseOperator": {"fqrn": "a.example.org", "path": "/a"},
    "CvmfsReleaseOperator": {"lease": {}},
    "CvmfsPublishTreeOperator": {"fqrn": "a.example.org", "path": "/a", "source": "/tmp/a.tar"},
    "CvmfsRemoveOperator": {"fqrn": "a.example.org", "paths": "/a"},
    "CvmfsTagOperator": {"fqrn": "a.example.org", "tag": "v1"},
    "CacheTrimOperator": {"cache": "local"},
    "CacheVerifyOperator": {"cache": "local"},
    "CacheWarmOperator": {"cache": "local"},
    "ObjectCopyOperator": {"source_key": "a"},
    "ObjectDeleteOperator": {"keys": "a"},
    "ObjectPutOperator": {"key": "a", "data": "x"},
    "FtsTransferOperator": {"files": []},
    "CvmfsPathSensor": {"fqrn": "a.example.org", "path": "/a"},
    "CvmfsRevisionSensor": {"fqrn": "a.example.org", "revision": "3"},
    "LeaseFreeSensor": {"fqrn": "a.example.org"},
    "PlaceSensor": {"fqrn": "a.example.org", "path": "/a"},
    "ObjectSensor": {"key": "a"},
    "FtsJobSensor": {"job_ids": "a"},
    "CephHealthSensor": {"target": "a"},
}


def tasks() -> Iterator[type[BaseOperator]]:
    for name in MODULES:
        module = importlib.import_module(name)
        for one in map(vars(module).get, module.__all__):
            if isinstance(one, type) and issubclass(one, BaseOperator):
                yield one


TASKS = list(tasks())
# The lease that it is given has its gateway; a cache is a folder, and its work is the worker's from begin to end.
WITHOUT_CONNECTION = {"CvmfsReleaseOperator", "CacheTrimOperator", "CacheVerifyOperator", "CacheWarmOperator"}


def test_airflow_is_told_of_every_module_with_public_names_and_of_no_other() -> None:
    public = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for folder in ("operators", "sensors", "hooks") for file in (ROOT / folder).rglob("*.py")
        if "__all__" in file.read_text()
    }  # fmt: skip
    assert set(MODULES) == public
    named = {one["integration-name"] for one in INFO["integrations"]}
    assert {one["integration-name"] for kind in ("operators", "sensors", "hooks") for one in INFO[kind]} == named
    assert {one.__name__ for one in TASKS} == set(EXAMPLES)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_every_argument_is_documented(task: type[BaseOperator]) -> None:
    documented = set(re.findall(r"^        (\*{0,2}\w+): ", str(task.__doc__).partition("Args:\n")[2], re.MULTILINE))
    arguments = inspect.signature(task.__init__).parameters  # type: ignore[misc]
    names = {f"**{name}" if one.kind is one.VAR_KEYWORD else name for name, one in arguments.items()} - {"self"}
    assert names <= documented | {"args"}, task.__doc__


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_templates_are_of_arguments_and_waiting_follows_airflows_default(
    task: type[BaseOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(task.template_fields_renderers) <= set(task.template_fields)
    for default in (True, False):
        monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", str(default))
        made: Any = task(task_id="it", **EXAMPLES[task.__name__])
        assert [name for name in task.template_fields if not hasattr(made, name)] == []
        if task.__name__ != "CvmfsReleaseOperator" and not task.__name__.startswith("Cache"):
            assert made.deferrable is default
            assert task(task_id="other", deferrable=not default, **EXAMPLES[task.__name__]).deferrable is not default
    connections = [name for name in task.template_fields if name.endswith("_conn_id")]
    if issubclass(task, NightshiftOperator) and task.__name__ not in WITHOUT_CONNECTION:
        assert connections != []


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ObjectPutOperator", {"file": "/a"}),
        ("ObjectSensor", {"store": "builds", "store_conn_id": "ours"}),
        ("ObjectDeleteOperator", {"store": "builds", "store_conn_id": "ours"}),
        ("PlaceSensor", {"until": "soon"}),
        ("FtsTransferOperator", {"verify": "often"}),
    ],
)
def test_arguments_that_exclude_each_other_are_refused_when_the_dag_is_read(name: str, more: dict[str, Any]) -> None:
    (task,) = [one for one in TASKS if one.__name__ == name]
    with pytest.raises(ValueError):  # noqa: PT011 - Airflow's own for arguments
        task(task_id="it", **EXAMPLES[name], **more)


@pytest.mark.parametrize(
    "operator",
    [
        UndoBuildOperator(task_id="a"),
        RollBackOperator(task_id="b", preview=None),
        RemoveExpiredOperator(task_id="c", plans=()),
    ],
)
def test_what_takes_builds_back_is_skipped_in_a_dry_run(operator: Any) -> None:
    with pytest.raises(AirflowSkipException):
        operator.attempt(task_context(dry_run=True, approval=False), None)


@pytest.mark.parametrize(
    ("operator", "error"),
    [
        (BeginCollectionsOperator(task_id="a", repositories=[]), COLLECTION_RUN_REFUSED),
        (PreviewRollbackOperator(task_id="b"), ROLLBACK_REFUSED),
        (DeleteOldRunsOperator(task_id="c", dag_ids=[]), STAGEOUT_RUN_REFUSED),
        (StageoutPassOperator(task_id="d", components=["submit"]), STAGEOUT_RUN_REFUSED),
        (TakeCensusOperator(task_id="e"), STAGEOUT_RUN_REFUSED),
        (SummariseTransfersOperator(task_id="f"), STAGEOUT_RUN_REFUSED),
        (RemindUsersOperator(task_id="g"), STAGEOUT_RUN_REFUSED),
    ],
)
def test_work_that_depends_on_no_date_is_refused_to_a_backfill_before_anything_is_done(
    operator: Any, error: ErrorRow
) -> None:
    with refused(error) as refusal:
        operator.execute(task_context(run_type="backfill"))
    assert "a backfill would" in str(refusal.value)


def test_a_form_of_undo_is_taken_as_it_is() -> None:
    form = {"slot": "main", "build_id": "b1", "reason": "it crashes", "projects": ["A"], "platforms": ["x"]}
    wish = wish_of(task_context(**form, instead="predecessor", move_links=True))
    assert wish == Wish("main", "b1", "it crashes", ("A",), ("x",), Replacement.PREDECESSOR, move_links=True)
    assert not wish_of(task_context(**form, instead="nothing", move_links=False)).move_links
