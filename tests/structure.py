"""The shape of the code, here and at another commit: `make structure BASE=<commit>`.

Counts over the syntax trees; nothing is imported. Prints what is over a limit, then a table of both trees, and ends
with one JSON line: the figures of this tree, and those of the other one under ``base``.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tests.unit.house.test_arrows import RANK, subject

FOLDERS = ("include", "dags", "operators", "sensors", "triggers", "hooks", "plugins", "lab")
EVERYWHERE = (*FOLDERS, "bench", "docs", "tests")
ROOT = Path(__file__).resolve().parents[1]
LAB = ("lab.", "include.lab.", "include.fts.service.")
LONG_LINES, MANY_PARAMETERS = 40, 6
AIRFLOW_TERMS = frozenset(
    {"Asset", "Backfill", "Connection", "Context", "DAG", "DagRun", "Param", "Pool", "Task", "Variable"}
)


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax of a file, which is read once for all that ask for it."""
    return ast.parse(path.read_bytes(), str(path))


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Names and syntax of the Python files below folders of the project; by default of the product and the lab."""
    for path in (path for folder in folders or FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        yield str(path.relative_to(ROOT)), parsed(path)


@dataclass
class Tree:
    """The product modules below a folder, by dotted name."""

    root: Path
    files: dict[str, Path] = field(init=False)

    def __post_init__(self) -> None:
        found = (path for folder in FOLDERS for path in sorted((self.root / folder).rglob("*.py")))
        self.files = {".".join(path.relative_to(self.root).with_suffix("").parts): path for path in found}

    @cached_property
    def syntax(self) -> dict[str, ast.Module]:
        return {name: parsed(path) for name, path in self.files.items()}

    @cached_property
    def modules(self) -> list[str]:
        """All but the packages' ``__init__`` and the lab."""
        return [name for name in self.files if not name.endswith(".__init__") and not name.startswith(LAB)]

    def lines(self, *, lab: bool) -> int:
        """Lines of the product, or of the lab."""
        chosen = (path for name, path in self.files.items() if name.startswith(LAB) is lab)
        return sum(len(path.read_text().splitlines()) for path in chosen)

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Which product modules import each."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for name, targets in self.imports.items():
            for target in targets:
                found[target].add(name)
        return found

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Which product modules each imports, wherever the import statement is."""
        return {name: set(self._imported(tree)) - {name} for name, tree in self.syntax.items()}

    def _imported(self, tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.files)
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name for name in (*inner, node.module) if name in self.files)

    @cached_property
    def needed(self) -> dict[str, set[str]]:
        """As ``imports``, without what only annotations need."""
        return {name: set(self._imported(without_typing(tree))) - {name} for name, tree in self.syntax.items()}

    @cached_property
    def classes(self) -> list[tuple[str, ast.ClassDef]]:
        return [
            (name, node)
            for name, tree in self.syntax.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        ]


def without_typing(tree: ast.Module) -> ast.Module:
    typing = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return ast.Module([node for node in tree.body if node not in typing], [])


def logical_lines(path: Path, tree: ast.Module) -> int:
    """Statements' lines as the tokenizer counts them, without docstrings and comments."""
    with path.open("rb") as file:
        lines = sum(token.type == tokenize.NEWLINE for token in tokenize.tokenize(file.readline))
    texts = sum(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for node in ast.walk(tree)
    )
    return lines - texts


def exceptions(tree: Tree) -> tuple[int, list[str]]:
    """How many exception classes there are, and those that derive from no other one of the product."""
    parents = {node.name: [_last_name(base) for base in node.bases] for _, node in tree.classes}
    ours = {name for name in parents if _is_exception(name, parents)}
    return len(ours), sorted(name for name in ours if not any(base in ours for base in parents[name]))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_exception(name: str, parents: dict[str, list[str]], seen: frozenset[str] = frozenset()) -> bool:
    known = getattr(builtins, name, None)
    if isinstance(known, type):
        return issubclass(known, Exception)  # what derives from BaseException alone is a signal, as `KeyboardInterrupt`
    if name not in parents:
        return name.endswith(("Error", "Exception"))
    return name not in seen and any(_is_exception(base, parents, seen | {name}) for base in parents[name])


def double_class_names(tree: Tree) -> list[str]:
    """Public classes of one name in several modules, or with the name of a thing of Airflow's."""
    names = Counter(
        node.name for syntax in tree.syntax.values() for node in syntax.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )  # fmt: skip
    return sorted(name for name, times in names.items() if times > 1 or name in AIRFLOW_TERMS)


def single_importer(tree: Tree) -> list[str]:
    """Modules that one module alone imports, which is in the same package."""
    return sorted(
        name for name in tree.modules
        if [importer.rpartition(".")[0] for importer in tree.importers[name]] == [name.rpartition(".")[0]]
    )  # fmt: skip


def code_lines(path: Path, tree: ast.Module) -> int:
    """Lines that are not blank, no comment and no docstring."""
    texts = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(path.read_text().splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") for number, line in lines if number not in texts
    )


