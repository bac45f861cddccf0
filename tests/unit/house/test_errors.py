"""The rules for errors: one root, codes for classes and rows, the way to other processes, and their tests."""

from __future__ import annotations

import ast
import builtins
import importlib
import pickle
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

from include.errors import Concern, ErrorRow, NightshiftError, kinds_in
from include.monitoring.alerts import SUBJECTS
from tests.structure import ROOT, parsed, sources

FOLDERS = ("bench", "dags", "hooks", "include", "operators", "plugins", "sensors", "triggers")
ROOT_CLASS = ("include.errors", "NightshiftError")
SIGNALS = {("operators.lease_task", "Killed")}
"""Not errors: nothing that handles exceptions may stop them."""
CODE = re.compile(r"[a-z]+(-[a-z]+)*")

Name = tuple[str, str]
"""A module and a class in it."""


@dataclass(frozen=True)
class Kind:
    """An exception class of ours, as the source has it."""

    name: Name
    node: ast.ClassDef
    ours: tuple[Name, ...]
    others: tuple[type, ...]

    @property
    def code(self) -> str | None:
        """What the class itself says, not what it inherits."""
        return next((value for name, value in self.constants() if name == "code"), None)

    @property
    def has_fields(self) -> bool:
        """It has a constructor of its own, which a row has not."""
        return any(isinstance(one, ast.FunctionDef) for one in self.node.body)

    def constants(self) -> list[tuple[str, str]]:
        pairs = [one for one in self.node.body if isinstance(one, ast.Assign)]
        return [(ast.unparse(one.targets[0]), str(getattr(one.value, "value", ""))) for one in pairs]


@cache
def modules() -> dict[str, list[ast.AST]]:
    """The modules of the product, and all nodes of their syntax."""
    return {file.removesuffix(".py").replace("/", "."): [*ast.walk(tree)] for file, tree in sources(*FOLDERS)}


@cache
def origins(module: str) -> dict[str, Name]:
    """Return the origin of each class that a module imports or defines, by its name there."""
    nodes = modules()[module]
    origin = {
        name.asname or name.name: (str(node.module), name.name)
        for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names
    }  # fmt: skip
    return origin | {node.name: (module, node.name) for node in nodes if isinstance(node, ast.ClassDef)}


@cache
def kinds() -> dict[Name, Kind]:
    """Every class of the product that is an exception."""
    found: dict[Name, tuple[ast.ClassDef, dict[str, Name]]] = {}
    for module, nodes in modules().items():
        names = origins(module)
        found |= {(module, node.name): (node, names) for node in nodes if isinstance(node, ast.ClassDef)}
    all_of_them = {}
    for name, (node, known) in found.items():
        bases = [one.id for one in node.bases if isinstance(one, ast.Name)]
        ours = tuple(known[one] for one in bases if known.get(one) in found)
        others = tuple(getattr(builtins, one) for one in bases if one not in known and hasattr(builtins, one))
        all_of_them[name] = Kind(name, node, ours, others)

    def is_exception(kind: Kind) -> bool:
        return any(issubclass(one, BaseException) for one in kind.others) or any(
            is_exception(all_of_them[one]) for one in kind.ours
        )

    return {name: kind for name, kind in all_of_them.items() if is_exception(kind)}


@cache
def rows() -> dict[str, list[str]]:
    """The codes of the rows of each module."""
    found = {}
    for module, nodes in modules().items():
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        found[module] = [ast.literal_eval(call.args[1]) for call in calls if getattr(call.func, "id", "") == "ErrorRow"]
    return {module: codes for module, codes in found.items() if codes}


def loaded() -> dict[str, type[NightshiftError] | ErrorRow[..., NightshiftError]]:
    """The classes and rows of the library, by their codes."""
    ours = {module for module in {name[0] for name in kinds()} | rows().keys() if module.startswith("include.")}
    return kinds_in(*map(importlib.import_module, sorted(ours)))


def test_every_error_derives_from_the_one_root() -> None:
    roots = {name for name, kind in kinds().items() if not kind.ours}
    assert roots == {ROOT_CLASS} | SIGNALS


def test_every_error_has_a_code_of_its_own() -> None:
    codes = {name: kind.code for name, kind in kinds().items() if name not in SIGNALS | {ROOT_CLASS}}
    assert len(codes) > 50
    assert [name for name, code in codes.items() if code is None] == []
    used = Counter([*codes.values(), *(code for some in rows().values() for code in some)])
    assert [code for code, count in used.items() if count > 1 or not CODE.fullmatch(str(code))] == []


