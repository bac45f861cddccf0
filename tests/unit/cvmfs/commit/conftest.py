"""Repositories to commit to and to edit."""

from __future__ import annotations

import pytest

from tests.fakes.edits import EditedStore, founded
from tests.fakes.memorystore import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    """A store with a new repository."""
    return founded()


@pytest.fixture
def repository() -> EditedStore:
    """A store of revisions without signatures."""
    return EditedStore()
