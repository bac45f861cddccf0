"""The rule of the house that imports go down: dags, operators and sensors, triggers and hooks, then the library."""

from __future__ import annotations

import pytest

RANKS = (
    ("lab",),
    ("dags",),
    ("operators", "sensors"),
    ("triggers",),
    ("hooks",),
    ("include.cli", "include.pages"),
    ("include.monitoring",),
    ("include.backup",),
    ("include.benchmarks", "include.federation"),
    ("include.quality", "include.nightlies.removal", "include.stageout"),
    ("include.nightlies.steps",),
    ("include.nightlies.steps.values",),
    ("include.nightlies.records",),
    ("include.nightlies.rules",),
    ("include.nightlies",),
    ("include.provenance", "include.replicas"),
    ("include.federation.records",),
    ("include.federation.states",),
    ("include.site",),
    ("include.publishers",),
    ("include.gateway.service.http",),
    ("include.gateway.service.commits",),
    ("include.gateway.service.leases",),
    ("include.gateway.service",),
    ("include.airflow_api", "include.gateway", "include.notify", "include.fts", "include.reading"),
    ("include.aliencache", "include.cvmfs.check", "include.cvmfs.collect"),
    ("include.cvmfs.commit",),
    ("include.cvmfs.ingest",),
    ("include.cvmfs.coordination",),
    ("include.cvmfs.revision",),
    ("include.cvmfs.sources",),
    ("include.cvmfs.format",),
    ("include.cvmfs", "include.settings"),
    ("include.storage", "include.ledger"),
    ("include.http_bounds", "include.http_calls", "include.json_values"),
    ("include.errors",),
)
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
FOLDERS = sorted({name.partition(".")[0] for name in RANK})


def subject(module: str) -> str:
    """The innermost package with a rank that a module is in; of any other module its first two names."""
    parts = module.split(".")
    within = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in within if name in RANK), ".".join(parts[:2]))


@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_imports_upwards_nor_its_neighbour(folder: str, imports: dict[str, list[str]]) -> None:
    against = []
    for file, modules in imports.items():
        own = subject(file.removesuffix(".py").replace("/", "."))
        if not file.startswith(f"{folder}/") or own not in RANK:
            continue
        theirs = [one for one in map(subject, modules) if one in RANK and one != own]
        against += [f"{file} imports {one}" for one in theirs if RANK[one] <= RANK[own]]
    assert against == []


def test_the_library_knows_no_airflow(imports: dict[str, list[str]]) -> None:
    library = {file: modules for file, modules in imports.items() if file.startswith("include/")}
    assert library
    for file, modules in library.items():
        assert not [one for one in modules if one.partition(".")[0] == "airflow"], file
