"""A small configuration file that is right, and a way to load variations of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from include.settings.load import parse
from include.settings.model import SiteSettings

GOOD = """\
ledger: "sqlite:///${NIGHTSHIFT_VAR:-var}/ledger.db"
stores:
  main:
    url: s3://cvmfs
    endpoint: http://127.0.0.1:8433
    connection: store_main
repositories:
  nightlies.example.org:
    store: main
    public_url: http://127.0.0.1:8433/cvmfs/nightlies.example.org
    public_key: keys/nightlies.example.org.pub
    gateway: gw
    limits: {members: 10, bytes: 1GiB}
slots:
  main:
    repository: nightlies.example.org
    store: main
    schedule: "0 2 * * *"
    timezone: Europe/Zurich
    projects: [Gaudi, LHCb]
"""


@pytest.fixture
def parsed(tmp_path: Path) -> Callable[..., SiteSettings]:
    """Loads `GOOD` with pieces of it replaced."""

    def parse_with(*changes: tuple[str, str], text: str = GOOD, **environ: str) -> SiteSettings:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        return parse(text, file="site.yaml", root=tmp_path, environ=environ)

    return parse_with
