"""The suite's own rules: with CI set a skip is a failure, and no test sees the caller's site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SKIPS = """
import pytest

pytestmark = pytest.mark.slow

@pytest.fixture
def without_server():
    pytest.skip("no such server: radio")

def test_in_a_fixture(without_server): ...

@pytest.mark.skip(reason="marked as unwanted")
def test_marked(): ...

@pytest.mark.skipif(True, reason="wrong kind of machine")
def test_marked_on_a_condition(): ...

def test_in_the_body():
    pytest.skip("not in the mood")

def test_in_the_body_by_import():
    pytest.importorskip("no_such_module_at_all")

@pytest.fixture
def unfinished():
    yield
    pytest.skip("too tired to clean up")

def test_in_a_teardown(unfinished): ...

@pytest.mark.server("no-such-program")
def test_by_the_marker_of_servers(): ...

@pytest.mark.xfail(reason="known", strict=True)
def test_that_is_known_to_fail():
    assert False

def test_that_is_well(): ...
"""
REASONS = (
    "no such server: radio",
    "marked as unwanted",
    "wrong kind of machine",
    "not in the mood",
    "could not import 'no_such_module_at_all'",
    "too tired to clean up",
    "needs the server no-such-program",
)
SKIPPED_MODULE = 'import pytest\npytest.importorskip("no_such_module_at_all")\ndef test_one(): ...\n'
LOOKS_AROUND = """
import os
from pathlib import Path
AT_IMPORT = {name for name in os.environ if name.startswith(("NIGHTSHIFT_", "AIRFLOW_CONN_"))}

def test_nothing_of_the_caller_is_seen():
    assert AT_IMPORT == {"NIGHTSHIFT_VAR"}
    assert {name for name in os.environ if name.startswith(("NIGHTSHIFT_", "AIRFLOW_CONN_"))} == AT_IMPORT
    from lab.environment import LabFolders, adopt
    assert list(LabFolders.from_environment(os.environ).var.iterdir()) == []  # neither the caller's nor the checkout's
    adopt()
    from include.settings.secrets import EnvSecrets
    from include.settings.errors import SettingsError
    try:
        EnvSecrets().get("gateway_of_the_experiment")
    except SettingsError:
        return
    raise AssertionError("a connection of the caller was found")
"""

OPENS = f"""
import sqlite3

def test_own(tmp_path):
    sqlite3.connect(tmp_path / "ledger.db").close()

def test_checkout():
    try:
        sqlite3.connect({str(ROOT / "var" / "ledger.db")!r})
    except BaseException:
        pass
"""

HANGS = """
import threading
import pytest

@pytest.fixture
def server():
    yield
    threading.Event().wait()

def test_fails(server):
    raise AssertionError("seen")

def test_next(): ...
"""


def run(folder: Path, module: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A session with this suite's own conftest, on one module."""
    (folder / "test_inner.py").write_text(module)
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    options = ("-q", "-rA", "-p", "tests.conftest", "-p", "no:cacheprovider", "-o", "markers=server", *more)
    # its own folder for temporary files: in the common one it would clear away what older sessions left, for a minute
    own = f"--basetemp={folder / 'temporary'}"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, own, f"--rootdir={folder}", "test_inner.py"],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def outcomes(shown: str) -> dict[str, int]:
    last = shown.strip().splitlines()[-1]
    return {word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}


def test_with_ci_set_every_skip_is_a_failure_that_names_its_reason(tmp_path: Path) -> None:
    plain, shown = run(tmp_path, SKIPS), run(tmp_path, SKIPS, CI="true")
    assert (plain.returncode, shown.returncode) == (0, 1), shown.stdout
    found = outcomes(plain.stdout)
    assert (found["skipped"], found["passed"], found["xfailed"]) == (len(REASONS), 2, 1)
    # a skip in a teardown comes after a test that passed
    found = outcomes(shown.stdout)
    assert "skipped" not in found
    assert (found["failed"] + found["error"], found["passed"], found["xfailed"]) == (len(REASONS), 2, 1)
    for reason in REASONS:
        assert f"CI is set, and this was not tested. Skipped: {reason}" in shown.stdout


@pytest.mark.parametrize(("ci", "code"), [("true", 2), ("", 5)])
def test_a_module_that_skips_itself_is_an_error_with_ci_set(tmp_path: Path, ci: str, code: int) -> None:
    shown = run(tmp_path, SKIPPED_MODULE, CI=ci)
    assert shown.returncode == code, shown.stdout
    assert ("not tested. Skipped: could not import 'no_such_module_at_all'" in shown.stdout) is bool(ci)


def test_a_test_sees_nothing_of_the_callers_site(tmp_path: Path) -> None:
    """Neither while it is imported nor while it runs."""
    shown = run(
        tmp_path,
        LOOKS_AROUND,
        NIGHTSHIFT_CONFIG="/etc/nightshift/site.yaml",
        NIGHTSHIFT_LEDGER_URL="mysql+pymysql://ledger.example.org/nights",
        NIGHTSHIFT_VAR="/var/lib/nightshift",
        NIGHTSHIFT_S3_SECRET_KEY="secret",
        AIRFLOW_CONN_GATEWAY_OF_THE_EXPERIMENT='{"conn_type": "cvmfs_gateway", "password": "secret"}',
    )
    assert shown.returncode == 0, shown.stdout


def test_a_test_that_failed_and_hangs_in_its_teardown_ends_and_is_named(tmp_path: Path) -> None:
    shown = run(tmp_path, HANGS, "-p", "pytest_timeout", "--timeout", "0.5")
    found = outcomes(shown.stdout)
    assert (found["failed"], found["passed"], found["error"]) == (1, 1, 1)
    assert "ERROR test_inner.py::test_fails - Failed: Timeout" in shown.stdout


def test_a_test_that_opens_the_ledger_of_the_checkout_fails_whatever_catches_the_error(tmp_path: Path) -> None:
    shown = run(tmp_path, OPENS)
    assert outcomes(shown.stdout) == {"passed": 2, "error": 1}, shown.stdout
    assert "set `ledger` in the settings of this test" in shown.stdout
