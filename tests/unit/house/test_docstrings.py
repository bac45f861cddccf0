"""What others call describes its arguments in a section of its docstring; pydoclint compares it with the signature."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.structure import ROOT, parsed, sources

CONSTRUCTED = ("operators", "sensors", "hooks")
INTERFACES = {
    "include/storage/store.py": "Store",
    "include/publishers/base.py": "Publisher",
    "include/fts/client.py": "FtsClient",
}
LEFT_OUT = {"self", "kwargs"}


def classes(file: str) -> Iterator[ast.ClassDef]:
    for node in parsed(ROOT / file).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    yield from (inner for inner in node.body if isinstance(inner, ast.FunctionDef))


def takes_arguments(function: ast.FunctionDef) -> bool:
    return bool({argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} - LEFT_OUT)


def describes_arguments(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return "\nArgs:\n" in (ast.get_docstring(node) or "")


def test_operators_sensors_and_hooks_describe_what_they_are_constructed_with() -> None:
    assert [
        node.name
        for file, _ in sources(*CONSTRUCTED)
        for node in classes(file)
        if node.name.endswith(("Operator", "Sensor", "Hook")) and not describes_arguments(node)
        if any(function.name == "__init__" and takes_arguments(function) for function in functions(node))
    ] == []


def test_every_method_of_an_interface_describes_its_arguments() -> None:
    found = {node.name: node for file in INTERFACES for node in classes(file)}
    assert [
        f"{name}.{function.name}"
        for name in INTERFACES.values()
        for function in functions(found[name])
        if not function.name.startswith("_") and takes_arguments(function) and not describes_arguments(function)
    ] == []


RELATIVE = re.compile(r"(What|Whether|How|Where|Who|Whose|Which|Why|One|Those|Of|As)\b")
# Docstrings of a package that still begin so, which is no sentence. The numbers may only fall.
STILL = {
    "include/benchmarks": 69, "include/fts": 13, "include/stageout": 17, "lab": 39,
}  # fmt: skip


def texts(tree: ast.AST) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and the texts below names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        body = getattr(node, "body", [])
        for name, text in pairwise(body) if isinstance(body, list) else ():
            if isinstance(name, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
                yield str(text.value.value) if isinstance(text.value, ast.Constant) else ""


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found: Counter[str] = Counter()
    for file, tree in sources():
        parts = file.split("/")
        package = "/".join(parts[:2]) if parts[0] == "include" else parts[0]
        found[package] += sum(RELATIVE.match(text) is not None for text in texts(tree))
    assert {package: count for package, count in found.items() if count} == STILL
