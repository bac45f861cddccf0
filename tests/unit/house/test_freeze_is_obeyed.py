"""Every operator that changes a repository waits while it is frozen: found by what its steps call, not by a list."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache

from operators.lease_task import WritingOperator
from tests.structure import ROOT, parsed, sources

GATES = frozenset({"publisher", "switching", "require_thawed"})
"""Functions that each change of a repository goes through; docs/decisions/0017-freeze-as-an-object-of-the-store.md."""


@cache
def module(name: str) -> ast.Module | None:
    for path in (ROOT / f"{name.replace('.', '/')}.py", ROOT / name.replace(".", "/") / "__init__.py"):
        if path.is_file():
            return parsed(path)
    return None


@cache
def imported(name: str) -> dict[str, tuple[str, str]]:
    """Local name -> module and name there, of whatever a module imports from our library, anywhere in it."""
    found: dict[str, tuple[str, str]] = {}
    tree = module(name)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("include"):
            for one in node.names:
                found[one.asname or one.name] = (str(node.module), one.name)
    return found


@cache
def functions(name: str) -> dict[str, ast.AST]:
    tree = module(name)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)} if tree else {}


def called(node: ast.AST) -> Iterator[str]:
    """Names that are called, or handed on to be."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.Attribute):
            yield one.attr


def goes_through_a_gate(node: ast.AST) -> bool:
    calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any((one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")) in GATES for one in calls)


def reaches_a_gate(where: str, node: ast.AST, seen: set[tuple[str, str]]) -> bool:
    """Whether code of a module changes a repository, in itself or in a function of ours that it calls."""
    if goes_through_a_gate(node):
        return True
    for name in set(called(node)):
        place = (where, name) if name in functions(where) else imported(where).get(name)
        if place is None or place in seen:
            continue
        seen.add(place)
        target = functions(place[0]).get(place[1])
        if target is not None and reaches_a_gate(place[0], target, seen):
            return True
    return False


def operators() -> list[tuple[str, ast.ClassDef]]:
    return [
        (file.removesuffix(".py").replace("/", "."), node)
        for file, tree in sources("operators") for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Operator")
    ]  # fmt: skip


@cache
def writers() -> list[type]:
    # not at import: each worker imports this module, one runs its tests
    return [
        getattr(importlib.import_module(where), node.name)
        for where, node in operators()
        if reaches_a_gate(where, node, set())
    ]


def test_an_operator_that_changes_a_repository_waits_for_its_thaw() -> None:
    for operator in writers():
        assert issubclass(operator, WritingOperator), f"{operator.__name__} changes it: see operators/lease_task.py"
        ours = [
            one for one in operator.__mro__ if one.__module__.startswith("operators.") and one is not WritingOperator
        ]
        waits = [one for one in ours if "unless_frozen" in inspect.getsource(one)]
        assert waits, f"{operator.__name__} does its work outside of `unless_frozen`"


def test_the_search_finds_those_that_are_known_to_write_and_none_that_only_looks() -> None:
    names = {one.__name__ for one in writers()}
    assert names >= {
        "PublishArtifactsOperator", "ReserveDestinationsOperator", "VerifyArtifactsOperator",
        "InheritArtifactsOperator", "SetLinksOperator", "PruneTagsOperator", "UndoBuildOperator",
        "CvmfsPublishTreeOperator", "CvmfsRemoveOperator", "CvmfsTagOperator", "CvmfsLeaseOperator",
    }  # fmt: skip
    assert not names & {
        "CheckRepositoryOperator",
        "CheckWhitelistOperator",
        "CheckCompletenessOperator",
        "PlanNightOperator",
        "WatchNightsOperator",
    }


def test_every_gate_of_the_search_asks_for_the_freeze() -> None:
    assert "require_thawed" in set(called(functions("include.site.site")["switching"]))
    assert "require_thawed" in set(called(functions("include.site.site")["publisher"]))


def test_the_search_sees_through_functions_that_call_others() -> None:
    made = ast.parse("class SomeOperator:\n    def execute(self):\n        prune_tags()\n").body[0]
    assert reaches_a_gate("include.nightlies.steps.care", made, set())
    harmless = ast.parse("class SomeOperator:\n    def execute(self):\n        check_quickly()\n").body[0]
    assert not reaches_a_gate("include.nightlies.steps.care", harmless, set())
