"""A RADOS pool as a target, through the program `rados`. Each dataset of a run has a namespace of the pool.

For packet sizes of erasure coding a run creates pools of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from include.benchmarks.cluster.client import LIMIT_S, ClusterClient, cluster_arguments
from include.benchmarks.errors import TARGET_REFUSED, TARGET_UNUSABLE, BenchmarkError
from include.benchmarks.programs import RADOS, BenchmarkProgram, run_program
from include.benchmarks.targets.base import AREA, AreaRemoval, BenchmarkTarget, RunArea, TargetSpace
from include.settings.storage_benchmark.blocks import Mark, PoolTarget, TargetKind

REMOVAL_LIMIT_S = 3600.0
_AT_ONCE = 200
_ALLOWED = "mon_allow_pool_delete"


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
        """The space that its cluster reports."""
        cluster = ClusterClient.of(self.settings)
        return cluster.space() if cluster else None

    def area(self, run: str) -> NamespaceArea:
        return NamespaceArea(self.settings, run)


class PacketPools:
    """Pools of one run, each with a profile and a rule of its own name."""

    def __init__(self, target: BenchmarkTarget, run: str) -> None:
        cluster = ClusterClient.of(target.settings)
        if cluster is None or not isinstance(target.settings, PoolTarget) or target.settings.pools is not Mark.ALLOWED:
            raise TARGET_REFUSED(target.name, "the target is not marked `pools: allowed`")
        self._settings = target.settings
        self._cluster = cluster
        self._run = run

    def area(self, packet: int) -> NamespaceArea:
        """The area of the run in the pool for a packet size, in bytes; the pool is created where there is none.

        Raises:
            BenchmarkError: TARGET_UNUSABLE, also where the monitors would not let the pool be deleted.
        """
        cluster, name, code = self._cluster, self._name(packet), self._cluster.settings.erasure
        may = cluster.run("tell", "mon.*", "config", "get", _ALLOWED).stdout
        if "true" not in may or "false" in may:
            raise TARGET_UNUSABLE(cluster.subject, f"pools could not be removed afterwards: {_ALLOWED} is not true")
        shape = (f"k={code.k}", f"m={code.m}", f"crush-failure-domain={code.failure_domain}", f"stripe_unit={packet}")
        cluster.tell("osd", "erasure-code-profile", "set", name, *shape)
        cluster.tell("osd", "pool", "create", name, str(code.groups), str(code.groups), "erasure", name)
        cluster.tell("osd", "pool", "application", "enable", name, "nightshift")
        cluster.wait_clean(cluster.settings.clean_s)
        return NamespaceArea(self._settings.model_copy(update={"pool": name}), self._run)

    def remove(self, packets: Iterable[int]) -> None:
        """Remove the pools for these packet sizes with all that is in them; again, it changes nothing."""
        for packet in packets:
            name = self._name(packet)
            self._cluster.tell("osd", "pool", "rm", name, name, "--yes-i-really-really-mean-it")
            self._cluster.tell("osd", "crush", "rule", "rm", name)
            self._cluster.tell("osd", "erasure-code-profile", "rm", name)

    def _name(self, packet: int) -> str:
        return f"{AREA}{self._run}-{packet}"


def _rados(settings: PoolTarget, *arguments: str, limit_s: float = LIMIT_S) -> str:
    return _run(settings, RADOS, arguments, limit_s)


def _run(settings: PoolTarget, program: BenchmarkProgram, arguments: Sequence[str], limit_s: float) -> str:
    try:
        done = run_program(program, arguments, subject=settings.name, limit_s=limit_s)
        return done.require_success(settings.name).stdout
    except BenchmarkError as error:
        raise TARGET_UNUSABLE(settings.name, f"pool {settings.pool}: {error}") from error
