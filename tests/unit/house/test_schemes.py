"""The rule of the house that a store is asked what it is: no other place knows what a scheme of a URL means."""

from __future__ import annotations

import ast
import re

from tests.structure import sources

FOLDERS = ("dags", "hooks", "include", "operators", "plugins", "sensors", "triggers")
SCHEME = re.compile(r"(file|s3|https?):/{0,3}")
ALLOWED = {"include/settings/text_types.py": "a folder is written file:path in the settings, relative to their file"}


def judged_by_scheme(tree: ast.Module) -> list[int]:
    """The lines that look for a scheme at the beginning of a text."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in {"startswith", "removeprefix"}
        and any(isinstance(text, ast.Constant) and _is_scheme(text.value) for text in ast.walk(call))
    ]


def _is_scheme(value: object) -> bool:
    return isinstance(value, str) and SCHEME.fullmatch(value) is not None


def test_no_url_of_a_store_is_judged_by_its_beginning() -> None:
    found = {file: judged_by_scheme(tree) for file, tree in sources(*FOLDERS)}
    judging = {file: lines for file, lines in found.items() if lines and not file.startswith("include/storage/")}
    assert set(judging) == set(ALLOWED), judging


def test_the_rule_sees_every_form() -> None:
    source = """
url.startswith("s3://")
x.url.startswith(("http://", "https://"))
url.removeprefix("file://")
name.startswith("s3"), url.partition("://"), url.startswith(base)
"""
    assert judged_by_scheme(ast.parse(source)) == [2, 3, 4]
