"""What holds for all tests: an environment without the settings of whoever runs them, and no skips in CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from include.storage.file import FileStore
from tests.fakes import servers

FOREIGN = ("NIGHTSHIFT_", "AIRFLOW_CONN_", "AWS_")
PROXIES = ("HTTP_PROXY", "http_proxy")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take the caller's site, ledger, stores and keys away before a test module is even imported."""
    patch = pytest.MonkeyPatch()
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in PROXIES:
            patch.delenv(name)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    config.add_cleanup(patch.undo)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With CI set, nothing may be left untested: a skip of a test or in its fixtures is a failure."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """With CI set, a module that skips itself is an error."""
    report = yield
    if os.environ.get("CI") and report.skipped:
        _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"CI is set, and this was not tested. {reason}"


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
