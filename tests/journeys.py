"""Journeys of a value: the files that it is entered into on its way through the calls that pass it on.

A value is a parameter of a function. It, what is computed from it, and the results of calls that it is passed to are
followed into every function of the product that they are an argument or the object of. Calls are resolved by imports,
annotations and, for a method that one class alone has, by its name; so it errs by a file or two.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.structure import Tree

Function = ast.FunctionDef | ast.AsyncFunctionDef
Types = dict[str, tuple[str, ast.ClassDef] | None]
STARTS = {"files_of_a_batch": ("publish_batch", "batch"), "files_of_a_collection": ("collect_garbage", "fqrn")}


@dataclass
class Module:
    name: str
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)


class Program:
    """The functions, classes and methods of a tree, by name."""

    def __init__(self, tree: Tree) -> None:
        self.modules: dict[str, Module] = {}
        self.methods: defaultdict[str, list[tuple[str, ast.ClassDef, Function]]] = defaultdict(list)
        for name, syntax in tree.syntax.items():
            module = self.modules[name] = Module(name)
            for node in syntax.body:
                if isinstance(node, Function):
                    module.functions[node.name] = node
                elif isinstance(node, ast.ClassDef):
                    module.classes[node.name] = node
                    for inner in node.body:
                        if isinstance(inner, Function):
                            self.methods[inner.name].append((name, node, inner))
            for node in ast.walk(syntax):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        local = alias.asname or alias.name
                        if f"{node.module}.{alias.name}" in tree.files:
                            module.modules[local] = f"{node.module}.{alias.name}"
                        elif node.module in tree.files:
                            module.imported[local] = (node.module, alias.name)

    def methods_of(self, kind: tuple[str, ast.ClassDef], name: str) -> Iterator[tuple[str, Function, ast.ClassDef]]:
        """The methods of this name of a class, its bases and what derives from it."""
        family = {kind[1].name, *self.bases(kind[1])} | {
            node.name for module in self.modules.values() for node in module.classes.values()
            if kind[1].name in self.bases(node)
        }  # fmt: skip
        yield from ((where, inner, node) for where, node, inner in self.methods[name] if node.name in family)

    def bases(self, node: ast.ClassDef) -> set[str]:
        found: set[str] = set()
        todo = [base.id for base in node.bases if isinstance(base, ast.Name)]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += [
                    base.id for module in self.modules.values() if name in module.classes
                    for base in module.classes[name].bases if isinstance(base, ast.Name)
                ]  # fmt: skip
        return found

    def find(self, function: str) -> tuple[str, Function]:
        return next(
            (name, module.functions[function])
            for name, module in self.modules.items()
            if (function in module.functions and ".steps." in f".{name}.")
            or (function in module.functions and "collections" in name)
        )

    def class_of(self, module: str, annotation: ast.expr | None) -> tuple[str, ast.ClassDef] | None:
        if isinstance(annotation, ast.BinOp):
            return self.class_of(module, annotation.left) or self.class_of(module, annotation.right)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.Name):
            return self.named_class(module, annotation.id)
        return None

    def named_class(self, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
        here = self.modules[module]
        if name in here.classes:
            return module, here.classes[name]
        if name in here.imported:
            origin, original = here.imported[name]
            found = self.modules[origin].classes.get(original)
            return (origin, found) if found else None
        return None


def parameters(function: Function) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


class Journey:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.seen: set[tuple[str, str, frozenset[str]]] = set()
        self.files: set[str] = set()

    def enter(
        self, module: str, function: Function, tainted: frozenset[str], owner: ast.ClassDef | None = None
    ) -> None:
        key = (module, f"{owner.name if owner else ''}.{function.name}", tainted)
        if key in self.seen or not tainted:
            return
        self.seen.add(key)
        self.files.add(module)
        types = {arg.arg: self.program.class_of(module, arg.annotation) for arg in parameters(function)}
        if owner is not None:
            types["self"] = types["cls"] = (module, owner)
        names = set(tainted)
        for _ in range(2):  # what a loop computes late, it uses early in its next round
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and self._carries(node.value, names):
                    for target in node.targets:
                        names |= _bound(target)
                elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                    if self._carries(node.value, names):
                        names |= _bound(node.target)
                elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and self._carries(node.iter, names):
                    names |= _bound(node.target)
                elif isinstance(node, ast.withitem) and node.optional_vars and self._carries(node.context_expr, names):
                    names |= _bound(node.optional_vars)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
                made = self._made(module, node.value, types)
                if made and isinstance(node.targets[0], ast.Name):
                    types[node.targets[0].id] = made
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                self._call(module, owner, node, names, types)

    def _carries(self, value: ast.expr, names: set[str]) -> bool:
        """Whether an expression has the value, and not only the result of a call that it is passed to."""
        if isinstance(value, ast.Call):
            kind = value.func
            if isinstance(kind, ast.Name) and kind.id[:1].isupper():
                return any(
                    self._carries(part, names) for part in (*value.args, *(word.value for word in value.keywords))
                )
            return False
        if isinstance(value, ast.Name):
            return value.id in names
        return any(self._carries(part, names) for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))

    def _made(self, module: str, call: ast.Call, types: Types) -> tuple[str, ast.ClassDef] | None:
        if isinstance(call.func, ast.Name):
            found = self.program.named_class(module, call.func.id)
            if found:
                return found
            for where, function in self._functions(module, call.func.id):
                return self.program.class_of(where, function.returns)
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            kind = types.get(call.func.value.id)
            for where, function, _ in self.program.methods_of(kind, call.func.attr) if kind else ():
                return self.program.class_of(where, function.returns)
        return None

    def _functions(self, module: str, name: str) -> Iterator[tuple[str, Function]]:
        here = self.program.modules[module]
        if name in here.functions:
            yield module, here.functions[name]
        elif name in here.imported:
            origin, original = here.imported[name]
            if original in self.program.modules[origin].functions:
                yield origin, self.program.modules[origin].functions[original]

    def _targets(
        self, module: str, owner: ast.ClassDef | None, call: ast.Call, types: Types
    ) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
        function = call.func
        if isinstance(function, ast.Name):
            yield from ((where, found, None) for where, found in self._functions(module, function.id))
            if made := self.program.named_class(module, function.id):
                where, kind = made
                own = [inner for inner in kind.body if isinstance(inner, Function) and inner.name == "__init__"]
                yield from ((where, inner, kind) for inner in own)
                if not own:
                    self.files.add(where)
        elif isinstance(function, ast.Attribute):
            if isinstance(function.value, ast.Name):
                here = self.program.modules[module]
                if function.value.id in here.modules:
                    origin = here.modules[function.value.id]
                    if function.attr in self.program.modules[origin].functions:
                        yield origin, self.program.modules[origin].functions[function.attr], None
                    return
                kind = types.get(function.value.id) or self.program.named_class(module, function.value.id)
                if kind:
                    yield from self.program.methods_of(kind, function.attr)

    def _call(
        self, module: str, owner: ast.ClassDef | None, call: ast.Call, names: set[str],
        types: Types,
    ) -> None:  # fmt: skip
        given = [self._carries(argument, names) for argument in call.args]
        keywords = {word.arg: self._carries(word.value, names) for word in call.keywords}
        of = isinstance(call.func, ast.Attribute) and self._carries(call.func.value, names)
        if not (any(given) or any(keywords.values()) or of):
            return
        for where, function, kind in self._targets(module, owner, call, types):
            names_there = [arg.arg for arg in parameters(function)]
            bound = kind is not None and names_there[:1] in (["self"], ["cls"])
            positional = names_there[1:] if bound else names_there
            passed = {name for name, carries in zip(positional, given, strict=False) if carries}
            passed |= {name for name, carries in keywords.items() if name and carries}
            if of and bound:
                passed.add(names_there[0])
            self.enter(where, function, frozenset(passed), kind)


def _bound(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def files_of(tree: Tree, function: str, parameter: str) -> set[str]:
    program = Program(tree)
    module, start = program.find(function)
    journey = Journey(program)
    journey.enter(module, start, frozenset({parameter}))
    return journey.files


if __name__ == "__main__":
    import sys
    from pathlib import Path

    tree = Tree(Path(sys.argv[1]))
    for name, (function, parameter) in STARTS.items():
        files = files_of(tree, function, parameter)
        print(name, len(files), *sorted(files), sep="\n  ")
