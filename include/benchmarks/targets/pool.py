"""A RADOS pool as a target, through the program `rados`. Each dataset of a run has a namespace of the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from include.benchmarks.cluster.client import LIMIT_S, ClusterClient, cluster_arguments
from include.benchmarks.errors import TARGET_UNUSABLE, BenchmarkError
from include.benchmarks.programs import RADOS, BenchmarkProgram, run_program
from include.benchmarks.targets.base import AREA, AreaRemoval, BenchmarkTarget, RunArea, TargetSpace
from include.settings.storage_benchmark.blocks import PoolTarget, TargetKind

REMOVAL_LIMIT_S = 3600.0
_AT_ONCE = 200


def rados_arguments(settings: PoolTarget) -> tuple[str, ...]:
    """What a call begins with that works on the pool."""
    return (*cluster_arguments(settings), "--pool", settings.pool)


class NamespaceArea(RunArea):
    """Namespaces with the id of the run in their names: what is in them, the run has created."""

    def __init__(self, settings: PoolTarget, run: str) -> None:
        self._settings = settings
        self._prefix = f"{AREA}{run}."
        self.where = f"{settings.pool}/{self._prefix}*"

    def arguments(self, dataset: str) -> tuple[str, ...]:
        """What a call of `rados` begins with that works on a dataset."""
        return (*rados_arguments(self._settings), "--namespace", f"{self._prefix}{dataset}")

    def create(self) -> None:
        """A namespace exists by itself."""

    def remove_files(self, names: Iterable[str]) -> AreaRemoval:
        """Remove the datasets that have these names: `rados bench` names its objects itself."""
        removed = 0
        for dataset in dict.fromkeys(name.rsplit(".", 2)[0] for name in names):
            found = _rados(self._settings, *self.arguments(dataset), "ls").splitlines()
            for start in range(0, len(found), _AT_ONCE):
                batch = found[start : start + _AT_ONCE]
                _rados(self._settings, *self.arguments(dataset), "rm", *batch, limit_s=REMOVAL_LIMIT_S)
                removed += len(batch)
        return AreaRemoval(removed)

    def remove(self) -> AreaRemoval:
        listed = _rados(self._settings, *rados_arguments(self._settings), "--all", "ls").splitlines()
        # a line is the namespace, a tabulator and the object
        left = tuple(line.partition("\t")[2] for line in listed if line.startswith(self._prefix))
        return AreaRemoval(0 if left else 1, left)


class PoolBenchmarkTarget(BenchmarkTarget):
    """The pool that the settings name."""

    kind = TargetKind.POOL

    def __init__(self, settings: PoolTarget) -> None:
        self.settings: PoolTarget = settings

    def check(self) -> None:
        # a new pool has no figures in `ceph df` at first
        if self.settings.pool not in _rados(self.settings, *cluster_arguments(self.settings), "lspools").splitlines():
            raise TARGET_UNUSABLE(self.name, f"there is no pool {self.settings.pool}")

    def space(self) -> TargetSpace | None:
        """Its cluster says it."""
        cluster = ClusterClient.of(self.settings)
        return cluster.space() if cluster else None

    def area(self, run: str) -> NamespaceArea:
        return NamespaceArea(self.settings, run)


def _rados(settings: PoolTarget, *arguments: str, limit_s: float = LIMIT_S) -> str:
    return _run(settings, RADOS, arguments, limit_s)


def _run(settings: PoolTarget, program: BenchmarkProgram, arguments: Sequence[str], limit_s: float) -> str:
    try:
        done = run_program(program, arguments, subject=settings.name, limit_s=limit_s)
        return done.require_success(settings.name).stdout
    except BenchmarkError as error:
        raise TARGET_UNUSABLE(settings.name, f"pool {settings.pool}: {error}") from error
