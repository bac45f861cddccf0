"""The shape of the product code, here and at another commit: `make structure BASE=<commit>`.

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
from functools import cached_property
from pathlib import Path

from tests.unit.house.test_arrows import RANK, subject

FOLDERS = ("include", "dags", "operators", "sensors", "triggers", "hooks", "plugins", "lab")
SMALL_LINES, LONG_LINES, MANY_PARAMETERS = 60, 40, 6
AIRFLOW_TERMS = frozenset(
    {"Asset", "Backfill", "Connection", "Context", "DAG", "DagRun", "Param", "Pool", "Task", "Variable"}
)


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
        return {name: ast.parse(path.read_bytes(), str(path)) for name, path in self.files.items()}

    @cached_property
    def modules(self) -> list[str]:
        """All but the packages' ``__init__``."""
        return [name for name in self.files if not name.endswith(".__init__")]

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


def small_single_importer(tree: Tree) -> list[str]:
    """Modules of a few lines that one other module imports."""
    importers = Counter(target for targets in tree.imports.values() for target in targets)
    return sorted(
        name for name in tree.modules
        if importers[name] == 1 and len(tree.files[name].read_text().splitlines()) < SMALL_LINES
    )  # fmt: skip


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


def figures(tree: Tree) -> dict[str, int]:
    """One number for each question, in the order of the table."""
    classes, roots = exceptions(tree)
    long, wide = functions(tree)
    return {
        "logical_lines": sum(logical_lines(path, tree.syntax[name]) for name, path in tree.files.items()),
        "modules": len(tree.modules),
        "exception_classes": classes,
        "exception_roots": len(roots),
        "double_class_names": len(double_class_names(tree)),
        "small_single_importer": len(small_single_importer(tree)),
        "largest_package": max(packages(tree).values()),
        "functions_over_40_lines": len(long),
        "functions_over_6_parameters": len(wide),
        "imports_up": len(imports_up(tree)),
        "cycles": len(cycles(tree)),
    }


def at(commit: str, folder: Path) -> Tree:
    """The product code of a commit, unpacked below ``folder``."""
    packed = subprocess.run(["git", "archive", commit, "--", *FOLDERS], capture_output=True, check=True).stdout
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
    yield "small modules with one importer: " + " ".join(small_single_importer(tree))
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
        print(f"{name:28} {before[name]:12,} {value:12,}")
    print(json.dumps({**now, "base": {"commit": base, **before}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
