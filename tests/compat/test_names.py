"""Names that others use or that are stored stay: each that was there is there still. More may come."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.module_loading import import_string
from airflow.serialization.serialized_objects import DagSerialization

from include.settings.load import load
from tests.compat.corpus import folders, same_json
from tests.compat.names import all_names, dags, without_prose_and_places
from tests.compat.paths import ROOT

OPERATOR = re.compile(r"<Task\(\w+\)")
"""How a template field shows the result of a task: the operator's class is a place, as `task_type` is."""
FOLDERS = pytest.mark.parametrize("folder", folders("names"), ids=lambda folder: folder.name)
KINDS = [
    (folder, kind) for folder in folders("names") for kind in json.loads((folder / "names" / "names.json").read_text())
]


def recorded(folder: Path, name: str) -> Any:
    return json.loads((folder / "names" / name).read_text())


@pytest.mark.parametrize(("folder", "kind"), KINDS, ids=[f"{folder.name}-{kind}" for folder, kind in KINDS])
def test_no_name_is_gone(folder: Path, kind: str, names: dict[Path, dict[str, list[str]]]) -> None:
    if folder not in names:
        names[folder] = all_names(folder / "site.yaml")
    was = recorded(folder, "names.json")[kind]
    assert was, "there is something to compare"
    assert sorted(set(was) - set(names[folder][kind])) == []


@pytest.fixture(scope="module")
def names() -> dict[Path, dict[str, list[str]]]:
    """Read once for each corpus."""
    return {}


@FOLDERS
def test_a_configuration_with_every_key_is_read_as_it_was(folder: Path) -> None:
    now = load(folder / "site.yaml").model_dump(mode="json")
    assert same_json(now, recorded(folder, "settings.json")) == []


@FOLDERS
def test_dags_are_stored_as_they_were_but_for_prose_and_places(folder: Path) -> None:
    both = dags(folder / "site.yaml"), without_prose_and_places(recorded(folder, "dags.json"))
    now, was = (json.loads(OPERATOR.sub("<Task", json.dumps(one))) for one in both)
    assert same_json(now, was) == []


@FOLDERS
def test_dags_that_an_earlier_commit_stored_are_read(folder: Path) -> None:
    for dag_id, stored in recorded(folder, "serialized.json").items():
        dag = DagSerialization.from_dict(stored)
        assert dag.dag_id == dag_id
        assert set(dag.task_ids) == set(recorded(folder, "dags.json")[dag_id]["tasks"])
        for task in dag.tasks:
            assert isinstance(task.weight_rule, import_string(stored_rule(stored)))


def stored_rule(stored: Any) -> str:
    """The dotted path by which each task of a stored DAG names what orders it."""
    return str(stored["dag"]["default_args"]["__var"]["weight_rule"])


def test_the_configuration_of_the_checkout_is_read() -> None:
    assert load(ROOT / "config" / "site.yaml").slots
