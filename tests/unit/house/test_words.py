"""Texts are in plain English: they have none of the words that docs/glossary.md replaces."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from tests.structure import ROOT, sources

AVOIDED = re.compile(
    r"\b(whoever|anew|what stands|stands there|somebody|nobody|is told|looked at|for want of|"
    r"deeds?|came to nothing|(?<!there )is none)\b",
    re.IGNORECASE,
)
# Of the decisions, which are records of their time. It may only shrink.
ALLOWED = {
    "0001": 1, "0009": 1, "0011": 1, "0012": 1, "0013": 1, "0014": 3, "0015": 2, "0016": 1, "0017": 1, "0018": 2,
    "0019": 1, "0020": 5, "0021": 6,
}  # fmt: skip


def avoided(text: str) -> int:
    return len(AVOIDED.findall(" ".join(text.split())))


def texts() -> Iterator[tuple[str, int, str]]:
    """File, line and text of all that the code writes and of its docstrings."""
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield file, node.lineno, node.value


def test_a_word_to_avoid_is_found_across_lines() -> None:
    assert avoided("It is looked\nat by Whoever comes; there is none.") == 2


def test_the_pages_have_no_word_to_avoid() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert {page.name: found for page in pages if (found := avoided(page.read_text()))} == {}


def test_the_decisions_have_no_more_of_them_than_before() -> None:
    found = Counter({page.name[:4]: avoided(page.read_text()) for page in (ROOT / "docs" / "decisions").glob("*.md")})
    assert {number: count for number, count in sorted(found.items()) if count} == ALLOWED


def test_messages_forms_pages_and_docstrings_have_no_word_to_avoid() -> None:
    assert [(file, line, text) for file, line, text in texts() if avoided(text)] == []
