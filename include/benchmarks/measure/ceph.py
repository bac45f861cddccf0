"""Targets on a Ceph cluster, and the answers of its client that decide whether and how much may be measured."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from include.benchmarks.errors import TARGET_REFUSED, TARGET_UNUSABLE, BenchmarkError, readable
from include.benchmarks.measure.programs import CEPH, RADOS, BenchmarkProgram, ProgramOutput, run_program
from include.benchmarks.measure.targets import AREA, AreaRemoval, BenchmarkTarget, RunArea, TargetSpace
from include.settings.benchmarks import CephAccess, ClusterBlock, Mark, PoolTarget, TargetKind, TargetSettings

LIMIT_S = 60.0
LOOK_S = 1.0
MS_PER_S = 1000


def cluster_arguments(settings: CephAccess) -> tuple[str, ...]:
    """Return what each call of `ceph` and `rados` begins with."""
    conf = ("--conf", str(settings.conf)) if settings.conf else ()
    return (*conf, "--name", f"client.{settings.user}")


class ClusterClient:
    """One cluster; `subject` is what errors are about. Every call raises BenchmarkError (TARGET_UNUSABLE)."""

    def __init__(self, settings: ClusterBlock, subject: str) -> None:
        self.settings = settings
        self.subject = subject

    @classmethod
    def of(cls, settings: TargetSettings) -> ClusterClient | None:
        """That of a target; None if it has none."""
        return cls(settings.ceph, settings.name) if settings.ceph else None

    def run(self, *words: str, program: BenchmarkProgram = CEPH, limit_s: float = LIMIT_S) -> ProgramOutput:
        """A call; its exit code is the caller's to judge."""
        arguments = (*cluster_arguments(self.settings), *words)
        try:
            return run_program(program, arguments, subject=self.subject, limit_s=limit_s)
        except BenchmarkError as error:
            raise TARGET_UNUSABLE(self.subject, f"the cluster does not answer: {error}") from error

    def ask(self, *words: str, limit_s: float = LIMIT_S) -> str:
        """The reply to `ceph`, as JSON."""
        return self._done((*words, "--format", "json"), CEPH, limit_s)

    def tell(self, *words: str) -> None:
        """A command of `ceph` that changes the cluster."""
        self._done(words, CEPH, LIMIT_S)

    def health(self, *, limit_s: float = LIMIT_S) -> CephHealth:
        """Return how it is."""
        return CephHealth.parse(self.ask("status", limit_s=limit_s), self.subject)

    def space(self) -> TargetSpace:
        """Of the pool, by the fullest OSD of the cluster."""
        return pool_space(self.ask("osd", "df", "tree"), self.ask("df"), self.settings.pool, self.subject)

    def down(self) -> frozenset[int]:
        """The OSDs that are not up."""
        with readable(TARGET_UNUSABLE, self.subject, "`ceph osd dump`"):
            osds = json.loads(self.ask("osd", "dump"))["osds"]
            return frozenset(int(osd["osd"]) for osd in osds if not int(osd["up"]))

    def why_not_stop(self, osds: Sequence[int]) -> str | None:
        """Return why these OSDs cannot all be stopped without losing access to data; None if they can."""
        done = self.run("osd", "ok-to-stop", *map(str, osds))
        return (done.stderr or done.stdout).strip()[-200:] or "no reason is given" if done.code else None

    def require_health(self, *, clean: bool) -> None:
        """Refuse a cluster on which nothing may be measured now. `clean`: nor one that recovers or has flags set."""
        health = self.health()
        reasons = list(health.stopping)
        if clean:
            reasons += [f"{health.unclean} placement groups are not active and clean"] if health.unclean else []
            reasons += [f"{health.osds_down} OSDs are down"] if health.osds_down else []
            reasons += health.flags
        if reasons:
            raise TARGET_UNUSABLE(self.subject, f"the cluster reports {'; '.join(reasons)}")

    def wait_clean(self, limit_s: float) -> float:
        """Wait until all OSDs are up and all placement groups are active and clean; how many seconds that took."""
        began = time.monotonic()
        while True:
            health, waited = self.health(), time.monotonic() - began
            if health.clean:
                return waited
            if waited > limit_s:
                what = f"{health.unclean} placement groups not clean, {health.osds_down} OSDs down"
                raise TARGET_UNUSABLE(self.subject, f"the cluster did not recover within {limit_s:.0f} s: {what}")
            # there is no event for it
            time.sleep(LOOK_S)

    def production_ms(self) -> float | None:
        """Return how long a read of the production object takes; None if there is none to read."""
        probe = self.settings.production
        if probe is None:
            return None
        began = time.monotonic()
        self._done(("--pool", probe.pool, "get", probe.object, "/dev/null"), RADOS, LIMIT_S)
        return (time.monotonic() - began) * MS_PER_S

    def _done(self, words: Sequence[str], program: BenchmarkProgram, limit_s: float) -> str:
        done = self.run(*words, program=program, limit_s=limit_s)
        try:
            return done.require_success(self.subject).stdout
        except BenchmarkError as error:
            raise TARGET_UNUSABLE(self.subject, str(error)) from error


def check_target(target: BenchmarkTarget) -> None:
    """Refuse a target that cannot be measured, or a cluster that is not well: BenchmarkError (TARGET_UNUSABLE)."""
    target.check()
    cluster = ClusterClient.of(target.settings)
    if cluster is not None:
        cluster.require_health(clean=target.settings.degrade is not Mark.ALLOWED)
        cluster.production_ms()


