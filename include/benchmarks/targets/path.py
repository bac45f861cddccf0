"""A folder of a mounted file system as a target."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from include.benchmarks.errors import AREA_FOREIGN, TARGET_UNUSABLE
from include.benchmarks.targets.base import AREA, MARKER, AreaRemoval, BenchmarkTarget, RunArea, TargetSpace
from include.settings.storage_benchmark.blocks import PathTarget, TargetKind

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROBE = ".direct-io"


class FolderArea(RunArea):
    """A folder below the target's, which the run creates."""

    def __init__(self, parent: Path, run: str) -> None:
        self.run = run
        self.folder = parent / f"{AREA}{run}"
        self.where = str(self.folder)

    def create(self) -> None:
        with _usable(self.where):
            try:
                self.folder.mkdir(mode=0o700)
            except FileExistsError:
                with self._open() as folder:
                    # a run that was killed between the two calls left an empty folder
                    if _names(folder):
                        self._require_ours(folder)
            with self._open() as folder:
                marker = os.open(MARKER, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o600, dir_fd=folder)
                with os.fdopen(marker, "w") as file:
                    file.write(self.run)

    def remove_files(self, names: Iterable[str]) -> AreaRemoval:
        removed, left = 0, []
        with _usable(self.where):
            if not self.folder.exists():
                return AreaRemoval(0)
            with self._open() as folder:
                self._require_ours(folder)
                for name in names:
                    plain = name.removesuffix("/")
                    try:
                        found = os.stat(plain, dir_fd=folder, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if "/" in plain:
                        left.append(name)
                    elif plain != name and stat.S_ISDIR(found.st_mode):
                        # a repository, whose objects have names that no plan knows
                        shutil.rmtree(plain, dir_fd=folder)
                        removed += 1
                    elif plain == name and stat.S_ISREG(found.st_mode):
                        os.unlink(name, dir_fd=folder)
                        removed += 1
                    else:
                        left.append(name)
        return AreaRemoval(removed, tuple(left))

    def remove(self) -> AreaRemoval:
        with _usable(self.where):
            if not self.folder.exists():
                return AreaRemoval(0)
            with self._open() as folder:
                others = tuple(sorted(_names(folder) - {MARKER}))
                if others:
                    return AreaRemoval(0, others)
                if MARKER in _names(folder):
                    self._require_ours(folder)
                    os.unlink(MARKER, dir_fd=folder)
            self.folder.rmdir()
        return AreaRemoval(1)

    def takes_direct_io(self) -> bool:
        """Whether files here can be read and written without the page cache."""
        with _usable(self.where):
            path = self.folder / _PROBE
            try:
                file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW, 0o600)
            except OSError:
                return False
            else:
                try:
                    with mmap.mmap(-1, mmap.PAGESIZE) as block:
                        os.write(file, block)
                except OSError:
                    return False
                finally:
                    os.close(file)
            finally:
                path.unlink(missing_ok=True)
        return True

    def _require_ours(self, folder: int) -> None:
        try:
            marker = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            raise AREA_FOREIGN(self.where, "it has files and no marker of this run") from None
        with os.fdopen(marker) as file:
            if file.read(256) != self.run:
                raise AREA_FOREIGN(self.where, "another run created it")

    @contextmanager
    def _open(self) -> Iterator[int]:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            yield folder
        finally:
            os.close(folder)


class PathBenchmarkTarget(BenchmarkTarget):
    """The folder that the settings name."""

    kind = TargetKind.PATH

    def __init__(self, settings: PathTarget) -> None:
        self.settings: PathTarget = settings

    def check(self) -> None:
        path = self.settings.path
        with _usable(self.name):
            mode = path.stat().st_mode
            if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                raise TARGET_UNUSABLE(self.name, f"{path} is a device; only folders of a file system are measured")
            if not stat.S_ISDIR(mode):
                raise TARGET_UNUSABLE(self.name, f"{path} is not a folder")
            if not os.access(path, os.W_OK | os.X_OK) or os.statvfs(path).f_flag & os.ST_RDONLY:
                raise TARGET_UNUSABLE(self.name, f"{path} cannot be written to")

    def space(self) -> TargetSpace:
        with _usable(self.name):
            found = os.statvfs(self.settings.path)
        return TargetSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def area(self, run: str) -> FolderArea:
        return FolderArea(self.settings.path, run)


def _names(folder: int) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries}


@contextmanager
def _usable(subject: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise TARGET_UNUSABLE(subject, f"{where}{error.strerror}") from error
