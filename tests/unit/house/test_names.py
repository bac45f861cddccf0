"""Variables and parameters are named for the thing that they are: `lease`, `row`, and not `one`, `said`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from tests.structure import sources

REFUSED = {"one", "said", "found", "wanted", "known", "seen", "there", "theirs"}
# How many a package has still. It may only shrink; `wanted` of a trigger is stored with each task that waits.
ALLOWED = {
    "include": 3, "include/benchmarks": 59, "include/cvmfs": 14, "include/fts": 7, "include/ledger": 4,
    "include/monitoring": 67, "include/nightlies": 138, "include/provenance": 20,
    "include/publishers": 66, "include/quality": 9, "include/replicas": 3, "include/site": 5, "include/stageout": 120,
    "include/storage": 1, "lab": 56, "lab/commands": 2, "lab/fts": 14, "lab/servers": 1, "triggers": 1,
}  # fmt: skip


def bound(tree: ast.AST) -> Iterator[str]:
    """The names of variables, parameters and fields, wherever they get a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_every_way_to_bind_a_name_is_found() -> None:
    source = """
def sent(one, *, said=None):
    for one in [one for one in one]:
        said: str = (lambda said: said)(one)
"""
    assert Counter(bound(ast.parse(source))) == {"one": 3, "said": 3}


def test_a_variable_or_parameter_is_called_by_a_noun() -> None:
    found: Counter[str] = Counter()
    for file, tree in sources():
        found["/".join(PurePath(file).parent.parts[:2])] += sum(name in REFUSED for name in bound(tree))
    assert {package: count for package, count in found.items() if count} == ALLOWED
