"""Targets with the areas in which a campaign works, and the interface of the runners that measure there."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from include.benchmarks.errors import AREA_FOREIGN, TARGET_UNUSABLE
from include.benchmarks.measure.loads import LoadAccess, LoadStep, RunnerResult
from include.benchmarks.measure.programs import StopSignal
from include.settings.benchmarks import BucketTarget, PathTarget, TargetKind, TargetSettings
from include.storage.errors import NotFound, StoreError
from include.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator


AREA = "nightshift-benchmark-"
"""What the names of areas begin with."""
MARKER = ".nightshift-benchmark"
"""A file or object in each area, by which the run that created it knows it again."""


@dataclass(frozen=True, slots=True)
class TargetSpace:
    """How large a target is, in bytes, as it reports it itself."""

    total: int
    free: int

    @property
    def used_percent(self) -> float:
        """Return how full it is."""
        return 100 * (1 - self.free / self.total) if self.total else 100.0


@dataclass(frozen=True, slots=True)
class AreaRemoval:
    """What became of the files that a run had created: removed, or left because they are not the run's any more."""

    removed: int
    left: tuple[str, ...] = ()


class RunArea(ABC):
    """Where one run keeps its data on a target: a folder, a prefix or a namespace. Nothing else is ever touched."""

    where: str
    """For messages and reports."""
    stop: StopSignal | None = None
    """Ends the runner that works on it."""

    @abstractmethod
    def create(self) -> None:
        """Make it; the same run may do so again. Raises BenchmarkError (AREA_FOREIGN, TARGET_UNUSABLE)."""

    @abstractmethod
    def remove_files(self, names: Iterable[str]) -> AreaRemoval:
        """Remove files by name; those that do not exist count as neither removed nor left."""

    @abstractmethod
    def remove(self) -> AreaRemoval:
        """Remove the empty area itself; what is still in it is left and named."""


class BenchmarkTarget(ABC):
    """What is measured. Nothing is sent to it before `check`."""

    settings: TargetSettings
    kind: TargetKind

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.settings.name

    @abstractmethod
    def check(self) -> None:
        """Refuse what cannot or must not be measured. Raises BenchmarkError (TARGET_UNUSABLE)."""

    @abstractmethod
    def space(self) -> TargetSpace | None:
        """Return how large and how full it is; None where it does not say. Raises BenchmarkError (TARGET_UNUSABLE)."""

    @abstractmethod
    def area(self, run: str) -> RunArea:
        """The area of a run, by its id; it is not created yet."""


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
        """Tell whether files here can be read and written without the page cache."""
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


class OpenStore(Protocol):
    """Opens the target's store for so many requests at the same time; failed requests are not repeated."""

    def __call__(self, connections: int, *, sign_payload: bool = True) -> Store: ...


class ObjectArea(RunArea):
    """A prefix of the bucket that has the id of the run in it, and no objects of others."""

    def __init__(self, name: str, prefix: str, open_bucket: OpenStore) -> None:
        self._name = name
        self._prefix = prefix
        self._open = open_bucket
        self.where = f"{name}: {prefix}"

    def store(self, connections: int, *, sign_payload: bool = True) -> Store:
        """The area as a store, for so many requests at the same time."""
        return self._open(connections, sign_payload=sign_payload).child(self._prefix)

    def create(self) -> None:
        store = self.store(1)
        try:
            first = next(iter(store.list()), None)
            if first is not None and not self._is_ours(store):
                raise AREA_FOREIGN(self.where, "it has objects and no marker of this run")
            store.put(MARKER, self.where.encode())
        except StoreError as error:
            raise TARGET_UNUSABLE(self._name, f"objects cannot be written: {error}") from error

    def remove_files(self, names: Iterable[str]) -> AreaRemoval:
        try:
            store = self.store(8)
            listed = [key for name in names for key in _keys_of(store, name)]
            refused = store.delete_each(listed)
        except StoreError as error:
            raise TARGET_UNUSABLE(self._name, f"objects cannot be deleted: {error}") from error
        return AreaRemoval(len(listed) - len(refused), tuple(sorted(refused)))

    def remove(self) -> AreaRemoval:
        store = self.store(1)
        try:
            left = tuple(found.key for found in store.list() if found.key != MARKER)
            if not left and self._is_ours(store):
                store.delete([MARKER])
        except StoreError as error:
            raise TARGET_UNUSABLE(self._name, f"objects cannot be listed and deleted: {error}") from error
        return AreaRemoval(0 if left else 1, left)

    def _is_ours(self, store: Store) -> bool:
        try:
            return store.get(MARKER) == self.where.encode()
        except NotFound:
            return False


def _keys_of(store: Store, name: str) -> list[str]:
    """Return what a name of a plan means: an object, or all objects of a repository, whose names no plan knows."""
    if not name.endswith("/"):
        return [name]
    return [f"{name}{found.key}" for found in store.child(name[:-1]).list()]


class BucketBenchmarkTarget(BenchmarkTarget):
    """The store that the settings name, below their prefix."""

    kind = TargetKind.BUCKET

    def __init__(self, settings: BucketTarget, open_bucket: OpenStore) -> None:
        self.settings: BucketTarget = settings
        self._open = open_bucket

    def check(self) -> None:
        store = self._open(1)
        if not store.writable:
            raise TARGET_UNUSABLE(self.name, f"the store {store.url} can only be read")
        try:
            next(iter(store.child(self.settings.prefix).list()), None)
        except StoreError as error:
            raise TARGET_UNUSABLE(self.name, f"the store does not answer as it should: {error}") from error

    def space(self) -> TargetSpace | None:
        # what S3 does not report, people do
        if self.settings.usable_bytes is None:
            return None
        return TargetSpace(self.settings.usable_bytes, self.settings.usable_bytes)

    def area(self, run: str) -> ObjectArea:
        return ObjectArea(self.name, f"{self.settings.prefix}/{AREA}{run}", self._open)


AreaT = TypeVar("AreaT", bound=RunArea)
GRACE_S = 120
"""Time that a runner may take beyond its step: to open files, and to flush what was written."""


@dataclass(frozen=True, slots=True)
class RunnerAbilities:
    """Abilities of a runner; a plan is refused that asks for more."""

    accesses: frozenset[LoadAccess]
    limits_rates: bool
    takes_ramp: bool
    ends_together: bool = True
    """Several loads of a step: the figures are of the time in which all of them ran."""


class Runner(ABC, Generic[AreaT]):
    """Makes the load of a step and reports what it measured."""

    abilities: RunnerAbilities

    @abstractmethod
    def run(self, step: LoadStep, area: AreaT, scratch: Path) -> RunnerResult:
        """Run a step to its end.

        Args:
            step: What to do; its loads are within the runner's abilities.
            area: Where the data of the run are.
            scratch: An empty folder on this machine for files of the runner; it stays with the campaign.

        Raises:
            BenchmarkError: RUNNER_MISSING, RUNNER_FAILED or RESULT_UNREADABLE.
        """


def longest_s(step: LoadStep) -> float:
    """After so many seconds a step has failed."""
    return step.ramp_s + step.seconds + GRACE_S
