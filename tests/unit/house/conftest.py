"""What our files import, read once for all rules of the house."""

from __future__ import annotations

import re

import pytest

from tests.structure import EVERYWHERE, ROOT

# the linter lets an import stand only on a line of its own; code in texts, which is run as well, is found too
IMPORT = re.compile(r"^\s*(?:from ([\w.]+) import |import ([\w.]+))", re.MULTILINE)


@pytest.fixture(scope="session")
def imports() -> dict[str, list[str]]:
    """Each of our files, and the modules that it imports, wherever in the file."""
    files = [file for folder in EVERYWHERE for file in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(file.relative_to(ROOT)): IMPORT.finditer(file.read_text()) for file in files}
    return {file: [one[1] or one[2] for one in modules] for file, modules in found.items()}
