"""A deployment on each kind of store, with the real gateway service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from include.storage.store import Store
from tests.site import Deployment


@pytest.fixture
def site(known_store: Store, any_public_url: str, tmp_path: Path) -> Iterator[Deployment]:
    site = Deployment(tmp_path, known_store, any_public_url).with_gateway()
    yield site
    site.close()


@pytest.fixture
def reserved(site: Deployment) -> Deployment:
    """The same with destinations."""
    site.reserve()
    return site
