"""The database server that the suite starts itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from sqlalchemy import text

from include.lab.servers.mariadb import MariaDbServer
from include.ledger.engine import open_ledger, reading

pytestmark = pytest.mark.server("mariadbd")


def test_another_start_of_pytest_does_not_lock_the_server_out_of_its_files(
    mariadb: MariaDbServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    above = tmp_path_factory.getbasetemp().parent
    if above != Path(tempfile.gettempdir()):  # given by --basetemp: that folder is everybody's
        above.chmod(0o700)  # what pytest does whenever it starts
    mariadb.create_database("nightshift_beside_pytest")
    mariadb.drop_database("nightshift_beside_pytest")


def test_servers_share_no_folder_of_temporary_tables(mariadb: MariaDbServer) -> None:
    """A server that starts removes all of them there, also those that another one is using."""
    ledger = open_ledger(mariadb.create_database("nightshift_temporary"), password=mariadb.password)
    with reading(ledger) as connection:
        assert Path(connection.scalar(text("SELECT @@tmpdir"))).is_relative_to(mariadb.directory)
    ledger.dispose()
    mariadb.drop_database("nightshift_temporary")
