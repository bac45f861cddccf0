"""Pools that a run creates for the packet sizes of erasure coding: the id of the run is in their names."""

from __future__ import annotations

from collections.abc import Iterable

from include.benchmarks.cluster.client import ClusterClient
from include.benchmarks.errors import TARGET_REFUSED, TARGET_UNUSABLE
from include.benchmarks.targets.base import AREA, BenchmarkTarget
from include.benchmarks.targets.pool import NamespaceArea
from include.settings.storage_benchmark.blocks import Mark, PoolTarget

_ALLOWED = "mon_allow_pool_delete"


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
