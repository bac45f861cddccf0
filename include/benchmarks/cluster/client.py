"""The cluster that a target is on, through the programs `ceph` and `rados`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from include.benchmarks.errors import TARGET_UNUSABLE, BenchmarkError
from include.benchmarks.programs import CEPH, RADOS, BenchmarkProgram, ProgramOutput, run_program
from include.benchmarks.targets.base import BenchmarkTarget, TargetSpace
from include.benchmarks.targets.ceph import CephHealth, pool_space
from include.settings.storage_benchmark.blocks import CephAccess, Mark, TargetSettings
from include.settings.storage_benchmark.cluster import ClusterBlock

LIMIT_S = 60.0
LOOK_S = 1.0
MS_PER_S = 1000


def cluster_arguments(settings: ClusterBlock | CephAccess) -> tuple[str, ...]:
    """What each call of `ceph` and `rados` begins with."""
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
        """How it is."""
        return CephHealth.parse(self.ask("status", limit_s=limit_s), self.subject)

    def space(self) -> TargetSpace:
        """Of the pool, by the fullest OSD of the cluster."""
        return pool_space(self.ask("osd", "df", "tree"), self.ask("df"), self.settings.pool, self.subject)

    def down(self) -> frozenset[int]:
        """The OSDs that are not up."""
        try:
            osds = json.loads(self.ask("osd", "dump"))["osds"]
            return frozenset(int(osd["osd"]) for osd in osds if not int(osd["up"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"`ceph osd dump` cannot be read ({type(error).__name__})"
            raise TARGET_UNUSABLE(self.subject, what) from None

    def why_not_stop(self, osds: Sequence[int]) -> str | None:
        """Why these OSDs cannot all be stopped without losing access to data; None if they can."""
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
        """How long a read of the production object takes; None if there is none to read."""
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
    """How full a target is: by the fullest OSD, where its cluster is known. Raises BenchmarkError (TARGET_UNUSABLE)."""
    cluster = ClusterClient.of(target.settings)
    return cluster.space() if cluster else target.space()