def test_every_row_is_a_constant_of_a_module_of_the_library() -> None:
    assert {code for some in rows().values() for code in some} - loaded().keys() == set()


def test_every_error_of_the_library_survives_the_way_to_another_process() -> None:
    for kind in {one.raised if isinstance(one, ErrorRow) else one for one in loaded().values()}:
        error = kind.__new__(kind)
        error.args, error.__dict__["detail"], error.code = ("what happened",), {"key": 1}, "code-of-a-row"
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.args, copy.__dict__) == (kind, error.args, error.__dict__)


def test_an_alert_knows_every_error_that_concerns_the_site() -> None:
    site = {code for code, kind in loaded().items() if kind.concern is not Concern.ARTIFACT}
    assert site - kinds_in(*SUBJECTS).keys() == set()


TOLD_APART = frozenset({
    # failures of a publication
    "artifact-is-directory", "artifact-size-mismatch", "changes-reverted", "failed-in-earlier-step",
    "operation-not-supported", "publication-lossy", "publication-unknown", "source-not-allowed",
    # failures of a task
    "approval-too-late", "base-build-unusable", "batch-failed", "build-date-unknown", "build-unknown",
    "choice-unknown", "illegal-move", "question-answered", "repository-problems", "reserve-failed", "stale-attempt",
    "undo-refused",
})  # fmt: skip
"""Codes by which people tell causes apart in the ledger and in alerts, where no program does. It may only shrink."""
ATTRIBUTES = {"retryable", "outage", "concern", "hint"}


def named() -> set[Name]:
    """The errors that the product names other than to define, import, annotate or raise them."""
    found: set[Name] = set()
    for module, nodes in modules().items():
        names = origins(module)
        passed = {id(one) for node in nodes for place in _elsewhere(node) for one in ast.walk(place)}
        for node in (node for node in nodes if id(node) not in passed):
            if isinstance(node, ast.Name) and node.id in names:
                found.add(names[node.id])
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
                found.add((".".join(names[node.value.id]), node.attr))
    return found


def _elsewhere(node: ast.AST) -> list[ast.AST]:
    """Parts of a node where the name of a class is no decision."""
    if isinstance(node, ast.Call):
        # the class itself, not its arguments: `isinstance` has it there
        return [node.func]
    if isinstance(node, ast.ClassDef):
        return [*node.bases]
    places = [getattr(node, name, None) for name in ("annotation", "returns")]
    return [one for one in places if isinstance(one, ast.AST)]


def test_a_leaf_differs_from_its_parent_in_more_than_a_row_says() -> None:
    handled, above = named(), {one for kind in kinds().values() for one in kind.ours}
    alike = {
        kind.code for name, kind in kinds().items()
        if name not in above | handled | SIGNALS and kind.ours != (ROOT_CLASS,)
        and not (kind.has_fields and ATTRIBUTES & {one for one, _ in kind.constants()})
    }  # fmt: skip
    assert alike == TOLD_APART


FOREIGN_TEXTS = {"include/publishers/server/connection.py": 1}
"""How often a file decides on the text of an error: of a library that has no other way to tell."""


def test_no_decision_is_made_on_the_text_of_an_error() -> None:
    found: Counter[str] = Counter()
    for file, tree in sources(*FOLDERS):
        caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)} - {None}
        if not caught:
            continue
        texts = {f"str({name})" for name in caught} | {f"str({name}).startswith" for name in caught}
        compared = [
            one for node in ast.walk(tree) if isinstance(node, ast.Compare)
            for place, one in zip(node.ops, node.comparators, strict=True) if isinstance(place, ast.In | ast.NotIn)
        ]  # fmt: skip
        called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        found[file] += sum(ast.unparse(one) in texts for one in [*compared, *called])
    assert +found == Counter(FOREIGN_TEXTS)


MESSAGES = {
    # tests of one subject each
    "unit": 20,
    # tests with servers and whole nights
    "elsewhere": 25,
}
"""How often tests expect words of a message: where people act on it and no field tells as much. It may only shrink."""


def test_errors_are_expected_by_class_and_fields_and_seldom_by_their_wording() -> None:
    found: Counter[str] = Counter()
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(parsed(file)) if "match=" in file.read_text() else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"raises", "warns"}:
                place = "unit" if file.is_relative_to(ROOT / "tests/unit") else "elsewhere"
                found[place] += any(one.arg == "match" for one in node.keywords)
    assert found <= Counter(MESSAGES)
