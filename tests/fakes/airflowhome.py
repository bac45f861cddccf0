"""A throw-away home for Airflow; import this before anything of Airflow is imported."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MARK = "TESTS_AIRFLOW_HOME"  # not NIGHTSHIFT_…: the suite takes those away, after the first conftest files were read


def use() -> Path:
    """Point this process at its own home, once; the folder goes away with the process."""
    known = os.environ.get(_MARK)
    if known is not None and known.partition(":")[0] == str(os.getpid()):
        return Path(known.partition(":")[2])
    if "airflow.configuration" in sys.modules:
        raise RuntimeError("Airflow was imported before its home was set: import tests.fakes.airflowhome first")
    home = Path(tempfile.mkdtemp(prefix="nightshift-airflow-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in [name for name in os.environ if name.startswith("AIRFLOW__")]:
        del os.environ[name]
    os.environ.update(
        {
            _MARK: f"{os.getpid()}:{home}",
            "AIRFLOW_HOME": str(home),
            "AIRFLOW_CONFIG": str(home / "airflow.cfg"),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),  # Airflow draws a shorter one
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",  # as airflow.cfg has it
        }
    )
    return home
