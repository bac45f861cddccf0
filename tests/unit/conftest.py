"""Airflow has a home of its own, whichever test imports it first."""

from tests.fakes import airflowhome

airflowhome.use()

# ruff: noqa: E402 - Airflow reads its environment when it is first imported
import pytest

from tests.fakes.memorystore import MemoryStore
from tests.fakes.minirepo import MiniRepository, sample


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
