"""A genuine Rucio server on SQLite in a folder, run by the environment that tests/install-rucio.sh makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import requests
from rucio.client import Client

from lab.ports import LOOPBACK, free_port
from lab.servers.process import ServerProcess

LOGIN, PASSWORD = "operator", "rucio's own"
_CONFIGURATION = """\
[common]
logdir = {folder}
loglevel = WARNING
[client]
rucio_host = {url}
auth_host = {url}
account = root
auth_type = userpass
username = {login}
password = {password}
auth_token_file_path = {folder}/token
[database]
default = sqlite:///{folder}/rucio.db
[bootstrap]
userpass_identity = {login}
userpass_pwd = {password}
[policy]
permission = generic
schema = generic
lfn2pfn_algorithm_default = hash
[alembic]
cfg = {folder}/alembic.ini
"""
_MIGRATIONS = """\
[alembic]
script_location = rucio:db/sqla/migrate_repo
sqlalchemy.url = sqlite:///{folder}/rucio.db
[loggers]
keys = root
[handlers]
keys = console
[formatters]
keys = generic
[logger_root]
level = WARNING
handlers = console
[handler_console]
class = StreamHandler
args = (sys.stderr,)
formatter = generic
[formatter_generic]
format = %(message)s
"""
_SERVE = """
import sys
if sys.argv[2] == "new":
    from rucio.db.sqla.util import build_database, create_base_vo, create_root_account
    build_database(), create_base_vo(), create_root_account()
from rucio.web.rest.flaskapi.v1.main import application
application.run(host="127.0.0.1", port=int(sys.argv[1]), threaded=True)
"""


class RucioServer:
    """The server; a context manager. Its database outlives a `kill`, as a crash leaves it.

    `python`: the interpreter with the packages `rucio` and `rucio-clients`.
    """

    def __init__(self, folder: Path, python: str) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._python, self._port = folder, python, free_port()
        self.url = f"http://{LOOPBACK}:{self._port}"
        values = {"folder": folder, "url": self.url, "login": LOGIN, "password": PASSWORD}
        (folder / "rucio.cfg").write_text(_CONFIGURATION.format(**values))
        (folder / "alembic.ini").write_text(_MIGRATIONS.format(**values))
        configuration = str(folder / "rucio.cfg")
        self._environment = {"RUCIO_HOME": str(folder), "RUCIO_CONFIG": configuration, "PYTHONPATH": ""}
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start it, the first time with a new database."""
        kind = "old" if (self._folder / "rucio.db").exists() else "new"
        command = [self._python, "-c", _SERVE, str(self._port), kind]
        self._process = ServerProcess(
            "rucio", command, log=self._folder / "server.log", ready=self._answers, env=self._environment
        )
        self._process.start()

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.kill()

    def client(self) -> Client:
        """A client of its own, as the administrator."""
        folder = f"{self._folder}/"

        class Own(Client):
            TOKEN_PATH_PREFIX = folder

        login = {"username": LOGIN, "password": PASSWORD}
        return Own(
            rucio_host=self.url, auth_host=self.url, account="root", auth_type="userpass", creds=login, vo="def"
        )  # fmt: skip

    def make(self, users: Sequence[str], rses: dict[str, tuple[str, str]], **options: Any) -> None:
        """Make accounts with a scope each, and RSEs: by name, scheme and host. `options`: of the RSEs."""
        client, every = self.client(), dict.fromkeys(("read", "write", "delete"), 1)
        for user in users:
            client.add_account(user, "USER", f"{user}@example.org")
            client.add_scope(user, f"user.{user}")
        for name, (scheme, host) in rses.items():
            impl = {"mock": "mock", "file": "posix"}.get(scheme, "gfal")
            protocol = {
                "scheme": scheme, "hostname": host, "port": 443 if impl == "gfal" else 0, "prefix": "/",
                "impl": f"rucio.rse.protocols.{impl}.Default", "domains": {"lan": every, "wan": every},
            }  # fmt: skip
            client.add_rse(name, **{"deterministic": False, **options})
            client.add_protocol(name, protocol)

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/ping", timeout=5).status_code == requests.codes.ok
        except requests.ConnectionError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
