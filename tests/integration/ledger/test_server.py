"""The database server that the suite starts itself."""

from __future__ import annotations

import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import Connection, Engine, text

from include.fts.transport import X509Files
from include.ledger import engine
from include.ledger.engine import open_ledger, reading, writing
from include.ledger.errors import LedgerUnavailable
from lab.servers.mariadb import MariaDbServer
from tests.fakes.certificates import Authority

pytestmark = pytest.mark.server("mariadbd")


def test_another_start_of_pytest_does_not_lock_the_server_out_of_its_files(
    mariadb: MariaDbServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    above = tmp_path_factory.getbasetemp().parent
    if above != Path(tempfile.gettempdir()):  # given by --basetemp: that folder is everybody's
        above.chmod(0o700)  # what pytest does whenever it starts
    mariadb.create_database("nightshift_beside_pytest")
    mariadb.drop_database("nightshift_beside_pytest")


def test_nobody_is_the_server_s_superuser_over_the_network(mariadb: MariaDbServer) -> None:
    with pytest.raises(pymysql.err.OperationalError, match=r"Access denied|not allowed"):
        pymysql.connect(host=mariadb.host, port=mariadb.port, user="root")


def test_servers_share_no_folder_of_temporary_tables(mariadb: MariaDbServer) -> None:
    """A server that starts removes all of them there, also those that another one is using."""
    ledger = open_ledger(mariadb.create_database("nightshift_temporary"), password=mariadb.password)
    with reading(ledger) as connection:
        assert Path(connection.scalar(text("SELECT @@tmpdir"))).is_relative_to(mariadb.directory)
    ledger.dispose()
    mariadb.drop_database("nightshift_temporary")


def test_a_ledger_is_reached_over_tls_by_those_who_trust_its_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))  # nor does its installation share that folder
    authority, another = (Authority(datetime.now(UTC)) for _ in range(2))
    (tmp_path / "other").mkdir()
    trusted, other = authority.bundle(tmp_path), another.bundle(tmp_path / "other")
    files = authority.files(tmp_path, "server", timedelta(days=1))
    with tempfile.TemporaryDirectory(prefix="nightshift-mariadb-") as folder:
        Path(folder).chmod(0o711)
        server = MariaDbServer(Path(folder) / "server", options=tls_of(files, Path(folder)))
        with server:
            url = server.create_database("nightshift_tls")
            for query, cipher in ((f"?ssl_ca={trusted}", True), ("?ssl_disabled=true", False)):
                ledger = open_ledger(url + query, password=server.password)
                with reading(ledger) as connection:
                    name, value = connection.execute(text("SHOW STATUS LIKE 'Ssl_cipher'")).one()
                assert (name, bool(value)) == ("Ssl_cipher", cipher)
                ledger.dispose()
            ledger = open_ledger(f"{url}?ssl_ca={other}", password=server.password)
            with pytest.raises(LedgerUnavailable), reading(ledger):
                pass
            ledger.dispose()


def tls_of(files: X509Files, folder: Path) -> tuple[str, ...]:
    """The options for a certificate, which the server's account can read in this folder."""
    certificate, key = folder / "server.pem", folder / "server.key"
    for ours, theirs in ((files.certificate, certificate), (str(files.key), key)):
        shutil.copy(ours, theirs)
        theirs.chmod(0o644)
    return (f"--ssl-cert={certificate}", f"--ssl-key={key}")


def test_a_connection_that_the_server_closed_is_replaced_and_none_keeps_its_locks(
    on_server: Engine, mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "IDLE_S", 0.0)
    own, other = (open_ledger(on_server.url, password=mariadb.password) for _ in range(2))

    def locked(connection: Connection) -> int:
        connection.execute(text("SELECT version_num FROM ledger_version FOR UPDATE NOWAIT"))
        return int(connection.scalar(text("SELECT CONNECTION_ID()")) or 0)

    first = writing(own, locked)
    with reading(own) as connection:
        assert locked(connection) == first
    with pytest.raises(ZeroDivisionError):
        writing(own, lambda connection: locked(connection) // 0)
    writing(other, locked)
    with reading(other) as connection:
        connection.execute(text(f"KILL {first}"))
    assert writing(own, locked) != first
    own.dispose()
    other.dispose()
