"""An empty environment, as on the machine of a new site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def empty_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home below a folder, enter it, and forget all connections, keys and settings."""
    for name in [name for name in os.environ if name.startswith(("AIRFLOW_CONN_", "AWS_", "NIGHTSHIFT_"))]:
        monkeypatch.delenv(name)
    home = folder / "home"
    home.mkdir()
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(home))
    monkeypatch.chdir(home)
    return home
