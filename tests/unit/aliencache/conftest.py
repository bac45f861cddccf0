"""A cache in a folder, and a repository to fill it with."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.aliencache.cache import AlienCache
from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, sample


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mini(store: MemoryStore) -> MiniRepository:
    built = sample(store)
    built.publish()
    return built


@pytest.fixture
def cache(tmp_path: Path) -> AlienCache:
    made = AlienCache(tmp_path / "cache")
    made.initialise()
    return made
