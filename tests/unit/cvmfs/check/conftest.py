"""A sample repository, and what a check finds in it."""

from __future__ import annotations

import pytest

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.check.findings import Subject
from include.cvmfs.revision.repository import Repository
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, opened, sample


@pytest.fixture
def mini(store: MemoryStore) -> MiniRepository:
    """The sample repository, built and not published yet."""
    return sample(store)


def checked(mini: MiniRepository, **options: object) -> CheckReport:
    return check(opened(mini.store), **options)


def found(report: CheckReport) -> set[tuple[Subject, str]]:
    return {(problem.subject, problem.path) for problem in report.problems}


def key_of(mini: MiniRepository, path: str) -> str:
    name = Repository.open(mini.store).revision.entry(path).hash
    assert name is not None
    return name.key
