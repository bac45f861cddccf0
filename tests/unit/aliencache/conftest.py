"""A cache in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.aliencache.cache import AlienCache


@pytest.fixture
def cache(tmp_path: Path) -> AlienCache:
    made = AlienCache(tmp_path / "cache")
    made.initialise()
    return made
