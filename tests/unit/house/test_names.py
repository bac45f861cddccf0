"""Variables and parameters are named for the thing that they are: `lease`, `row`, and not `one`, `said`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.fakes.airflowhome import ROOT
from tests.unit.house.test_words import CODE

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
    for file in (file for folder in CODE for file in sorted((ROOT / folder).rglob("*.py"))):
        package = "/".join(file.relative_to(ROOT).parent.parts[:2])
        found[package] += sum(name in REFUSED for name in bound(ast.parse(file.read_bytes())))
    assert {package: count for package, count in found.items() if count} == ALLOWED
