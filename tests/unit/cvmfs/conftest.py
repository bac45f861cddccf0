"""A repository for tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.collecting import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A repository whose clock is moved by the test."""
    return Place(tmp_path)
