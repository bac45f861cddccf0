"""Copies of the ledger in a file while others write to it: SQLite's own backup, or a dump of a server."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, cast

from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from include.ledger.engine import reading, shown
from include.ledger.errors import LedgerError

DUMP_PROGRAMS = ("mariadb-dump", "mysqldump")
CLIENT_PROGRAMS = ("mariadb", "mysql")
_DUMP_OPTIONS = ("--single-transaction", "--quick", "--hex-blob", "--skip-comments", "--default-character-set=utf8mb4")
_ERROR_CHARACTERS = 500
ROOM_LEFT = 64 << 20
"""Bytes that stay free beside a copy."""


def copy_ledger(engine: Engine, file: Path) -> None:
    """Write a consistent copy of the ledger to a new file, readable by this account alone, and have it on the disk.

    A copy of SQLite is a database, checked as a whole; one of a server is its dump. Others may write meanwhile. Raises
    LedgerError where there is no room, no program for the dump, or where the ledger is damaged; then there is no file.
    """
    require_room(engine, file.parent)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        if engine.dialect.name == "sqlite":
            _copy_file(engine, file)
        else:
            _dump(engine, file)
        _sync(file)
        _sync(file.parent)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def size_of(engine: Engine) -> int:
    """Return the bytes that a copy takes at most, or about, where a server has the ledger."""
    if engine.dialect.name == "sqlite":
        files = (Path(f"{engine.url.database}{ending}") for ending in ("", "-wal"))
        return sum(path.stat().st_size for path in files if path.exists())
    query = "SELECT SUM(data_length) FROM information_schema.tables WHERE table_schema = DATABASE()"
    with reading(engine) as connection:
        return int(connection.scalar(text(query)) or 0)


def require_copyable(engine: Engine, folder: Path) -> None:
    """Raise LedgerError where the ledger cannot be copied to a folder, made or not: no room, or no program."""
    if engine.dialect.name != "sqlite":
        _program(engine, DUMP_PROGRAMS)
    require_room(engine, folder)


def room_in(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or will be on."""
    return shutil.disk_usage(next(place for place in (folder, *folder.absolute().parents) if place.exists())).free


def require_room(engine: Engine, folder: Path) -> None:
    """Raise LedgerError where a folder has no room for a copy of the ledger."""
    room, needed = room_in(folder), size_of(engine) + ROOM_LEFT
    if room < needed:
        what = f"a copy of it takes about {needed >> 20} MiB, and {folder} has {room >> 20} MiB left; make room there"
        raise _failed(engine, what)


def load_dump(engine: Engine, lines: Iterator[bytes]) -> None:
    """Run a dump on a server's empty database. Raises LedgerError."""
    url = engine.url
    with _options(url) as options:
        command = [_program(engine, CLIENT_PROGRAMS), *options, *_place(url), str(url.database)]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(  # noqa: S603 - by its path, the database's name an argument
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
            ) as client,
        ):
            try:
                with cast("IO[bytes]", client.stdin) as statements:
                    statements.writelines(lines)
            except BrokenPipeError:
                pass  # what it says is in its errors
            except BaseException:
                client.kill()
                raise
            code = client.wait()
            if code:
                errors.seek(0)
                raise _failed(engine, f"{command[0]} ended with code {code}: {_shortened(errors.read())}")


def _copy_file(engine: Engine, file: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(str(engine.url.database), timeout=60)) as ledger,
            closing(sqlite3.connect(file)) as copy,
        ):
            ledger.backup(copy)
            # the copy has no other user: a journal of its own would only be one file more
            copy.execute("PRAGMA journal_mode = DELETE")
            (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise _failed(engine, f"it cannot be copied to {file}: {error}") from None
    if verdict != "ok":
        raise _failed(engine, f"it is damaged: {verdict}; restore it from a backup")


def _dump(engine: Engine, file: Path) -> None:
    url = engine.url
    with _options(url) as options, file.open("wb") as dump, tempfile.TemporaryFile() as errors:
        command = [_program(engine, DUMP_PROGRAMS), *options, *_DUMP_OPTIONS, *_place(url), str(url.database)]
        code = subprocess.run(  # noqa: S603 - as above
            command, stdin=subprocess.DEVNULL, stdout=dump, stderr=errors, check=False
        ).returncode
        errors.seek(0)
        if code:
            raise _failed(engine, f"{command[0]} ended with code {code}: {_shortened(errors.read())}")


@contextmanager
def _options(url: URL) -> Iterator[Sequence[str]]:
    """The option that names a file with the password, which no list of processes shows."""
    with tempfile.TemporaryDirectory(prefix="nightshift-ledger-") as folder:
        file = Path(folder) / "options.cnf"
        password = str(url.password or "").replace("\\", "\\\\").replace('"', '\\"')
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as options:
            options.write(f'[client]\npassword="{password}"\n')
        yield [f"--defaults-extra-file={file}"]


def _place(url: URL) -> list[str]:
    socket = url.query.get("unix_socket")
    place = [f"--socket={socket}"] if socket else [f"--host={url.host or 'localhost'}", "--protocol=TCP"]
    place += [f"--port={url.port}"] if url.port and not socket else []
    place += [f"--user={url.username}"] if url.username else []
    for name in ("ssl_ca", "ssl_capath"):
        place += [f"--{name.replace('_', '-')}={url.query[name]}"] if name in url.query else []
    # as the ledger's own connections do: the client would go on without TLS, or with any server's certificate
    place += ["--ssl", "--ssl-verify-server-cert"] if {"ssl_ca", "ssl_capath"} & url.query.keys() else []
    # newer clients ask for TLS where they are not told otherwise
    return place + ["--skip-ssl"] * (url.query.get("ssl_disabled") == "true")


def _program(engine: Engine, names: Sequence[str]) -> str:
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise _failed(engine, f"{names[0]} is not installed here; on Debian: apt-get install mariadb-client")
    return path


def _failed(engine: Engine, what: str) -> LedgerError:
    url = shown(engine.url)
    return LedgerError(f"ledger {url}: {what}.", url=url)


def _shortened(errors: bytes) -> str:
    return " ".join(errors.decode(errors="replace").split())[:_ERROR_CHARACTERS]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
