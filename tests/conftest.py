"""Fixtures of all tests: an environment without the settings of whoever runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.storage.file import FileStore
from tests.fakes import servers


@pytest.fixture(autouse=True, scope="session")
def _no_foreign_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NIGHTSHIFT_CONFIG", "NIGHTSHIFT_VAR", "HTTP_PROXY", "http_proxy"):
            patch.delenv(name, raising=False)
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_PROFILE",
            "AWS_ENDPOINT_URL",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def need() -> Callable[[str], str]:
    """``need("mariadbd")``: the program's path, or a named skip (a failure if CI is set)."""
    return servers.need


@pytest.fixture(autouse=True)
def _skip_for_missing_servers(request: pytest.FixtureRequest) -> None:
    for marker in request.node.iter_markers("server"):
        servers.need(marker.args[0])


@pytest.fixture
def file_store(tmp_path: Path) -> FileStore:
    """An empty store in a folder."""
    return FileStore(tmp_path / "store")
