"""Something to collect."""

from __future__ import annotations

import pytest

from include.cvmfs.format.manifest import Manifest
from tests.fakes.collecting import Place


@pytest.fixture
def old(place: Place) -> Manifest:
    """A revision that a collection deletes."""
    return place.garbage()
