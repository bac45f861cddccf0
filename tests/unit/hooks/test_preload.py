"""What is imported before tasks are forked: all that most of them import, nothing heavy, and nothing that runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hooks import preload
from tests.structure import ROOT, sources

LEFT_TO_TASKS = ("include.benchmarks.", "lab.", "include.pages.", "include.quality.")
"""Imported by few tasks, or only where they do something seldom."""
HEAVY = {"great_expectations", "numpy", "pandas", "plotly", "scipy"}
_PROGRAM = """
import sys, threading
from hooks.preload import preload
preload()
assert threading.active_count() == 1, threading.enumerate()
import include.pages.app, include.quality.check  # Great Expectations is for what judges alone
print(*sys.modules)
"""


def imported_late() -> set[str]:
    """The modules of this project that functions of operators, sensors, triggers and DAG files import."""
    found = set()
    for _, tree in sources("dags", "operators", "sensors", "triggers"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("include."):
                found.add(node.module)
    return found


@pytest.mark.slow
def test_most_that_tasks_import_is_there_before_and_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    there = set(done.stdout.split())
    assert not there & HEAVY
    missing = {name for name in imported_late() - there if not name.startswith(LEFT_TO_TASKS)}
    assert missing == set()


def test_components_preload_and_tasks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(preload, "preload", lambda: calls.append(1))
    preload.on_starting(SimpleNamespace())
    assert calls == []
    preload.on_starting(type("Job", (), {})())
    assert calls == [1]
