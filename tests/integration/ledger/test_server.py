"""The database server that the suite starts itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from include.lab.servers.mariadb import MariaDbServer

pytestmark = pytest.mark.server("mariadbd")


def test_another_start_of_pytest_does_not_lock_the_server_out_of_its_files(
    mariadb: MariaDbServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    above = tmp_path_factory.getbasetemp().parent
    if above != Path(tempfile.gettempdir()):  # given by --basetemp: that folder is everybody's
        above.chmod(0o700)  # what pytest does whenever it starts
    mariadb.create_database("nightshift_beside_pytest")
    mariadb.drop_database("nightshift_beside_pytest")
