"""What `make structure` counts, on a tree small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure import Tree, cycles, double_class_names, exceptions, figures, imports_up, single_importer

FILES = {
    "include/storage/__init__.py": "",
    "include/storage/one.py": """
from include.storage import two
class StoreError(Exception): ...
class Place: ...
""",
    "include/storage/two.py": """
import include.storage.one
class Full(include.storage.one.StoreError): ...
""",
    "include/cvmfs/three.py": """
class Place:
    'A text.'

    def go(self, a, b, c, d, e, f, g): ...  # seven
""",
    "include/storage/four.py": """
from include.cvmfs.three import Place
class Connection(Place): ...
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(tmp_path)


def test_each_figure_of_a_small_tree(tree: Tree) -> None:
    assert exceptions(tree) == (2, ["StoreError"])
    assert double_class_names(tree) == ["Connection", "Place"]
    assert single_importer(tree) == ["include.storage.one", "include.storage.two"]
    assert imports_up(tree) == ["include.storage.four imports include.cvmfs.three"]
    assert cycles(tree) == [["include.storage.one", "include.storage.two"]]
    assert figures(tree) == {
        "modules": 5, "product_lines": 15, "code_lines": 9, "lab_lines": 0, "test_lines": 0, "single_importer": 2,
        "import_share": 0.2, "files_of_a_batch": 0, "files_of_a_collection": 0, "logical_lines": 9,
        "exception_classes": 2, "exception_roots": 1, "double_class_names": 2, "largest_package": 3,
        "functions_over_40_lines": 0, "functions_over_6_parameters": 1, "imports_up": 1, "cycles": 1,
    }  # fmt: skip
