"""How large a package is and how small a module may be, and that a package imports nothing by itself."""

from __future__ import annotations

import pytest

from tests.fakes.airflowhome import ROOT
from tests.structure import Tree, cycles, imports_up, packages, small_single_importer

MOST_MODULES = 20
TABLES = "tables of the ledger: migrations and records name them, without what reads them"
STORED = "Airflow stores its dotted path"
# A module of under 60 lines that one other imports, and why it is one. It may only shrink.
SMALL = {
    "include.care.freezes.tables": TABLES,
    "include.care.watch.tables": TABLES,
    "include.care.replicas.client_config": "a document of another program, and nothing of ours",
    "include.care.preflight.clockchange": "a check of the preflight is one module",
    "include.care.preflight.schedule": "a DAG file imports it, and nothing heavier",
    "include.cvmfs.commit.derivation": "read and tested without the merge that asks it",
    "include.gateway.service.http.routing": "what the stock gateway's router does, and nothing of ours",
    "include.gateway.service.leases.revision_rows": "rows of one table, as those of leases and payloads",
    "lab.connections": "the lab's connections as Airflow reads them",
    "include.nightlies.rules.batching": "a rule is pure and has a module",
    "include.nightlies.undo.approval": "imports the steps of an approval, which the rest of undo does not need",
    "include.site.path_state": "asks store and gateway; a check of the triggerer only calls it",
    "include.stageout.components.analytics": "a component of stage-out is one module",
    "operators.preflight": STORED,
    "operators.reserve": STORED,
    "operators.verify": STORED,
    "sensors.ceph": STORED,
    "triggers.begin": STORED,
    "triggers.fts": STORED,
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def test_no_package_has_more_modules_than_a_reader_takes_in(tree: Tree) -> None:
    assert {name: size for name, size in packages(tree).items() if size > MOST_MODULES} == {}


def test_a_small_module_with_one_importer_has_a_reason(tree: Tree) -> None:
    assert sorted(SMALL) == small_single_importer(tree)


def test_nothing_imports_upwards_in_any_way(tree: Tree) -> None:
    assert imports_up(tree) == []


def test_no_modules_import_each_other(tree: Tree) -> None:
    assert cycles(tree) == []


def test_a_package_imports_nothing_by_itself(tree: Tree) -> None:
    inits = {name: path for name, path in tree.files.items() if name.endswith("__init__")}
    assert [name for name in inits if tree.imports[name]] == []


def test_a_server_that_only_tests_start_is_below_tests(imports: dict[str, list[str]]) -> None:
    servers = {f"lab.servers.{file.stem}" for file in (ROOT / "lab/servers").glob("[!_]*.py")}
    used = {module for file, modules in imports.items() if not file.startswith("tests/") for module in modules}
    assert servers - used == set()
