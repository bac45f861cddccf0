"""The rules of the house for packages: what we import is asked for by name, in the file of those who need it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions

from tests.structure import EVERYWHERE, ROOT, Tree, without_typing

OURS = {*EVERYWHERE, *(path.stem for folder in EVERYWHERE for path in (ROOT / folder).iterdir())}
NAME = re.compile(r"\w[\w.-]*")
DISTRIBUTIONS = packages_distributions()
PRODUCTION, LAB, DEV, DOCS = (
    "requirements.in", "requirements-lab.in", "requirements-dev.in", "requirements-docs.in",
)  # fmt: skip


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(*files: str) -> set[str]:
    """The packages that these files ask for."""
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines()]
    return {normal(found.group()) for line in lines if (found := NAME.match(line))}


def missing(modules: Iterable[str], *files: str) -> set[str]:
    """The packages of others among these modules that none of these files asks for."""
    packages = {one.partition(".")[0] for one in modules} - sys.stdlib_module_names - OURS
    known = named(*files)
    return {one for one in packages if not {normal(each) for each in DISTRIBUTIONS.get(one, [one])} & known}


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_every_package_that_we_import_is_named(imports: dict[str, list[str]]) -> None:
    found = {file: missing(modules, PRODUCTION, LAB, DEV, DOCS) for file, modules in imports.items()}
    assert {file: packages for file, packages in found.items() if packages} == {}


def test_production_imports_only_what_the_image_carries() -> None:
    found = {}
    for name, syntax in Tree(ROOT).syntax.items():
        needed = without_typing(syntax)
        if name.startswith("lab."):  # the command line imports it everywhere, and uses it on one machine
            found[name] = missing(imported(needed.body), PRODUCTION)
            found[name] |= missing(imported(ast.walk(needed)), PRODUCTION, LAB)
        else:
            found[name] = missing(imported(ast.walk(needed)), PRODUCTION)
    assert {name: packages for name, packages in found.items() if packages} == {}
