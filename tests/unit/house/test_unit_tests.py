"""Unit tests mirror the source: a file bears the name of the module that it tests, and no test module is imported."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.structure import ROOT

UNIT = ROOT / "tests" / "unit"
OF_THE_LIBRARY = {path.stem for path in (ROOT / "include").glob("*.py")} | {
    path.parent.name for path in (ROOT / "include").glob("*/__init__.py")
}
# Folders whose files bear other names, and why.
OTHERS = {
    "docker": "files of docker/ are no modules",
    "house": "a rule is over all sources",
    "suite": "how the suite itself behaves",
}
# How often test modules below a folder, or a tool, import a test module. They may only shrink.
IMPORTED = {"tests/soak": 3, "tests/structure.py": 1}


def is_named_for_a_module(test: Path) -> bool:
    """A file is `test_<module>.py` or `test_<module>_<aspect>.py`, in the folder of the module's package."""
    folder = test.parent.relative_to(UNIT)
    first = folder.parts[0] if folder.parts else test.stem.removeprefix("test_")
    source = ROOT / ("tests" if first == "week" else "include" if first in OF_THE_LIBRARY else "") / folder
    modules = {path.stem for path in source.glob("*.py")}
    name = test.stem.removeprefix("test_").split("_")
    return any("_".join(name[:length]) in modules for length in range(1, len(name) + 1))


def test_a_unit_test_file_bears_the_name_of_a_module() -> None:
    misfits = [file.relative_to(UNIT) for file in UNIT.rglob("test_*.py") if not is_named_for_a_module(file)]
    assert sorted(str(file) for file in misfits if file.parts[0] not in OTHERS) == []


def test_no_test_module_imports_another(imports: dict[str, list[str]]) -> None:
    count: Counter[str] = Counter()
    for file, modules in imports.items():
        place = "/".join(file.split("/")[: 3 if file.startswith("tests/unit/") else 2])
        names = [module.rpartition(".")[2] for module in modules if module.startswith("tests.")]
        count[place] += sum(name.startswith("test_") for name in names if file.startswith("tests/"))
    assert +count == Counter(IMPORTED)
