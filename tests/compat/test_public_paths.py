"""Whatever Airflow, setuptools or a site stores by its dotted path is found there: old paths stay for one release."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path

import pytest
from airflow.sdk.module_loading import import_string

from tests.compat.corpus import folders
from tests.compat.paths import ROOT, entry_points

PATHS = [
    (folder.name, path)
    for folder in folders("names")
    for path in json.loads((folder / "names" / "paths.json").read_text())
]


@pytest.mark.filterwarnings("ignore:.* is now called:DeprecationWarning")
@pytest.mark.parametrize(("commit", "path"), PATHS, ids=[f"{commit}-{path}" for commit, path in PATHS])
def test_a_public_path_is_imported(commit: str, path: str) -> None:
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name), f"{path} was there at {commit}"


@pytest.mark.parametrize("folder", folders("names"), ids=lambda folder: folder.name)
def test_the_distribution_offers_what_it_did(folder: Path) -> None:
    recorded = json.loads((folder / "names" / "entry-points.json").read_text())
    assert recorded.keys() <= entry_points().keys()
    installed = {
        f"{'scripts' if entry.group == 'console_scripts' else entry.group} {entry.name}": entry.load()
        for entry in importlib.metadata.distribution("nightshift").entry_points
    }
    assert {name for name in recorded if not callable(installed.get(name))} == set()


def test_the_plugin_and_the_policy_are_where_airflow_looks_for_them() -> None:
    from airflow.plugins_manager import AirflowPlugin

    (file,) = (ROOT / "plugins").glob("*.py")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (plugin,) = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, AirflowPlugin)
                 and one is not AirflowPlugin]  # fmt: skip
    assert plugin.name == "nightshift"
    # tasks of stored DAGs name the strategy by the path that it had
    assert import_string("hooks.priority.NightFirst") in plugin.priority_weight_strategies
    assert callable(import_string("airflow_local_settings.task_instance_mutation_hook"))
