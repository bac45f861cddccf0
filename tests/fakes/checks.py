"""Checks of a `MiniRepository`, and damage to a row of it."""

from __future__ import annotations

from typing import Any

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.check.findings import Subject
from include.cvmfs.format.hashes import path_hash
from tests.fakes.minirepo import MiniRepository, opened

HERE = "md5path_1 = ? AND md5path_2 = ?"


def checked(mini: MiniRepository, **options: Any) -> CheckReport:
    return check(opened(mini.store), **options)


def places(report: CheckReport) -> set[tuple[Subject, str]]:
    """Subject and path of each problem."""
    return {(problem.subject, problem.path) for problem in report.problems}


def key_of(mini: MiniRepository, path: str) -> str:
    """Key of the object of a file."""
    name = opened(mini.store).revision.entry(path).hash
    assert name is not None
    return name.key


def set_row(path: str, assignment: str, *values: object) -> tuple[Any, ...]:
    """A statement that changes the row of a path, with its values."""
    return (f"UPDATE catalog SET {assignment} WHERE {HERE}", *values, *path_hash(path))
