"""What holds for all tests: nothing of the caller's site is seen, no skips in CI, each ends and has its own id."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout
from hypothesis import HealthCheck, settings

from include.storage.file import FileStore
from tests.fakes import servers

FOREIGN = ("NIGHTSHIFT_", "AIRFLOW_CONN_", "AWS_")
PROXIES = ("HTTP_PROXY", "http_proxy")
HERE = Path(__file__).parent
MIGRATE = "include.ledger.migrate"
CHECKOUT_LEDGER = str(HERE.parent / "var" / "ledger.db")
_opened: list[str] = []
LONG = (
    "dags/test_nights.py",
    "integration/benchmarks/test_runners.py",
    "integration/lab/test_lifecycle.py",
    "integration/nightlies/test_partial.py",
    "faults/test_publisher_dies.py",
    "integration/publishers/server/test_faults.py",
    "faults/test_gateway_points.py",
    "integration/cli/test_repo_commands.py",
    "integration/publishers/server/test_table.py",
    "faults/test_collection_dies.py",
    "integration/stageout/test_rucio.py",
    "integration/benchmarks/test_endpoints.py",
    "integration/benchmarks/test_remote_hosts.py",
    "integration/reading/test_faults.py",
    "integration/backup/test_restore.py",
    "faults/test_stageout_machine.py",
    "faults/test_gateway_dies.py",
    "faults/test_cache_dies.py",
    "faults/test_store_trouble.py",
    "faults/test_gateway_machine.py",
    "integration/lab/test_rabbitmq.py",
    "integration/benchmarks/test_outages.py",
)

TOGETHER = ("tests/dags/",)
"""Folders whose files one worker runs: Airflow's tables, its API and the site in one process are ten seconds' work."""


# A busy machine fails no test. With CI set, Hypothesis loads a profile of its own without a deadline.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For `make check`, which is run again and again; `make test` draws in full.
settings.register_profile("quick", settings.get_profile("busy"), max_examples=15)
if not os.environ.get("CI"):
    settings.load_profile("busy")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take the caller's site, ledger, stores, keys and lab away before a test module is even imported."""
    patch = pytest.MonkeyPatch()
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in PROXIES:
            patch.delenv(name)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # The folder of the checkout may hold a lab, whose connections would answer for any that a test leaves out.
    var = tempfile.mkdtemp(prefix="nightshift-tests-")
    patch.setenv("NIGHTSHIFT_VAR", var)
    config.add_cleanup(lambda: shutil.rmtree(var, ignore_errors=True))
    for module in (sqlite3, sqlite3.dbapi2):
        patch.setattr(module, "connect", _not_to_the_checkout(sqlite3.connect))
    config.add_cleanup(patch.undo)


def _not_to_the_checkout(connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
    """Refuse the ledger that a site without `ledger` has: it may be that of a lab, and a test would see its state."""

    def guarded(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        if CHECKOUT_LEDGER in os.fsdecode(database):
            _opened.append(os.environ.get("PYTEST_CURRENT_TEST", ""))
            raise AssertionError(f"{CHECKOUT_LEDGER} belongs to no test: set `ledger` in the settings of this one")
        return connect(database, *arguments, **options)

    return guarded


@pytest.fixture(autouse=True)
def _own_ledger() -> Iterator[None]:
    """Fail a test that opened the checkout's ledger, whatever became of the error."""
    _opened.clear()
    yield
    assert not _opened, f"{CHECKOUT_LEDGER} was opened; set `ledger` in the settings of this test"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest begin first: at the end no worker waits for another one's last file."""
    twice = [name for name, times in Counter(item.nodeid for item in items).items() if times > 1]
    if twice:
        raise pytest.UsageError(f"several tests have the id {twice[0]}; parallel runners would run one of them")
    places = {HERE / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, but for the folders whose files belong together."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((one for one in TOGETHER if nodeid.startswith(one)), super()._split_scope(nodeid))

    return ByFileOrFolder(config, log)


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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """A test that failed has a time limit again, which pytest-timeout takes away for a debugger."""
    limited = item.config.pluginmanager.is_registered(pytest_timeout)
    if limited and (settings := pytest_timeout._get_item_settings(item)).timeout:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    yield


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


@pytest.fixture(autouse=True)
def _new_ledgers_from_a_template(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not where the ledger itself is tested. Most tests never load its library, and shall not for this."""
    if MIGRATE in sys.modules and request.path.parent.name != "ledger":
        from tests.fakes.ledgers import from_a_template

        from_a_template(monkeypatch)


@pytest.fixture
def file_store(tmp_path: Path) -> FileStore:
    """An empty store in a folder."""
    return FileStore(tmp_path / "store")
