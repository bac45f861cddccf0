"""A user's certificate and key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.fts.client.transport import X509Files
from tests.fakes.certificates import Authority


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority(datetime.now(UTC))


@pytest.fixture
def user(authority: Authority, tmp_path: Path) -> X509Files:
    """A credential that lasts for a day."""
    return authority.files(tmp_path, "user", timedelta(days=1))
