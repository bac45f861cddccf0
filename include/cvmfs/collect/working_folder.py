"""A collection's folder for what does not fit in memory. What killed processes left of theirs is removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "working-"


class WorkingFolder:
    """A private folder below ``parent`` until ``close``. Its lock ends with its process: the next one then removes it.

    Raises OSError.
    """

    def __init__(self, parent: Path) -> None:
        guard = os.open(parent, os.O_RDONLY)  # so that a new folder is locked before another process sees it
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            for left in parent.glob(f"{_PREFIX}*"):
                if (lock := _lock(left)) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(lock)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = _lock(self.path)
        finally:
            os.close(guard)

    def close(self) -> None:
        """Remove it; again does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(folder: Path) -> int | None:
    """The descriptor that holds the folder's lock; None while a process holds it, and for a folder that is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
