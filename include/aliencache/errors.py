"""Errors of a shared cache.

CacheError(cache, what)
"""

from __future__ import annotations

import errno

from include.errors import Concern, ErrorRow, NightshiftError


class CacheError(NightshiftError):
    """`cache` is the folder of the cache that it is about."""

    code = "cache-error"
    concern = Concern.STORE

    def __init__(self, cache: object, what: str) -> None:
        self.cache = str(cache)
        super().__init__(f"cache {cache}: {what}." + (f" Hint: {self.hint}." if self.hint else ""))


NOT_A_CACHE = ErrorRow(
    CacheError, "cache-foreign", "check `path`; where it is right, make the cache with: nightshift cache init NAME"
)
"""The folder is not there, or has not the marks of a cache: nothing in it is touched."""
IN_THE_WAY = ErrorRow(CacheError, "cache-in-the-way", "let `path` name an empty folder, or one that clients made")
"""A cache would be made of a folder that holds something else."""
CACHE_UNUSABLE = ErrorRow(
    CacheError, "cache-unusable", "check that the file system is mounted and answers, then run it again",
    retryable=True,
)  # fmt: skip
"""The file system vanished, or refuses to be read."""
CACHE_READ_ONLY = ErrorRow(CacheError, "cache-read-only", "run it on a machine that mounts the cache for writing")
"""The cache cannot be changed from this machine."""
CACHE_FULL = ErrorRow(
    CacheError, "cache-full", "free space with: nightshift cache trim NAME; then run it again: it goes on"
)
"""No space or no inode is left."""
OUTSIDE_GROUP = ErrorRow(
    CacheError, "cache-outside-group", "run it as a member of that group: clients could not read what it would write"
)
"""The process is not in the group of the cache's clients."""
USE_UNKNOWN = ErrorRow(
    CacheError, "cache-use-unknown",
    "set `use: record` (what a warm wanted last stays longest) or `use: age` (the oldest goes first)",
)  # fmt: skip
"""The mount does not tell when an object was read."""
NO_MARKS = ErrorRow(CacheError, "cache-without-marks", "set `marks:` of the cache, as `free_below:` and `free_until:`")
"""A trim has nothing by which it could begin or end."""
PRELOADED = ErrorRow(
    CacheError, "cache-preloaded",
    "set `preloaded: catalogs-first`: then whole catalogs go first, and `cvmfs_preload` fetches all again; offline "
    "nodes cannot mount in between",
)  # fmt: skip
"""A trim would make holes that `cvmfs_preload` never fills again."""
PIN_UNKNOWN = ErrorRow(CacheError, "cache-pin-unknown", "correct or remove it below `pins:` of the cache")
"""A pin names no tag or no path of the repository: nothing is trimmed, since it may be misspelt."""
NOTHING_WANTED = ErrorRow(
    CacheError, "cache-nothing-wanted", "give paths, or a dirtab; `nightshift repo ls` shows them"
)
"""A warm was not told what to load, or what it was told names nothing."""
ORIGIN_FAILED = ErrorRow(
    CacheError, "cache-origin-failed", "check the servers; then run it again: what is in the cache stays",
    retryable=True,
)  # fmt: skip
"""No origin has sent the right bytes of an object."""
REVISION_GONE = ErrorRow(CacheError, "cache-revision-gone", "warm the newest revision: leave --tag out", retryable=True)
"""A collection removed objects of the revision meanwhile."""

ORIGIN_BEHIND = ErrorRow(
    CacheError, "cache-origin-behind", "wait for its replication, or check it: nightshift repo replicas",
    retryable=True,
)  # fmt: skip
"""The first origin that answers has an older revision than the repository."""
STILL_ABOVE = ErrorRow(
    CacheError, "cache-still-above", "unpin some paths, shorten `pins.hours`, or give the file system more space"
)
"""A trim took what it may, and a mark is still passed: soon every miss of a client is an I/O error."""
OBJECTS_DAMAGED = ErrorRow(
    CacheError, "cache-objects-damaged",
    "they are out of the clients' sight and are fetched again; check the disks, and verify all: nightshift cache "
    "verify NAME --level fetch",
)  # fmt: skip
"""Objects were not what their names say; jobs may have read wrong bytes."""

NOT_WARMED = ErrorRow(CacheError, "cache-not-warmed", "start the run's failed tasks again: a warm goes on")
"""A cache has not what the run was to bring into it."""

FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def refused(cache: object, fault: OSError) -> CacheError:
    """The error for what the file system of a cache answers."""
    what = f"{fault.strerror or fault}" + (f" ({fault.filename})" if fault.filename else "")
    if fault.errno in FULL:
        return CACHE_FULL(cache, what)
    return (CACHE_READ_ONLY if fault.errno in _READ_ONLY else CACHE_UNUSABLE)(cache, what)
