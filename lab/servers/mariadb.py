"""MariaDB of Debian's package `mariadb-server`, with all its files in one folder: a ledger's server."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from lab.ports import LOOPBACK, free_port
from lab.secrets import write_private
from lab.servers.process import OwnServer, ServerProcess, ServerStartError, find_program

LOGIN = "nightshift"


@dataclass(eq=False)
class MariaDbServer(OwnServer):
    """A server with all its files in `directory`, and one user, `LOGIN`; on loopback only, if not told otherwise.

    The user may do everything in databases whose name begins with `nightshift`, and nothing else. `start` wants a
    folder that does not exist yet; `prepare`, `command` and `ready` are for a process manager, and a folder that stays.
    `account`: whom root runs it as; `options`: more of them, for the server.
    """

    directory: Path
    _: KW_ONLY
    host: str = LOOPBACK
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_urlsafe(18), repr=False)
    account: str = "mysql"
    options: Sequence[str] = ()

    @property
    def log(self) -> Path:
        return self.directory / "mariadb.log"

    def url(self, database: str) -> str:
        """The ledger URL of a database, without the password."""
        return f"mysql+pymysql://{LOGIN}@{self.host}:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Make an empty database, which must begin with `nightshift`; returns its URL without the password."""
        self._execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database and all that is in it; harmless if it is not there."""
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def command(self) -> list[str]:
        """The command line; it holds no secret."""
        program = find_program("mariadbd")
        if program is None:
            raise ServerStartError("mariadb", "the program is missing; apt-get install mariadb-server")
        return [
            program,
            "--no-defaults",
            f"--datadir={self.directory / 'data'}",
            # in a folder that servers share, one that starts removes the temporary tables of the others
            f"--tmpdir={self.directory / 'tmp'}",
            f"--socket={self.directory / 'm.sock'}",
            f"--pid-file={self.directory / 'm.pid'}",
            f"--init-file={self._script}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
            "--innodb-flush-log-at-trx-commit=0",
            "--performance-schema=off",
            *self.options,
            *self._as_account(),
        ]

    def prepare(self, database: str) -> None:
        """Makes its files if they are absent, and has the next start make this database and the user's password."""
        if not (self.directory / "data" / "mysql").is_dir():
            shutil.rmtree(self.directory, ignore_errors=True)  # an interrupted start
            self._initialise()
        self._write_script(f"CREATE DATABASE IF NOT EXISTS `{database}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;\n")

    def ready(self) -> bool:
        """Tell whether the server answers that has the user and the password made here."""
        import pymysql

        try:
            self._connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def start(self) -> None:
        """Make its files, start it and wait until it is ready; ServerStartError if it is not."""
        command = self.command()
        self._initialise()
        self._process = ServerProcess("mariadb", command, log=self.log, ready=self.ready, stop_timeout_s=20)
        self._process.start()

    @property
    def process(self) -> ServerProcess:
        """The running program, for those who send it signals."""
        if self._process is None:
            raise ServerStartError("mariadb", "is not started")
        return self._process

    @property
    def _script(self) -> Path:
        return self.directory / "init.sql"

    def _initialise(self) -> None:
        install = find_program("mariadb-install-db")
        if install is None:
            raise ServerStartError("mariadb", "mariadb-install-db is missing; apt-get install mariadb-server")
        data, temporary = self.directory / "data", self.directory / "tmp"
        data.mkdir(parents=True)
        temporary.mkdir()
        self._write_script()
        if os.geteuid() == 0:
            owner = self._account()
            for path in (self.directory, data, temporary, self._script):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        options = [
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=socket",
            "--skip-test-db",
            *self._as_account(),
        ]
        # a server that starts removes the temporary tables of its folder, also those of another one's installation
        own = {**os.environ, "TMPDIR": str(temporary)}
        with self.log.open("ab") as output:
            done = subprocess.run([install, *options], env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        if done.returncode:
            raise ServerStartError("mariadb", f"mariadb-install-db ended with code {done.returncode}; see {self.log}")

    def _write_script(self, more: str = "") -> None:
        """What the server runs whenever it starts."""
        clients = LOOPBACK if self.host == LOOPBACK else "%"
        write_private(
            self._script,
            f"CREATE OR REPLACE USER '{LOGIN}'@'{clients}' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON `nightshift%`.* TO '{LOGIN}'@'{clients}';\n{more}",
        )

    def _execute(self, statement: str) -> None:
        with contextlib.closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def _connect(self) -> Any:
        import pymysql

        return pymysql.connect(
            host=self.host, port=self.port, user=LOGIN, password=self.password, autocommit=True, connect_timeout=5
        )

    def _as_account(self) -> list[str]:
        return [f"--user={self._account().pw_name}"] if os.geteuid() == 0 else []

    def _account(self) -> pwd.struct_passwd:
        # MariaDB refuses to run as root unasked; its package makes the account `mysql` for it
        try:
            return pwd.getpwnam(self.account)
        except KeyError:
            raise ServerStartError(
                "mariadb", f"there is no account `{self.account}` to run as; apt-get install mariadb-server"
            ) from None
