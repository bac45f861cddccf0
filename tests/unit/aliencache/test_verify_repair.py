"""Objects that the group of the clients cannot read are given to it; missing folders are made."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from include.aliencache.cache import AlienCache
from include.aliencache.errors import OUTSIDE_GROUP
from include.aliencache.verify import Repaired, repair_cache
from tests.fakes.refused import refused


def test_a_cache_is_made_whole_for_its_group(cache: AlienCache) -> None:
    (cache.path / "txn").rmdir()
    good, hidden = cache.path / f"00/{'0' * 38}", cache.path / f"00/{'1' * 38}"
    for place in (good, hidden):
        place.write_text("content")
        place.chmod(0o660)
    hidden.chmod(0o600)
    assert repair_cache(cache, dry_run=True) == Repaired(1, 1, 0)
    assert not (cache.path / "txn").exists()
    assert repair_cache(cache) == Repaired(1, 1, 0)
    assert hidden.stat().st_mode & 0o777 == 0o660
    assert repair_cache(cache) == Repaired()


@pytest.mark.skipif(os.geteuid() != 0, reason="two users are needed")
def test_a_user_outside_the_group_is_refused_and_one_inside_may() -> None:
    with tempfile.TemporaryDirectory() as folder:  # one that other users reach
        Path(folder).chmod(0o755)
        cache = AlienCache(Path(folder) / "cache", "65534")
        cache.initialise()
        cache.path.chmod(0o2775)
        shutil.chown(cache.path, group=65534)
        assert _as_user(12345, lambda: _refused_outside(cache)) == 0
        assert _as_user(65534, lambda: repair_cache(cache)) == 0


def _refused_outside(cache: AlienCache) -> None:
    with refused(OUTSIDE_GROUP):
        repair_cache(cache)


def _as_user(number: int, work: Callable[[], object]) -> int:
    """The end of a process of another user and group that does this."""
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            work()
        except BaseException:  # noqa: BLE001 - the child ends either way
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]
