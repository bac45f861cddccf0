"""Packages and modules: a module with one importer is part of it, and a package imports nothing by itself."""

from __future__ import annotations

import ast

import pytest

from tests.structure import ROOT, Tree, cycles, double_class_names, imports_up, packages, single_importer

LARGE_PACKAGE, LONG_FILE = 20, 500
# Files of more lines than that, and why. They may only shrink.
LONG = {"include.ledger.migrations.versions.v0001_tables": "all tables of 0.2.0, which never change"}
TOGETHER = "the two would be over 500 lines"
PURE = "pure, and tested alone"
KIND = "one of several implementations of an interface"
# Modules that one module alone imports, which is in the same package, and why they are not part of it.
ALONE = {
    "include.benchmarks.campaign.outages": TOGETHER,
    "include.benchmarks.judge.charts": TOGETHER,
    "include.benchmarks.measure.traces": "a program of its own, at the near end of a link",
    "include.cli.file_lists": PURE,
    "include.cvmfs.collect.weigh": TOGETHER,
    "include.cvmfs.commit.catalog_changes": TOGETHER,
    "include.cvmfs.ingest.packing": TOGETHER,
    "include.cvmfs.ingest.processes": TOGETHER,
    "include.cvmfs.sources.zipmembers": KIND,
    "include.gateway.service.commits.committer": TOGETHER,
    "include.gateway.client.transport": TOGETHER,
    "include.gateway.service.http.admin_calls": TOGETHER,
    "include.gateway.service.http.lease_calls": TOGETHER,
    "include.nightlies.removal.held": TOGETHER,
    "include.pages.benchmarks": KIND,
    "include.pages.nights_rows": TOGETHER,
    "include.pages.nights_view": PURE,
    "include.quality.suites": PURE,
    "include.reading.xroot": KIND,
    "include.site.stock_collecting": TOGETHER,
    "include.stageout.places.dav": KIND,
    "include.stageout.places.xrootd": KIND,
    "include.stageout.rest.limits": "knows Starlette, which its app does not",
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def test_no_package_is_large(tree: Tree) -> None:
    assert [name for name, size in packages(tree).items() if size > LARGE_PACKAGE] == []


def test_a_long_file_has_a_reason(tree: Tree) -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in tree.files.items()}
    assert sorted(LONG) == sorted(name for name, length in lengths.items() if length > LONG_FILE)


def test_a_module_with_one_importer_in_its_package_has_a_reason(tree: Tree) -> None:
    assert sorted(ALONE) == single_importer(tree)


def test_nothing_imports_upwards_in_any_way(tree: Tree) -> None:
    assert imports_up(tree) == []


def test_no_modules_import_each_other(tree: Tree) -> None:
    assert cycles(tree) == []


def test_a_class_name_has_one_meaning(tree: Tree) -> None:
    assert double_class_names(tree) == []


def test_a_package_imports_nothing_by_itself(tree: Tree) -> None:
    inits = {name: path for name, path in tree.files.items() if name.endswith("__init__")}
    assert [name for name in inits if tree.imports[name]] == []


def test_benchmarks_import_only_what_exists(tree: Tree) -> None:
    missing = []
    for file in (ROOT / "bench").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module in tree.files:
                missing += [f"{file.name}: {alias.name}" for alias in node.names if alias.name not in bound(tree, node)]
    assert missing == []


def bound(tree: Tree, statement: ast.ImportFrom) -> set[str]:
    """Names that the module of an import binds anywhere."""
    nodes = list(ast.walk(tree.syntax[statement.module or ""]))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return defined | assigned | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}


def test_a_server_that_only_tests_start_is_below_tests(imports: dict[str, list[str]]) -> None:
    servers = {f"lab.servers.{file.stem}" for file in (ROOT / "lab/servers").glob("[!_]*.py")}
    used = {module for file, modules in imports.items() if not file.startswith("tests/") for module in modules}
    assert servers - used == set()
