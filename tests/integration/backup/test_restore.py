"""A backup is restored on an empty machine, and on no other; what it says of itself is tried before it is needed."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.backup import create as making
from include.backup.archive import BackupPart, Opener, SealTo, read_manifest
from include.backup.create import names_in, prune
from include.backup.errors import (
    BACKUP_DAMAGED,
    BACKUP_NO_ROOM,
    BACKUP_OF_ANOTHER,
    BACKUP_UNKNOWN,
    KEYS_LOCKED,
    RESTORE_IN_USE,
    BackupError,
)
from include.cli.backup import app
from include.cvmfs.errors import CollectionRefused
from include.ledger.acts import restores_of
from include.ledger.errors import LedgerError
from include.monitoring.findings import Finding, Severity
from include.monitoring.store_checks import look_at_backups, look_at_restores
from include.site.collecting import require_collectable, require_restores_accepted
from include.storage.kinds import Credentials
from lab.servers.weed import WeedServer
from tests.fakes.backups import PASSPHRASE, Backups
from tests.fakes.ledgers import from_a_template
from tests.fakes.refused import refused
from tests.integration.conftest import BUCKET
from tests.site import FQRN, Deployment, connection, now

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backups]:
    """A deployment with a repository and its keys, and a store of backups."""
    from_a_template(monkeypatch)
    folder = tmp_path / "site"
    folder.mkdir()
    site = Deployment(folder).with_repository()
    backups = Backups(site)
    stores = {**site.settings["stores"], "backups": {"url": backups.store.url}}
    site.configure(stores=stores, backup={"store": "backups", "connection": "backup", "keep": 2})
    site.environment["AIRFLOW_CONN_BACKUP"] = connection("", PASSPHRASE)
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    yield backups
    site.close()


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_the_commands_back_a_site_up_and_restore_it_on_an_empty_machine(backups: Backups) -> None:
    keys = {path.name: path.read_bytes() for path in (backups.site.folder / "keys").iterdir()}
    code, text = run("create")
    assert (code, "there is no gateway state" in text) == (0, True), text
    (name,) = names_in(backups.store)
    assert run("list")[1].count(name) == 1
    assert json.loads(run("list", "--json")[1])[0]["sealed_to"] == "passphrase"
    code, text = run("check")
    assert (code, "its keys can be opened" in text) == (0, True), text
    backups.lose_everything()
    backups.site.file.unlink()
    file = Path(backups.store.url.removeprefix("file://")) / name
    code, text = run("restore", str(file))
    assert code == 0, text
    assert "settings" in text
    assert {path.name: path.read_bytes() for path in (backups.site.folder / "keys").iterdir()} == keys
    assert (backups.site.folder / "keys" / f"{FQRN}.key").stat().st_mode & 0o777 == 0o600
    code, text = run("report")
    assert (code, name in text, "compared" in text) == (0, True, True), text
    assert run("report", "--accept")[0] == 0
    assert "no restore" in run("report")[1]


def test_a_restored_ledger_lets_nothing_be_collected_until_a_person_accepts_it(backups: Backups) -> None:
    backups.site.with_options(garbage_collectable=True)
    backups.take()
    backups.lose_everything()
    backups.restore()
    with refused(CollectionRefused, fqrn=FQRN) as caught:
        require_collectable(backups.site.site, FQRN)
    assert "backup report --accept" in caught.value.hint
    (finding,) = look_at_restores(backups.site.site)
    assert (finding.severity, finding.subject) == (Severity.WARNING, backups.manifests[-1].name)
    assert run("report", "--accept")[0] == 0
    backups.site.configure()
    assert list(look_at_restores(backups.site.site)) == []
    require_restores_accepted(backups.site.site, FQRN)


def test_a_gateway_that_was_restored_has_no_lease_and_no_number_that_was_given_out(backups: Backups) -> None:
    backups.site.start()
    client = backups.site.client()
    client.acquire(FQRN, "/nightlies", hostname="before")
    backups.take()
    backups.site.stop()
    state = backups.site.folder / "gateway.db"
    with closing(sqlite3.connect(state)) as connected:
        ((given,),) = connected.execute("SELECT max(epoch) FROM lease")
    backups.lose_everything()
    assert "without its leases" in " ".join(backups.restore())
    assert state.stat().st_mode & 0o777 == 0o600
    backups.site.start()
    client = backups.site.client()
    assert client.leases() == []
    client.acquire(FQRN, "/nightlies", hostname="after")
    with closing(sqlite3.connect(state)) as connected:
        ((later,),) = connected.execute("SELECT max(epoch) FROM lease")
    assert later > given


def test_a_restore_onto_what_is_in_use_changes_nothing(backups: Backups) -> None:
    backups.site.start()
    backups.take()
    with refused(RESTORE_IN_USE):  # the gateway has its state
        backups.restore()
    backups.site.stop()
    with refused(RESTORE_IN_USE):  # its state is there
        backups.restore()
    (backups.site.folder / "gateway.db").unlink()
    with backups.site.site.ledger.connect() as connected:
        connected.exec_driver_sql("SELECT 1")
        with refused(RESTORE_IN_USE):  # a process has the ledger open
            backups.restore()
    backups.site._dispose()
    key = backups.site.folder / "keys" / f"{FQRN}.crt"
    key.write_text("another")
    with refused(RESTORE_IN_USE):
        backups.restore()
    assert key.read_text() == "another"
    assert not list(backups.site.folder.glob("*.restoring"))
    key.unlink()
    assert "restored" in backups.restore()[0]  # the ledger had no rows
    assert len(restores_of(backups.site.site.ledger)) == 1
    backups.site._dispose()
    backups.take()  # now it has one
    backups.site._dispose()
    with refused(RESTORE_IN_USE):
        backups.restore()


def test_lost_keys_are_restored_alone_while_the_gateway_and_the_ledger_are_in_use(backups: Backups) -> None:
    folder = backups.site.folder
    keys = {path.name: path.read_bytes() for path in (folder / "keys").iterdir()}
    backups.site.start()
    backups.site.client().acquire(FQRN, "/nightlies", hostname="before")
    manifest = backups.take()
    file = Path(backups.store.url.removeprefix("file://")) / manifest.name
    shutil.rmtree(folder / "keys")
    before = {path: path.read_bytes() for path in (folder / "ledger.db", backups.site.file)}
    code, text = run("restore", str(file), "--keys-only")
    assert (code, "SIGHUP" in text) == (0, True), text
    assert {path.name: path.read_bytes() for path in (folder / "keys").iterdir()} == keys
    assert (folder / "keys" / f"{FQRN}.key").stat().st_mode & 0o777 == 0o600
    assert len(backups.site.client().leases()) == 1
    assert {path: path.read_bytes() for path in before} == before
    assert list(restores_of(backups.site.site.ledger)) == []
    assert run("restore", str(file), "--keys-only")[0] == 0, "again, it changes nothing"
    assert len(list((folder / "keys").iterdir())) == len(keys)


def test_another_key_is_replaced_only_if_asked_for_and_is_kept_aside(backups: Backups, tmp_path: Path) -> None:
    backups.take()
    (name,) = names_in(backups.store)
    folder, file = backups.site.folder / "keys", Path(backups.store.url.removeprefix("file://")) / name
    key, certificate = folder / f"{FQRN}.key", folder / f"{FQRN}.crt"
    right = key.read_bytes()
    key.write_text("another")
    certificate.unlink()
    code, text = run("restore", name, "--keys-only")
    assert (code, "is another key" in text) == (2, True), text
    assert (key.read_text(), certificate.exists()) == ("another", False)
    (tmp_path / "wrong").write_text("another passphrase")
    assert run("restore", name, "--keys-only", "--replace-keys", "--passphrase-file", str(tmp_path / "wrong"))[0] == 2
    assert key.read_text() == "another"
    with tarfile.open(file) as parts:
        ledger = parts.getmember(BackupPart.LEDGER.value)
    data = bytearray(file.read_bytes())  # a ledger that is damaged is no part of it
    data[ledger.offset_data : ledger.offset_data + ledger.size] = b"?" * ledger.size
    file.write_bytes(data)
    assert run("check")[0] == 2
    code, text = run("restore", name, "--keys-only", "--replace-keys")
    assert code == 0, text
    (aside,) = folder.glob("*.replaced")
    assert (key.read_bytes(), aside.read_text(), str(aside) in text) == (right, "another", True)
    assert certificate.exists()
    for words in (("--keys-only", "--no-keys"), ("--replace-keys",)):
        assert run("restore", name, *words)[0] == 2


def test_keys_of_another_site_and_a_backup_without_keys_are_refused(backups: Backups) -> None:
    making.create(backups.site.site, backups.store, now=now(), to=None)
    code, text = run("restore", "latest", "--keys-only")
    assert (code, "it has no keys" in text) == (2, True), text
    backups.take()
    repository = backups.site.settings["repositories"].pop(FQRN)
    backups.site.configure(repositories={"other.example.org": repository})
    shutil.rmtree(backups.site.folder / "keys")
    code, text = run("restore", backups.manifests[-1].name, "--keys-only")
    assert (code, "none of which the configuration has" in text) == (2, True), text
    assert not (backups.site.folder / "keys").exists()


def test_the_folder_of_backups_is_made_for_this_account_alone(backups: Backups) -> None:
    folder = Path(backups.store.url.removeprefix("file://"))
    backups.take()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)
    backups.take()
    assert folder.stat().st_mode & 0o777 == 0o750, "what a person set stays"
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.backup")} == {0o600}


@pytest.mark.parametrize("rest", ["ledger.db-wal", "gateway.db-journal"])
def test_what_is_left_of_a_lost_database_is_not_played_into_the_restored_one(backups: Backups, rest: str) -> None:
    backups.site.start()
    backups.site.stop()
    backups.take()
    backups.lose_everything()
    (backups.site.folder / rest).write_bytes(b"the log of another one")
    with refused(RESTORE_IN_USE):
        backups.restore()
    (backups.site.folder / rest).unlink()
    backups.restore()


def test_a_ledger_of_an_earlier_version_is_in_the_way_too(backups: Backups) -> None:
    backups.take()
    with backups.site.site.ledger.begin() as connected:
        connected.exec_driver_sql("ALTER TABLE stageout_restores DROP COLUMN backup")
        connected.exec_driver_sql("INSERT INTO stageout_restores (since, noted_at, noted_by) VALUES (1, 1, 'ann')")
    backups.site._dispose()
    with refused(RESTORE_IN_USE):
        backups.restore()


def test_a_backup_of_another_site_is_refused(backups: Backups) -> None:
    backups.take()
    backups.lose_everything()
    repository = backups.site.settings["repositories"].pop(FQRN)
    backups.site.configure(repositories={"other.example.org": repository})
    with refused(BACKUP_OF_ANOTHER):
        backups.restore()
    assert list(backups.site.folder.glob("ledger.db*")) == []


def test_a_disk_without_room_is_told_before_anything_is_changed(
    backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups.take()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 1 << 40, 1000))
    with refused(BACKUP_NO_ROOM):
        backups.take()
    assert len(names_in(backups.store)) == 1
    backups.lose_everything()
    with refused(BACKUP_NO_ROOM):
        backups.restore()
    assert list(backups.site.folder.glob("ledger.db*")) == []
    name = backups.manifests[-1].name
    with refused(BACKUP_NO_ROOM), making.fetched(backups.store, name, backups.site.folder / "var"):
        pass


def looked(backups: Backups) -> list[Finding]:
    """Findings of preflight, besides what a backup itself says that it lacks."""
    findings = list(look_at_backups(backups.site.site))
    lacking = [finding for finding in findings if "there is no gateway state" in finding.seen]
    assert len(lacking) == bool(names_in(backups.store))
    return [finding for finding in findings if finding not in lacking]


def test_a_passphrase_that_was_lost_is_reported_before_it_is_needed(
    backups: Backups, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert {finding.severity for finding in looked(backups)} == {Severity.WARNING}
    backups.take()
    assert {finding.severity for finding in looked(backups)} == {Severity.OK}
    for lost in (connection("", "another passphrase"), ""):
        monkeypatch.setenv("AIRFLOW_CONN_BACKUP", lost)
        assert run("check")[0] == 2
    backups.site.environment["AIRFLOW_CONN_BACKUP"] = connection("", "another passphrase")
    backups.site.configure()
    (fresh, keys) = looked(backups)
    assert (fresh.severity, keys.severity) == (Severity.OK, Severity.WARNING)
    (tmp_path / "words").write_text(f"{PASSPHRASE}\n")
    assert run("check", "--passphrase-file", str(tmp_path / "words"))[0] == 0
    backups.lose_everything()
    with refused(KEYS_LOCKED):
        backups.restore(opener=Opener(passphrase="another passphrase"))
    assert not (backups.site.folder / "keys").exists()
    assert list(backups.site.folder.glob("ledger.db*")) == []


def test_old_backups_and_an_old_dump_of_airflows_database_are_reported(backups: Backups, tmp_path: Path) -> None:
    dump = tmp_path / "airflow.sql.gz"
    backups.site.configure(backup={**backups.site.settings["backup"], "airflow_dump": str(dump)})
    backups.take(now().replace(year=2025))
    assert [finding.severity for finding in looked(backups)] == [
        Severity.WARNING, Severity.OK, Severity.WARNING,
    ]  # fmt: skip
    dump.write_bytes(b"x")
    assert looked(backups)[-1].severity is Severity.OK


def test_only_old_backups_of_this_site_are_deleted(backups: Backups) -> None:
    for year in (2021, 2022, 2023, 2024):
        backups.take(now().replace(year=year, month=3, day=1))
    first, second, third, fourth = (manifest.name for manifest in backups.manifests)
    file = Path(backups.store.url.removeprefix("file://")) / second
    file.write_bytes(file.read_bytes()[:100])
    (file.parent / "notes.txt").write_text("kept")
    assert list(prune(backups.site.site, backups.store, keep=2)) == [first]
    assert names_in(backups.store) == [fourth, third, second]
    code, text = run("list")
    assert (code, "its beginning is cut" in text) == (1, True), text
    assert (file.parent / "notes.txt").exists()
    with refused(BACKUP_UNKNOWN):
        read_manifest(backups.store, first)


def test_a_backup_says_what_the_machine_did_not_have(backups: Backups) -> None:
    with pytest.raises(BackupError), making.fetched(backups.store, "nightshift-x", backups.site.folder):
        pass
    manifest = making.create(backups.site.site, backups.store, now=now(), to=None)
    assert (manifest.sealed_to, len(manifest.notes), list(manifest.parts)) == (None, 2, [BackupPart.LEDGER])
    with refused(KEYS_LOCKED):
        making.create(backups.site.site, backups.store, now=now(), to=SealTo(passphrase="short"))


@pytest.mark.server("weed")
def test_a_bucket_takes_backups_of_any_size_and_gives_them_back(
    backups: Backups, weed: WeedServer, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = weed.store(BUCKET, s3_prefix)
    with backups.site.site.ledger.begin() as connected:  # more than one part of an upload
        connected.exec_driver_sql("CREATE TABLE noise (data BLOB)")
        for _ in range(40):
            connected.exec_driver_sql("INSERT INTO noise VALUES (randomblob(1048576))")
    manifest = making.create(backups.site.site, store, now=now(), to=SealTo(passphrase=PASSPHRASE))
    assert manifest.size > 40 << 20
    assert names_in(store) == [manifest.name]
    owner: Credentials = weed.credentials
    url = {"url": f"s3://{BUCKET}/{s3_prefix}", "endpoint": weed.endpoint, "connection": "bucket"}
    stores = {**backups.site.settings["stores"], "backups": url}
    backups.site.configure(stores=stores)
    monkeypatch.setenv("AIRFLOW_CONN_BUCKET", connection(owner.access_key, owner.secret_key))
    backups.lose_everything()
    assert run("check")[0] == 0
    code, text = run("restore", "latest")
    assert code == 0, text
    assert run("report")[0] == 0


def test_a_ledger_that_is_damaged_is_not_backed_up(backups: Backups) -> None:
    with backups.site.site.ledger.begin() as connected:
        connected.exec_driver_sql("CREATE TABLE noise (data BLOB)")
        connected.exec_driver_sql("INSERT INTO noise WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 999)"
                                  " SELECT randomblob(100) FROM n")  # fmt: skip
    backups.site._dispose()  # with its last user the log is taken into the file
    file = backups.site.folder / "ledger.db"
    data = bytearray(file.read_bytes())
    data[-4 * 4096 :] = b"?" * 4 * 4096
    file.write_bytes(data)
    with pytest.raises(LedgerError):
        backups.take()
    assert names_in(backups.store) == []


def test_a_backup_that_was_cut_on_its_way_is_not_restored(backups: Backups) -> None:
    backups.take()
    backups.lose_everything()
    file = Path(backups.store.url.removeprefix("file://")) / backups.manifests[-1].name
    file.write_bytes(file.read_bytes()[:-20_000])
    with refused(BACKUP_DAMAGED):
        backups.restore()
    assert list(backups.site.folder.glob("ledger.db*")) == []