def import_lines(tree: ast.Module) -> int:
    """Lines of import statements, wherever they are."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def functions(tree: Tree) -> tuple[list[str], list[str]]:
    """Functions of too many lines, and of too many parameters."""
    long, wide = [], []
    for module, syntax in tree.syntax.items():
        for node in ast.walk(syntax):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                given = [
                    one
                    for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                    if one.arg not in {"self", "cls"}
                ]
                long += [f"{module}.{node.name} {lines}"] if lines > LONG_LINES else []
                wide += [f"{module}.{node.name} {len(given)}"] if len(given) > MANY_PARAMETERS else []
    return long, wide


def imports_up(tree: Tree) -> list[str]:
    """Imports against the order of the layers."""
    found = []
    for name, targets in tree.imports.items():
        own = subject(name)
        for target in sorted(targets):
            theirs = subject(target)
            if own != theirs and own in RANK and theirs in RANK and RANK[theirs] <= RANK[own]:
                found.append(f"{name} imports {target}")
    return found


def cycles(tree: Tree) -> list[list[str]]:
    """Groups of modules that import each other when they run (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in tree.needed[name]:
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in tree.files:
        if name not in order:
            visit(name)
    return found


def packages(tree: Tree) -> dict[str, int]:
    sizes: defaultdict[str, int] = defaultdict(int)
    for name in tree.modules:
        sizes[name.rpartition(".")[0]] += 1
    return dict(sizes)


Function = ast.FunctionDef | ast.AsyncFunctionDef
Types = dict[str, tuple[str, ast.ClassDef] | None]
BOTTOM = ("include.settings", "include.storage", "include.ledger", "include.cvmfs.format", "include.error")
STARTS = {"files_of_a_batch": ("publish_batch", "batch"), "files_of_a_collection": ("collect_garbage", "fqrn")}


@dataclass
class NamedModule:
    name: str
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)


class Program:
    """The functions, classes and methods of a tree, by name."""

    def __init__(self, tree: Tree) -> None:
        self.modules: dict[str, NamedModule] = {}
        self.methods: defaultdict[str, list[tuple[str, ast.ClassDef, Function]]] = defaultdict(list)
        for name, syntax in tree.syntax.items():
            module = self.modules[name] = NamedModule(name)
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

    def find(self, function: str) -> Iterator[tuple[str, Function]]:
        """The functions of this name in modules, each with its module."""
        return (
            (name, found.functions[function]) for name, found in self.modules.items() if function in found.functions
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


def below(module: str) -> bool:
    """Whether a module is of the layers that know no batch and no collection: errors, settings, stores, formats."""
    return module.endswith("errors") or module.startswith(BOTTOM)


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
        if below(module):
            return
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
        """Whether an expression has the value, or the result of a call that it is passed to."""
        return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(value))

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
                if not own and not below(where):
                    self.files.add(where)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
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
    """The files that a parameter of a function gets into, without those of the layers at the bottom."""
    program = Program(tree)
    journey = Journey(program)
    for module, start in program.find(function):
        journey.enter(module, start, frozenset({parameter}))
    return journey.files


def figures(tree: Tree) -> dict[str, float]:
    """One number for each question, in the order of the table."""
    classes, roots = exceptions(tree)
    long, wide = functions(tree)
    product = {name: path for name, path in tree.files.items() if not name.startswith(LAB)}
    imports = sum(import_lines(tree.syntax[name]) for name in product)
    return {
        "modules": len(product),
        "product_lines": (lines := tree.lines(lab=False)),
        "code_lines": sum(code_lines(path, tree.syntax[name]) for name, path in product.items()),
        "lab_lines": tree.lines(lab=True),
        "test_lines": sum(len(path.read_text().splitlines()) for path in (tree.root / "tests").rglob("*.py")),
        "single_importer": len(single_importer(tree)),
        "import_share": round(imports / lines, 4),
        **{name: len(files_of(tree, *start)) for name, start in STARTS.items()},
        "logical_lines": sum(logical_lines(path, tree.syntax[name]) for name, path in tree.files.items()),
        "exception_classes": classes,
        "exception_roots": len(roots),
        "double_class_names": len(double_class_names(tree)),
        "largest_package": max(packages(tree).values()),
        "functions_over_40_lines": len(long),
        "functions_over_6_parameters": len(wide),
        "imports_up": len(imports_up(tree)),
        "cycles": len(cycles(tree)),
    }


def at(commit: str, folder: Path) -> Tree:
    """The code of a commit, unpacked below ``folder``."""
    packed = subprocess.run(["git", "archive", commit], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return Tree(folder)


def report(tree: Tree) -> Iterator[str]:
    """What a reader of the figures asks next: which ones."""
    yield "packages: " + ", ".join(
        f"{name} {size}" for name, size in sorted(packages(tree).items(), key=lambda item: -item[1])[:12]
    )
    yield "exception roots: " + " ".join(exceptions(tree)[1])
    yield "class names with two meanings: " + " ".join(double_class_names(tree))
    yield "modules with one importer, in their package: " + " ".join(single_importer(tree))
    long, wide = functions(tree)
    yield f"functions over {LONG_LINES} lines: " + ", ".join(long)
    yield f"functions over {MANY_PARAMETERS} parameters: " + ", ".join(wide)
    yield from imports_up(tree)
    yield from (f"cycle: {' '.join(group)}" for group in cycles(tree))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="the commit to compare with")
    base = parser.parse_args().base
    here = Tree(Path(__file__).parent.parent)
    with tempfile.TemporaryDirectory(prefix="nightshift-structure-") as folder:
        before = figures(at(base, Path(folder)))
    now = figures(here)
    print(*report(here), sep="\n")
    print(f"\n{'':28} {base[:12]:>12} {'here':>12}")
    for name, value in now.items():
        print(f"{name:28} {before.get(name, 0):12,} {value:12,}")
    print(json.dumps({**now, "base": {"commit": base, **before}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
