"""A target as campaigns see it. A new kind is a class beside this one and a case in `open_target`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from include.benchmarks.programs import StopSignal
from include.settings.storage_benchmark.blocks import TargetKind, TargetSettings

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
        """How full it is."""
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
        """How large and how full it is; None where it does not say. Raises BenchmarkError (TARGET_UNUSABLE)."""

    @abstractmethod
    def area(self, run: str) -> RunArea:
        """The area of a run, by its id; it is not created yet."""