def space_of(target: BenchmarkTarget) -> TargetSpace | None:
    """Return how full a target is: by the fullest OSD, where its cluster is known. Raises BenchmarkError
    (TARGET_UNUSABLE)."""
    cluster = ClusterClient.of(target.settings)
    return cluster.space() if cluster else target.space()


REMOVAL_LIMIT_S = 3600.0
_AT_ONCE = 200
_ALLOWED = "mon_allow_pool_delete"


def rados_arguments(settings: PoolTarget) -> tuple[str, ...]:
    """Return what a call begins with that works on the pool."""
    return (*cluster_arguments(settings), "--pool", settings.pool)


class NamespaceArea(RunArea):
    """Namespaces with the id of the run in their names: what is in them, the run has created."""

    def __init__(self, settings: PoolTarget, run: str) -> None:
        self._settings = settings
        self._prefix = f"{AREA}{run}."
        self.where = f"{settings.pool}/{self._prefix}*"

    def arguments(self, dataset: str) -> tuple[str, ...]:
        """Return what a call of `rados` begins with that works on a dataset."""
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
    try:
        done = run_program(RADOS, arguments, subject=settings.name, limit_s=limit_s)
        return done.require_success(settings.name).stdout
    except BenchmarkError as error:
        raise TARGET_UNUSABLE(settings.name, f"pool {settings.pool}: {error}") from error


STOPPING = frozenset({
    "OSD_NEARFULL", "OSD_BACKFILLFULL", "OSD_FULL", "POOL_NEAR_FULL", "POOL_BACKFILLFULL", "POOL_FULL",
    "PG_AVAILABILITY", "PG_DAMAGED", "SLOW_OPS", "MON_DOWN",
})  # fmt: skip
"""Health checks on which no benchmark begins, and a running one ends."""
CLEAN = "active+clean"
SCRUBBED = frozenset({f"{CLEAN}+scrubbing", f"{CLEAN}+scrubbing+deep"})
FLAGS = frozenset({"OSDMAP_FLAGS", "OSD_FLAGS"})
"""Health checks about flags that people set, as noout."""
UNKNOWN_OVERHEAD = 3.0
"""Raw bytes of a byte of data, for a pool that has no figures yet: those of three replicas."""


@dataclass(frozen=True, slots=True)
class CephHealth:
    """The state of a cluster: why nothing may be measured now, and whether all of it is clean."""

    stopping: tuple[str, ...]
    unclean: int
    """Placement groups that are not active and clean."""
    osds_down: int = 0
    flags: tuple[str, ...] = ()
    degraded: float = 0.0
    """The share of copies and shards that are missing."""
    misplaced: float = 0.0

    @property
    def clean(self) -> bool:
        """Tell whether nothing is left to recover."""
        return not self.unclean and not self.osds_down

    @classmethod
    def parse(cls, text: str, subject: str) -> CephHealth:
        """The reply to `ceph status --format json`. Raises BenchmarkError (TARGET_UNUSABLE) about the subject."""
        with readable(TARGET_UNUSABLE, subject, "`ceph status`"):
            document = json.loads(text)
            checks = dict(document["health"]["checks"])
            pgmap, osdmap = document["pgmap"], document["osdmap"]
            groups = [(str(state["state_name"]), int(state["count"])) for state in pgmap.get("pgs_by_state", ())]
            return cls(
                stopping=_messages(checks, STOPPING),
                unclean=sum(count for name, count in groups if name != CLEAN and name not in SCRUBBED),
                osds_down=int(osdmap["num_osds"]) - int(osdmap["num_up_osds"]),
                flags=_messages(checks, FLAGS),
                degraded=float(pgmap.get("degraded_ratio", 0)),
                misplaced=float(pgmap.get("misplaced_ratio", 0)),
            )


def _messages(checks: dict[str, Any], names: frozenset[str]) -> tuple[str, ...]:
    return tuple(f"{name}: {checks[name]['summary']['message']}" for name in sorted(names & checks.keys()))


def pool_space(tree: str, usage: str, pool: str, subject: str) -> TargetSpace:
    """Return how full a pool is by its fullest OSD, as if its largest host were lost and its data were on the others.

    Level and total are both those of the hosts that remain: what is written raises the level by its share of the total.

    Args:
        tree: The reply to `ceph osd df tree --format json`.
        usage: The reply to `ceph df --format json`.
        pool: The name of the pool.
        subject: What the error is about.

    Raises:
        BenchmarkError: TARGET_UNUSABLE if one of them is not what it should be.
    """
    with readable(TARGET_UNUSABLE, subject, "`ceph df`"):
        nodes: list[dict[str, Any]] = json.loads(tree)["nodes"]
        osds = [float(node["utilization"]) for node in nodes if node["type"] == "osd" and int(node["kb"]) > 0]
        hosts = [int(node["kb"]) for node in nodes if node["type"] == "host" and int(node["kb"]) > 0]
        document = json.loads(usage)
        raw, available = int(document["stats"]["total_bytes"]), int(document["stats"]["total_avail_bytes"])
        overhead = _overhead(document["pools"], pool, available)
        fullest = max(osds)
    # a single host leaves nothing that its data could move to
    remaining = 1 - max(hosts) / sum(hosts) if len(hosts) > 1 else 1.0
    level = min(1.0, fullest / 100 / remaining)
    total = raw * remaining / overhead
    return TargetSpace(int(total), int(total * (1 - level)))


def _overhead(pools: Iterable[dict[str, Any]], pool: str, available: int) -> float:
    for found in pools:
        if found["name"] == pool and int(found["stats"]["max_avail"]) > 0:
            return max(1.0, available / int(found["stats"]["max_avail"]))
    return UNKNOWN_OVERHEAD
