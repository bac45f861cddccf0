"""What others call describes its arguments in a section of its docstring; pydoclint compares it with the signature."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.fakes.airflowhome import ROOT

CONSTRUCTED = ("operators", "sensors", "hooks")
INTERFACES = {
    "include/storage/store.py": "Store",
    "include/publishers/base.py": "Publisher",
    "include/fts/client/client.py": "FtsClient",
}
LEFT_OUT = {"self", "kwargs"}


def classes(file: str) -> Iterator[ast.ClassDef]:
    for node in ast.parse((ROOT / file).read_bytes()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    yield from (inner for inner in node.body if isinstance(inner, ast.FunctionDef))


def takes_arguments(function: ast.FunctionDef) -> bool:
    return bool({argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} - LEFT_OUT)


def describes_arguments(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return "\nArgs:\n" in (ast.get_docstring(node) or "")


def test_operators_sensors_and_hooks_describe_what_they_are_constructed_with() -> None:
    files = [str(file.relative_to(ROOT)) for folder in CONSTRUCTED for file in sorted((ROOT / folder).rglob("*.py"))]
    assert [
        node.name
        for file in files
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
