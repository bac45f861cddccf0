"""The transfer loop, with a ledger in SQLite, an FTS server over HTTP and storages in memory; and real storages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from tests.fakes.davserver import DavServer
from tests.fakes.ftsserver import FtsServer
from tests.fakes.ledgers import from_a_template
from tests.fakes.transferloop import TransferLoop


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[TransferLoop]:
    """Stage-out without transfers."""
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.MonkeyPatch.context() as patch, FtsServer() as server:
        from_a_template(patch)
        migrate(ledger)
        loop = TransferLoop(ledger, server)
        yield loop
        loop.close()
    ledger.dispose()


@pytest.fixture
def dav() -> Iterator[DavServer]:
    """A WebDAV server with two users' files."""
    files = {
        "/cms/temp/user/ann/a.root": b"hello\n",
        "/cms/temp/user/ann/sub/b c.root": b"",
        "/cms/temp/user/bob/c.root": b"bob's",
    }
    with DavServer(files) as server:
        yield server
