"""A restore that is killed at any step, or at any moment, is run again and ends with all that the backup has."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from include.backup.errors import BackupError
from include.ledger.acts import restores_of
from tests.fakes.backups import Backups, recipient
from tests.fakes.ledgers import from_a_template
from tests.site import FQRN, Deployment

STEPS = (
    "checked", "ledger unpacked", "ledger noted", "ledger placed", "gateway unpacked", "gateway cleared",
    "gateway placed", "keys staged", f"key {FQRN}.crt", f"key {FQRN}.key", "keys placed",
)  # fmt: skip


@pytest.fixture
def backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backups]:
    """A site of which everything is lost but its repository and its backup."""
    from_a_template(monkeypatch)
    folder = tmp_path / "site"
    folder.mkdir()
    site = Deployment(folder).with_gateway()
    backups = Backups(site)
    site.client().acquire(FQRN, "/nightlies", hostname="before")
    with site.site.ledger.begin() as connected:
        connected.exec_driver_sql("CREATE TABLE noise (data BLOB)")
        connected.exec_driver_sql("INSERT INTO noise VALUES (randomblob(1048576))")
    backups.take(to=recipient()[0])
    site.stop()
    backups.keys = {path.name: path.read_bytes() for path in (folder / "keys").iterdir()}  # type: ignore[attr-defined]
    backups.lose_everything()
    yield backups
    site.close()


def killed(backups: Backups, on_step: Callable[[str], None], after_s: float | None = None) -> bool:
    """Restore in a process that kills itself at a step, or is killed after a time; whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            backups.restore(on_step, recipient()[1])
        finally:
            os._exit(0)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def whole(backups: Backups) -> None:
    """Nothing is missing, nothing is left over, and nothing is there twice."""
    site = backups.site
    (restore,) = restores_of(site.site.ledger)
    assert (restore.backup, restore.accepted_at) == (backups.manifests[-1].name, None)
    with site.site.ledger.connect() as connected:
        assert connected.exec_driver_sql("SELECT count(*), sum(length(data)) FROM noise").one() == (1, 1048576)
    site._dispose()
    assert {path.name: path.read_bytes() for path in (site.folder / "keys").iterdir()} == backups.keys  # type: ignore[attr-defined]
    with closing(sqlite3.connect(site.folder / "gateway.db")) as state:
        assert state.execute("SELECT count(*) FROM lease").fetchone() == (0,)
        assert state.execute("SELECT count(*) FROM restored").fetchone() == (1,)
    assert list(site.folder.glob("*.restoring*")) == []


def test_a_kill_at_each_step_loses_and_doubles_nothing(backups: Backups) -> None:
    taken: list[str] = []
    for step in STEPS:

        def die(done: str, step: str = step) -> None:
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)

        assert killed(backups, die), step
        backups.restore(taken.append, recipient()[1])
        whole(backups)
        backups.restore(opener=recipient()[1])  # once more changes nothing
        whole(backups)
        backups.lose_everything()
    assert {*STEPS} <= {*taken}, "each step was passed"


def test_a_kill_at_each_step_of_the_next_try_too(backups: Backups) -> None:
    """A process is killed at one step after the other: each try goes on from where the last one died."""
    for step in STEPS:

        def die(done: str, step: str = step) -> None:
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)

        killed(backups, die)
    backups.restore(opener=recipient()[1])
    whole(backups)


@pytest.mark.thorough
def test_kills_at_any_moment_lose_and_double_nothing(backups: Backups) -> None:
    chance = random.Random()
    kills, began = 0, time.monotonic()
    backups.restore(opener=recipient()[1])
    lasts_s = time.monotonic() - began
    backups.lose_everything()
    for _ in range(40):
        for _ in range(chance.randrange(1, 4)):
            kills += killed(backups, lambda _: None, chance.uniform(0, lasts_s))
        backups.restore(opener=recipient()[1])
        whole(backups)
        backups.lose_everything()
    assert kills > 20


def test_two_restores_at_once_restore_once(backups: Backups) -> None:
    def begin_another(step: str) -> None:
        if step == "ledger unpacked":
            with pytest.raises(BackupError):
                backups.restore(opener=recipient()[1])

    backups.restore(begin_another, recipient()[1])
    whole(backups)
