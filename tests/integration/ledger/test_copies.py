"""The ledger is copied while others write to it, before each migration too, and is restored from the copy."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import func, insert, inspect, select, text

from include.backup import restore as restoring
from include.backup.archive import opened
from include.backup.create import create
from include.backup.errors import RESTORE_IN_USE, BackupError
from include.backup.restore import RestoreOptions, restore
from include.ledger import copies
from include.ledger.acts import LedgerRestore, accept_restores, ledger_restores, record_restore, restores_of
from include.ledger.copies import copy_ledger
from include.ledger.engine import open_ledger, reading, writing
from include.ledger.errors import LedgerError
from include.ledger.migrate import VERSION_TABLE, migrate, version
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.storage.file import FileStore
from tests.fakes.refused import refused
from tests.fakes.transfers import recorded, states

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


def site_of(folder: Path, url: str, password: str | None) -> Site:
    """A deployment with this ledger."""
    settings = {
        "ledger": url, "paths": {"var": f"{folder}/var"}, "ledger_connection": "ledger",
        "gateway": {"state": f"{folder}/gateway.db", "keys": f"{folder}/keys"},
    }  # fmt: skip
    (folder / "site.yaml").write_text(json.dumps(settings))
    secret = json.dumps({"login": None, "password": password})
    return Site(load(folder / "site.yaml", environ={}), EnvSecrets({"AIRFLOW_CONN_LEDGER": secret}))


def test_a_backup_holds_all_that_was_written_before_it_and_whole_requests_only(address, empty, tmp_path):
    url, password = address
    migrate(empty)
    first = recorded(empty, 300)
    site, store = site_of(tmp_path, url, password), FileStore(tmp_path / "backups")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            recorded(empty, 7)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        manifest = create(site, store, now=datetime.now(UTC), to=None)
    finally:
        stop.set()
        writer.join()
    with opened(tmp_path / "backups" / manifest.name) as backup:
        with refused(RESTORE_IN_USE):
            restore(backup, site.settings, site.secrets, RestoreOptions("test"), now=datetime.now(UTC))
        site.ledger.dispose()
        forget(empty, url)
        steps = []
        options = RestoreOptions("test", on_step=steps.append)
        for line in ("restored", "restored before"):
            done = restore(backup, site.settings, site.secrets, options, now=datetime.now(UTC))
            assert done[0].endswith(line)
        assert steps[:4].count("ledger unpacked") == 1
    rows = states(site.ledger)
    assert set(first) <= set(rows)
    assert (len(rows) - 300) % 7 == 0
    (noted,) = restores_of(site.ledger, pending=True)
    assert (noted.backup, noted.noted_by) == (manifest.name, "test")
    assert version(site.ledger) == migrate(site.ledger)
    assert restoring.LOADING not in inspect(site.ledger).get_table_names()
    assert recorded(site.ledger)
    site.ledger.dispose()


def forget(engine, url):
    """Lose the ledger."""
    if engine.dialect.name == "sqlite":
        engine.dispose()
        for file in Path(url.removeprefix("sqlite:///")).parent.glob("ledger.db*"):
            file.unlink()
        return

    def work(connection):
        connection.execute(text("SET FOREIGN_KEY_CHECKS = 0"))
        for table in inspect(connection).get_table_names():
            connection.execute(text(f"DROP TABLE `{table}`"))
        connection.execute(text("SET FOREIGN_KEY_CHECKS = 1"))

    writing(engine, work)


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))], indirect=True)
def test_a_load_into_a_server_that_was_cut_off_is_begun_again(address, empty, tmp_path):
    url, password = address
    migrate(empty)
    ids = recorded(empty, 50)
    site, store = site_of(tmp_path, url, password), FileStore(tmp_path / "backups")
    manifest = create(site, store, now=datetime.now(UTC), to=None)
    forget(empty, url)

    class Cut(Exception):
        """A death of the process."""

    for step in ("ledger emptied", "ledger unpacked", "ledger noted"):

        def cut(done, step=step):
            if done == step:
                raise Cut

        with opened(tmp_path / "backups" / manifest.name) as backup, pytest.raises(Cut):
            restore(backup, site.settings, site.secrets, RestoreOptions("test", None, cut), now=datetime.now(UTC))
    with opened(tmp_path / "backups" / manifest.name) as backup:
        restore(backup, site.settings, site.secrets, RestoreOptions("test"), now=datetime.now(UTC))
    assert sorted(states(site.ledger)) == ids
    assert len(restores_of(site.ledger)) == 1
    site.ledger.dispose()
    other = site_of(tmp_path, f"sqlite:///{tmp_path}/other.db", None)
    with opened(tmp_path / "backups" / manifest.name) as backup, pytest.raises(BackupError, match="a server"):
        restore(backup, other.settings, other.secrets, RestoreOptions("test"), now=datetime.now(UTC))


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))], indirect=True)
def test_no_password_is_seen_and_a_dump_that_fails_leaves_no_file(address, empty, tmp_path, monkeypatch):
    url, password = address
    migrate(empty)
    commands = []
    run = copies.subprocess.run
    monkeypatch.setattr(
        copies.subprocess, "run", lambda command, **more: commands.append(command) or run(command, **more)
    )
    copy_ledger(empty, tmp_path / "copy.sql")
    assert password
    assert not any(password in word for command in commands for word in command)
    assert password.encode() not in (tmp_path / "copy.sql").read_bytes()
    assert (tmp_path / "copy.sql").stat().st_mode & 0o777 == 0o600
    wrong = open_ledger(url, password="wrong")
    monkeypatch.setattr(copies, "require_room", lambda *_: None)
    with pytest.raises(LedgerError) as caught:
        copy_ledger(wrong, tmp_path / "wrong.sql")
    assert "Access denied" in str(caught.value)
    assert not (tmp_path / "wrong.sql").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LedgerError, match="mariadb-client"):
        copy_ledger(empty, tmp_path / "none.sql")
    assert not (tmp_path / "none.sql").exists()


def test_a_ledger_is_copied_before_it_is_migrated_and_the_copy_is_the_way_back(empty, tmp_path, monkeypatch):
    from alembic.command import upgrade

    from include.ledger.migrate import _config

    def begin(connection):
        config = _config()
        config.attributes["connection"] = connection
        upgrade(config, "v0004")

    writing(empty, begin)
    ids = recorded(empty, 3)
    migrate(empty, copies=tmp_path / "copies")
    (copy,) = (tmp_path / "copies").iterdir()
    assert version(empty) == "v0007"
    if empty.dialect.name == "sqlite":
        with closing(sqlite3.connect(copy)) as before:
            assert before.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone() == ("v0004",)
            assert before.execute("SELECT count(*) FROM stageout_transfers").fetchone() == (len(ids),)
    else:
        assert "'v0004'" in copy.read_text()
    migrate(empty, copies=tmp_path / "copies")
    assert [*(tmp_path / "copies").iterdir()] == [copy], "nothing was migrated"


def test_a_new_ledger_is_not_copied_and_one_without_room_is_not_migrated(tmp_path, monkeypatch):
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    migrate(engine, copies=tmp_path / "copies")
    assert not (tmp_path / "copies").exists()
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = 'v0004'"))
    monkeypatch.setattr(copies, "size_of", lambda _: 1 << 60)
    with pytest.raises(LedgerError, match="make room there"):
        migrate(engine, copies=tmp_path / "copies")
    assert version(engine) == "v0004"
    engine.dispose()


def test_restores_that_were_noted_before_they_had_to_be_accepted_are_accepted(empty):
    from alembic.command import upgrade

    from include.ledger.migrate import _config

    def begin(connection):
        config = _config()
        config.attributes["connection"] = connection
        upgrade(config, "v0004")
        connection.execute(
            insert(ledger_restores).values(since=AT, noted_at=AT, noted_by="ann")  # the columns of that version
        )

    writing(empty, begin)
    migrate(empty)
    assert restores_of(empty, pending=True) == []
    assert restores_of(empty) == [LedgerRestore(AT, AT, "ann", None, AT, "ann")]


def test_a_restore_is_noted_once_and_accepted_once(ledger):
    for _ in range(2):
        record_restore(ledger, LedgerRestore(AT, AT, "ann", "a backup"))
    assert accept_restores(ledger, by="bob", now=AT) == 1
    assert accept_restores(ledger, by="carl", now=AT) == 0
    (restore,) = restores_of(ledger)
    assert (restore.backup, restore.accepted_by) == ("a backup", "bob")
    with reading(ledger) as connection:
        assert connection.scalar(select(func.count()).select_from(ledger_restores)) == 1
