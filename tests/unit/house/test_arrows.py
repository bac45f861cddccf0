"""The rule of the house that imports go down: dags, operators and sensors, triggers and hooks, then the library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RANKS = (
    ("dags",),
    ("operators", "sensors"),
    ("triggers",),
    ("hooks",),
    ("include.lab", "include.cli"),
    ("include.watch",),
    ("include.preflight",),
    ("include.nightlies",),
    ("include.interventions", "include.provenance"),
    ("include.publishers",),
    ("include.gateway", "include.notify"),
    ("include.cvmfs", "include.settings"),
    ("include.storage", "include.ledger"),
)
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
FOLDERS = sorted({name.partition(".")[0] for name in RANK})


def subject(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "include" else 1])


def imports() -> Iterator[tuple[str, str]]:
    """Each file of ours and each subject of ours that it imports, wherever in the file."""
    for file in (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from ((str(file.relative_to(ROOT)), subject(name)) for name in names if subject(name) in RANK)


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_imports_upwards_nor_its_neighbour(folder: str) -> None:
    against = []
    for file, imported in imports():
        own = subject(file.removesuffix(".py").replace("/", "."))
        if own.startswith(folder) and own in RANK and own != imported and RANK[imported] <= RANK[own]:
            against.append(f"{file} imports {imported}")
    # the command line is how the lab is used
    assert [line for line in against if not line.startswith("include/cli/")] == []


def test_the_library_knows_no_airflow() -> None:
    files = (ROOT / "include").rglob("*.py")
    trees = {file: ast.parse(file.read_text()) for file in files}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] == "airflow"], file
