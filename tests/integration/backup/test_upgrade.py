"""`nightshift upgrade`: what it says before, what it changes, what it leaves, and what it refuses."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.command import upgrade as alembic_upgrade
from typer.testing import CliRunner

from include.backup.upgrade import _order
from include.cli.main import assemble
from include.ledger import copies
from include.ledger.engine import open_ledger, writing
from include.ledger.migrate import VERSION_TABLE, _config, _versions, version
from include.settings.load import load
from tests.fakes.transfers import recorded, states
from tests.site import FQRN, Deployment

NEWEST = _versions()[0]

TOO_OPEN = {
    "ledger.db": 0o640, "gateway.db": 0o600, "site.yaml": 0o640, f"keys/{FQRN}.key": 0o600, "backups": 0o700,
    "backups/nightshift-20260101T000000.000000Z-00000000.backup": 0o600, "var/ledger-copies": 0o700,
    "var/ledger-copies/before-v0001-x.db": 0o600,
}  # fmt: skip
AS_THEY_ARE = {
    "keys/notes.txt": 0o666, "cvmfs": 0o755, f"cvmfs/{FQRN}/.cvmfspublished": 0o644, "backups/notes.txt": 0o644,
    f"keys/{FQRN}.crt": 0o444,
}  # fmt: skip


def modes(folder: Path, names: dict[str, int]) -> dict[str, int]:
    return {name: (folder / name).stat().st_mode & 0o7777 for name in names}


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and sum of all files, but those that SQLite removes and makes again."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    return {str(path): (path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A site of an earlier version, whose files others may read."""
    site = Deployment(tmp_path).with_repository()
    site.configure(
        stores={**site.settings["stores"], "backups": {"url": f"file:{tmp_path}/backups"}},
        backup={"store": "backups"}, gateway={"keys": f"{tmp_path}/keys", "state": f"{tmp_path}/gateway.db"},
    )  # fmt: skip
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    writing(ledger, to_version("v0004"))
    recorded(ledger, 3)
    ledger.dispose()
    with closing(sqlite3.connect(tmp_path / "gateway.db")) as state:
        state.execute("CREATE TABLE lease (epoch INTEGER)")
    for name, mode in {**dict.fromkeys(TOO_OPEN, 0o666), **AS_THEY_ARE}.items():
        path = tmp_path / name
        folder = "." not in path.name
        (path if folder else path.parent).mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(mode | 0o111 if folder else mode)
    yield site
    site.close()


def to_version(revision: str) -> Callable:
    def work(connection):
        config = _config()
        config.attributes["connection"] = connection
        alembic_upgrade(config, revision)

    return work


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(assemble(["upgrade"]), ["upgrade", *words])
    return done.exit_code, done.output


def test_the_check_tells_all_that_will_change_and_changes_nothing(site: Deployment) -> None:
    before = contents(site.folder)
    code, text = run("--check")
    assert code == 1, text
    assert f"v0004 -> {NEWEST}" in text
    assert "v0005 (3 rows of stageout_transfers)" in text
    assert str(site.folder / "var" / "ledger-copies") in text
    for name, mode in TOO_OPEN.items():
        assert f"-> {mode:04o}: {site.folder / name}\n" in text
    order = text[text.index("stop before it") :]
    assert order.index("scheduler") < order.index("triggerer") < order.index("API servers")
    assert order.index("gateway") > order.index("start after it")
    assert contents(site.folder) == before


def test_it_migrates_and_closes_files_and_a_second_time_changes_nothing(site: Deployment) -> None:
    code, text = run()
    assert code == 0, text
    assert f"v0004 -> {NEWEST}" in text
    assert modes(site.folder, TOO_OPEN) == TOO_OPEN
    assert modes(site.folder, AS_THEY_ARE) == {**AS_THEY_ARE, "cvmfs": 0o755}
    ledger = open_ledger(f"sqlite:///{site.folder}/ledger.db")
    assert (version(ledger), len(states(ledger))) == (NEWEST, 3)
    ledger.dispose()
    copy = next(path for path in (site.folder / "var" / "ledger-copies").glob(f"before-{NEWEST}-*"))
    assert str(copy) in text
    assert copy.stat().st_mode & 0o777 == 0o600
    before = contents(site.folder)
    assert run() == (0, "nothing to change\n")
    code, text = run("--check")
    assert (code, "nothing has to be stopped" in text) == (0, True), text
    assert contents(site.folder) == before


def test_what_refuses_an_upgrade_is_said_by_the_check_and_leaves_all_as_it_is(
    site: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(hint: str) -> None:
        before = contents(site.folder)
        for words in (("--check",), ()):
            code, text = run(*words)
            assert (code, hint in text) == (2, True), text
        assert contents(site.folder) == before

    with monkeypatch.context() as patch:
        patch.setattr(copies, "size_of", lambda _: 1 << 60)
        refuses("make room there")
    with monkeypatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
        refuses("mysql+pymysql")
    with closing(sqlite3.connect(site.folder / "gateway.db")) as state:
        state.execute("PRAGMA user_version = 99")
    refuses("schema 99")
    (site.folder / "gateway.db").write_bytes(b"no database" * 99)
    refuses("cannot be read")
    (site.folder / "gateway.db").unlink()
    with closing(sqlite3.connect(site.folder / "ledger.db")) as ledger:
        ledger.execute(f"UPDATE {VERSION_TABLE} SET version_num = 'v9999'")
        ledger.commit()
    refuses("Install the newer Nightshift")


def test_a_ledger_that_does_not_exist_is_not_made(site: Deployment) -> None:
    (site.folder / "ledger.db").unlink()
    assert run("--check")[0] == 1  # modes
    assert run()[0] == 0
    assert not (site.folder / "ledger.db").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_another_account_and_links_are_left_and_root_makes_nothing_for_others(site: Deployment) -> None:
    file = site.folder / "site.yaml"
    os.chown(file, 1, 1)
    link = site.folder / "keys" / "linked.key"
    link.symlink_to(site.folder / "keys" / "notes.txt")
    code, text = run()
    assert (code, f"mode 0666 stays, of another account: {file}" in text) == (0, True), text
    assert modes(site.folder, {"site.yaml": 0, "keys/notes.txt": 0}) == {"site.yaml": 0o666, "keys/notes.txt": 0o666}
    os.chown(load().paths.var, 1, 1)
    for words in (("--check",), ()):
        code, text = run(*words)
        assert (code, "run it as that account" in text) == (2, True), text


def test_workers_of_a_site_with_celery_are_in_the_order() -> None:
    for migrates in (True, False):
        stop, start = _order(migrates, "CeleryExecutor")
        assert bool(stop) is migrates
        assert start.index("triggerer") < start.index("workers") < start.index("scheduler and DAG processor")
    assert "workers" not in " ".join(map(str, _order(True, "LocalExecutor")))
