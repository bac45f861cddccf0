"""Repair a cache: folders that are missing, and objects that the group of its clients cannot read."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass

from include.aliencache.cache import OBJECT_MODE, AlienCache
from include.aliencache.errors import refused
from include.aliencache.names import SHARDS, NameKind, kind_in_shard
from include.aliencache.scan import open_shard


@dataclass(slots=True)
class Repaired:
    """Folders that were missing; objects that were given to the group, and that had to be deleted."""

    folders: int = 0
    given: int = 0
    deleted: int = 0


def repair_cache(cache: AlienCache, *, dry_run: bool = False) -> Repaired:
    """Make a cache whole for its group. An object that a client may not read is one that it fetches again.

    Raises CacheError, also outside the group.
    """
    cache.require()
    cache.require_member()
    done = Repaired(folders=len(cache.layout().missing))
    if not dry_run:
        cache.complete()
    for shard in SHARDS:
        try:
            descriptor = open_shard(cache, shard)
        except FileNotFoundError:
            continue
        try:
            _repair_shard(cache, descriptor, done, dry_run=dry_run)
        except OSError as fault:
            raise refused(cache.path, fault) from fault
        finally:
            os.close(descriptor)
    return done


def _repair_shard(cache: AlienCache, descriptor: int, done: Repaired, *, dry_run: bool) -> None:
    for name in os.listdir(descriptor):
        if kind_in_shard(name) is not NameKind.OBJECT:
            continue
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or cache.is_readable(status):
                continue
            given = _may_give(status) if dry_run else _give(cache, descriptor, name)
            done.given += given
            done.deleted += not given
            if not given and not dry_run:
                os.unlink(name, dir_fd=descriptor)
        except FileNotFoundError:
            continue


def _may_give(status: os.stat_result) -> bool:
    return os.geteuid() in (0, status.st_uid)


def _give(cache: AlienCache, descriptor: int, name: str) -> bool:
    with contextlib.suppress(PermissionError):
        os.chown(name, -1, cache.gid, dir_fd=descriptor, follow_symlinks=False)
    with contextlib.suppress(PermissionError):
        os.chmod(name, OBJECT_MODE, dir_fd=descriptor)
    return cache.is_readable(os.stat(name, dir_fd=descriptor, follow_symlinks=False))
