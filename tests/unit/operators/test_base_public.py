"""What others' DAGs use: announced to Airflow, documented to the last argument, with the conventions of providers."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from hooks.provider import get_provider_info
from operators.base import NightshiftOperator
from tests.fakes.airflowhome import ROOT

INFO = get_provider_info()
MODULES = [name for kind in ("operators", "sensors", "hooks") for one in INFO[kind] for name in one["python-modules"]]
EXAMPLES: dict[str, dict[str, Any]] = {
    "CvmfsLeaseOperator": {"fqrn": "a.example.org", "path": "/a"},
    "CvmfsReleaseOperator": {"lease": {}},
    "CvmfsPublishTreeOperator": {"fqrn": "a.example.org", "path": "/a", "source": "/tmp/a.tar"},
    "CvmfsRemoveOperator": {"fqrn": "a.example.org", "paths": "/a"},
    "CvmfsTagOperator": {"fqrn": "a.example.org", "tag": "v1"},
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
        if task.__name__ != "CvmfsReleaseOperator":
            assert made.deferrable is default
            assert task(task_id="other", deferrable=not default, **EXAMPLES[task.__name__]).deferrable is not default
    connections = [name for name in task.template_fields if name.endswith("_conn_id")]
    if issubclass(task, NightshiftOperator) and task.__name__ != "CvmfsReleaseOperator":
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
