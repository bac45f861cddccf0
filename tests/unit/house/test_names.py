"""Variables and parameters are named for the thing that they are: `lease`, `row`, and not `one`, `said`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from tests.structure import sources

REFUSED = {"one", "said"}
# How many a package has still. It may only shrink.
ALLOWED = {"include/cvmfs": 3, "lab": 25, "lab/stageout": 12, "include/settings": 6}


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


def test_no_variable_or_parameter_is_called_one_or_said() -> None:
    found: Counter[str] = Counter()
    for file, tree in sources():
        found["/".join(PurePath(file).parent.parts[:2])] += sum(name in REFUSED for name in bound(tree))
    assert {package: count for package, count in found.items() if count} == ALLOWED
