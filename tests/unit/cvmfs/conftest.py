"""Repositories and stores for tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.collecting import Place
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, sample


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A repository whose clock is moved by the test."""
    return Place(tmp_path)


@pytest.fixture
def store() -> MemoryStore:
    """An empty store."""
    return MemoryStore()


@pytest.fixture
def mini(store: MemoryStore) -> MiniRepository:
    """The sample repository, published in it."""
    built = sample(store)
    built.publish()
    return built
