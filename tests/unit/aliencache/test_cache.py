"""A folder is a cache, or is left alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from include.aliencache import cache as module
from include.aliencache.cache import AlienCache
from include.aliencache.errors import IN_THE_WAY, NOT_A_CACHE, OUTSIDE_GROUP, USE_UNKNOWN
from include.aliencache.names import SHARDS, Breadcrumb
from include.cvmfs.format.hashes import ObjectHash
from include.settings.caches import UseOfObjects
from tests.fakes.refused import refused

ROOT_HASH = ObjectHash(b"r" * 20)


def test_an_empty_folder_becomes_a_cache_of_its_group(tmp_path: Path) -> None:
    cache = AlienCache(tmp_path / "new")
    assert cache.initialise()
    assert not cache.initialise()
    cache.require()
    assert cache.layout() == module.CacheFaults((), (), ())
    for name in (*SHARDS, "txn", "quarantaine"):
        assert stat.S_IMODE((cache.path / name).stat().st_mode) == 0o2770


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    for name in ("00", "ff", "info", "pack"):  # as .git/objects
        (tmp_path / name).mkdir()
    with refused(NOT_A_CACHE):
        AlienCache(tmp_path).require()
    with refused(IN_THE_WAY):
        AlienCache(tmp_path).initialise()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00", "ff", "info", "pack"]
    with refused(NOT_A_CACHE):
        AlienCache(tmp_path / "absent").require()


@pytest.mark.parametrize("mark", [".cvmfscache", "cvmfschecksum.data.example.org"])
def test_a_folder_that_a_client_or_cvmfs_preload_made_is_a_cache(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).touch()
    cache = AlienCache(tmp_path)
    cache.require()
    assert len(cache.layout().missing) == 258
    assert cache.complete()
    assert cache.layout().missing == ()


def test_foreign_names_and_folders_of_another_group_are_named(cache: AlienCache) -> None:
    (cache.path / "stub.example.org").mkdir()
    cache.gid  # noqa: B018 - as it is before
    os.chown(cache.path / "7f", -1, cache.gid + 1)
    layout = cache.layout()
    assert (layout.foreign, layout.other_group) == (("stub.example.org",), ("7f",))


def test_a_group_that_this_machine_has_not_is_refused(tmp_path: Path) -> None:
    with refused(OUTSIDE_GROUP):
        AlienCache(tmp_path, "no-such-group").initialise()


def test_a_breadcrumb_is_replaced_by_a_newer_one_only(cache: AlienCache) -> None:
    assert cache.leave_breadcrumb("a.b", Breadcrumb(ROOT_HASH, 100))
    assert not cache.leave_breadcrumb("a.b", Breadcrumb(ROOT_HASH, 100))
    assert not cache.leave_breadcrumb("a.b", Breadcrumb(ROOT_HASH, 99))
    assert cache.leave_breadcrumb("a.b", Breadcrumb(ROOT_HASH, 101))
    (cache.path / "cvmfschecksum.c.d").write_text("what is this")
    assert not cache.leave_breadcrumb("c.d", Breadcrumb(ROOT_HASH, 200))
    assert cache.breadcrumbs() == {"a.b": Breadcrumb(ROOT_HASH, 101), "c.d": None}
    assert list((cache.path / "txn").iterdir()) == []


def test_without_access_times_the_use_is_not_guessed(cache: AlienCache, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = os.statvfs(cache.path)

    def with_flag(flag: int) -> None:
        class Stat:
            f_flag = flag

        monkeypatch.setattr(os, "statvfs", lambda _: Stat)

    assert seen
    with_flag(os.ST_NOATIME)
    for wanted in (UseOfObjects.AUTO, UseOfObjects.ATIME, UseOfObjects.RELATIME):
        with refused(USE_UNKNOWN):
            cache.use_known_by(wanted)
    assert cache.use_known_by(UseOfObjects.AGE) is UseOfObjects.AGE
    with_flag(os.ST_RELATIME)
    assert cache.use_known_by(UseOfObjects.AUTO) is UseOfObjects.RELATIME
    with_flag(0)
    assert cache.use_known_by(UseOfObjects.AUTO) is UseOfObjects.ATIME


def test_a_new_file_system_becomes_a_cache(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    cache = AlienCache(tmp_path)
    assert cache.initialise()
    assert cache.layout().foreign == ()
