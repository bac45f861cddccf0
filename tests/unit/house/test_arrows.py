"""The rule of the house that imports go down: dags, operators and sensors, triggers and hooks, then the library."""

from __future__ import annotations

import pytest

RANKS = (
    ("dags",),
    ("operators", "sensors"),
    ("triggers",),
    ("hooks",),
    ("include.lab", "include.cli"),
    ("include.care.watch",),
    ("include.care.preflight",),
    ("include.nightlies",),
    ("include.care.freezes", "include.care.provenance"),
    ("include.publishers",),
    ("include.gateway", "include.care.notify"),
    ("include.cvmfs", "include.settings"),
    ("include.storage", "include.ledger"),
    ("include.error_names",),
    ("include.errors",),
)
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
FOLDERS = sorted({name.partition(".")[0] for name in RANK})


def subject(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "include" else 1])


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_imports_upwards_nor_its_neighbour(folder: str, imports: dict[str, list[str]]) -> None:
    against = []
    for file, modules in imports.items():
        own = subject(file.removesuffix(".py").replace("/", "."))
        if not file.startswith(f"{folder}/") or own not in RANK:
            continue
        theirs = [one for one in map(subject, modules) if one in RANK and one != own]
        against += [f"{file} imports {one}" for one in theirs if RANK[one] <= RANK[own]]
    # the command line is how the lab is used
    assert [line for line in against if not line.startswith("include/cli/")] == []


def test_the_library_knows_no_airflow(imports: dict[str, list[str]]) -> None:
    library = {file: modules for file, modules in imports.items() if file.startswith("include/")}
    assert library
    for file, modules in library.items():
        assert not [one for one in modules if one.partition(".")[0] == "airflow"], file
