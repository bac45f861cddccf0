"""A sample repository to check."""

from __future__ import annotations

import pytest

from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, sample


@pytest.fixture
def mini(store: MemoryStore) -> MiniRepository:
    """The sample repository, built and not published yet."""
    return sample(store)
