"""What a power failure would take away: the files and folders below a root that were written and not flushed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include.storage import file


class Disk:
    """Watches the system calls of file stores below ``root``, and counts those that flush.

    A file is safe when its data was flushed, and its folder after it was named there.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.lost_at_switch: list[set[str]] = []
        self._root = str(root)
        self._synced: set[str] = set()
        self._data: set[str] = set()
        self._names: set[str] = set()
        for name in ("rename", "link"):
            patch.setattr(os, name, self._naming(getattr(os, name)))
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(os, "mkdir", self._mkdir(os.mkdir))
        patch.setattr(file, "_libc", lambda: self)

    @property
    def lost(self) -> set[str]:
        """Paths relative to the root."""
        return {os.path.relpath(path, self._root) for path in self._data | self._names}

    def syncfs(self, descriptor: int) -> int:
        assert self._path(descriptor).startswith(self._root)
        self.calls["syncfs"] += 1
        self._data.clear()
        self._names.clear()
        return 0

    def _fsync(self, descriptor: int) -> None:
        self.calls["fsync"] += 1
        path = self._path(descriptor)
        self._synced.add(path)
        self._names = {name for name in self._names if name.rpartition("/")[0] != path}

    def _naming(self, call: Callable[[str, str], None]) -> Callable[..., None]:
        def named(source: str, target: str, **more: Any) -> None:
            if not str(target).startswith(self._root):
                return call(source, target, **more)
            if target.endswith("/.cvmfspublished"):
                self.lost_at_switch.append(self.lost)
            call(source, target)
            self._names.add(target)
            if source not in self._synced:
                self._data.add(target)
            return None

        return named

    def _mkdir(self, call: Callable[..., None]) -> Callable[..., None]:
        def made(path: str, *mode: int, **more: Any) -> None:
            call(path, *mode, **more)
            if str(path).startswith(self._root):
                self._names.add(str(path))

        return made

    @staticmethod
    def _path(descriptor: int) -> str:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
