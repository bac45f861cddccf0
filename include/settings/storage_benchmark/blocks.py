"""Targets of storage benchmarks, what a run may do to each of them, and what they are required to reach.

Nothing is measured that is not marked: a benchmark loads its target as much as it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, field_validator, model_validator

from include.settings.block import Block
from include.settings.errors import SettingsError
from include.settings.names import name_fault
from include.settings.ssh import SshLogin
from include.settings.storage_benchmark.cluster import ClusterBlock
from include.settings.text_types import Name, NodeFolder, Schedule, SitePath, fault


class Mark(Enum):
    """Whether runs may do something to a target."""

    ALLOWED = "allowed"
    REFUSED = "refused"


class TargetKind(Enum):
    """What is measured. Each is a block of settings here and a class in `include/benchmarks/targets`."""

    PATH = "path"
    BUCKET = "bucket"
    POOL = "pool"
    REMOTE = "remote"


def _prefix(text: str) -> str:
    for component in text.split("/"):
        wrong = name_fault(component)
        if wrong:
            raise fault(f"the component {component!r} of the prefix {wrong}", "As in benchmarks or tests/benchmarks.")
    return text


def _whole(value: object) -> object:
    # YAML reads 1_000 and 0x10 as numbers, and true as one as well
    return "not a size" if isinstance(value, bool) else value


Size = Annotated[ByteSize, BeforeValidator(_whole), Field(gt=0)]


class BenchmarkLimits(Block):
    """What one campaign may take of its target. A plan that exceeds one is refused before anything is written."""

    minutes: Annotated[int, Field(ge=1, le=1440)] = 60
    """All steps and rounds together."""
    bytes: Size = ByteSize(20 << 30)
    """Written by all steps and rounds together."""
    fill_percent: Annotated[int, Field(ge=1, le=95)] = 70
    """How full the target may become. On a cluster: the fullest OSD, with room for the data of one lost host."""


class CephAccess(Block):
    """How a Ceph cluster is asked. The key is in `conf` or in a keyring there."""

    conf: SitePath | None = None
    """None: /etc/ceph/ceph.conf."""
    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "admin"
    """Without `client.` before it."""


class ServerView(Block):
    """What a target's servers are asked of themselves while it is measured. Nothing is changed there."""

    every_s: Annotated[int, Field(ge=1, le=300)] = 10
    """Seconds from one look to the next."""
    ceph: CephAccess | None = None
    """Latencies of OSDs, and recovery. None: that of the pool or of `cluster:`, if there is one."""
    hosts: Mapping[Name, SshLogin] = Field(default_factory=dict)
    """Processors, disks and network of these machines. This one, and the hosts of a remote target, are always asked."""


class TargetSettings(Block):
    """What all targets have in common: marks, limits, and figures that only people know."""

    name: str
    benchmark: Mark = Mark.REFUSED
    """Whether campaigns may run on it."""
    fill: Mark = Mark.REFUSED
    """Whether presets may that fill the target."""
    pools: Mark = Mark.REFUSED
    """Whether presets may that create pools on its cluster."""
    degrade: Mark = Mark.REFUSED
    """Whether presets may that stop its servers."""
    limits: BenchmarkLimits = BenchmarkLimits()
    servers: ServerView = ServerView()
    raw_bytes: Size | None = None
    """The size of all disks together. None: it is not reported."""
    usable_bytes: Size | None = None
    """What remains of it for data, after replicas or erasure coding; None: what the target itself reports."""
    price: Annotated[float, Field(gt=0)] | None = None
    """Of the whole target, in `currency`; None: no cost is computed."""
    cluster: ClusterBlock | None = None
    """The Ceph cluster that has the data; None: it is on none, or only its clients are watched."""

    @property
    def ceph(self) -> ClusterBlock | None:
        """How the cluster is reached."""
        return self.cluster


class PathTarget(TargetSettings):
    """A folder of a mounted file system: a local disk or CephFS. It exists; runs create folders in it."""

    kind: Literal["path"]
    """A folder of this machine."""
    path: SitePath
    """The folder."""


class BucketTarget(TargetSettings):
    """A store of this configuration, below a prefix."""

    kind: Literal["bucket"]
    """An object store."""
    store: str
    """The store, of `stores:`."""
    prefix: Annotated[str, AfterValidator(_prefix)] = "benchmarks"
    """What the keys of all objects of campaigns begin with."""


class PoolTarget(TargetSettings, CephAccess):
    """A RADOS pool. It exists; runs write into namespaces of their own."""

    kind: Literal["pool"]
    """A RADOS pool."""
    pool: Name
    """The name of the pool."""

    @model_validator(mode="before")
    @classmethod
    def _its_cluster_has_the_pool(cls, value: object) -> object:
        if not isinstance(value, Mapping) or not isinstance(value.get("cluster"), Mapping):
            return value
        return {**value, "cluster": {**value["cluster"], "pool": value.get("pool")}}

    @property
    def ceph(self) -> ClusterBlock:
        """That of the pool itself."""
        ours = {"conf": self.conf, "user": self.user, "pool": self.pool}
        return self.cluster.model_copy(update=ours) if self.cluster else ClusterBlock.model_validate(ours)


class RemoteTarget(TargetSettings):
    """A folder that exists on several hosts, which are reached over SSH: one runner works on each, with its own fio."""

    kind: Literal["remote"]
    """The same folder on several hosts."""
    path: NodeFolder
    """The folder, on each host."""
    hosts: Annotated[Mapping[Name, SshLogin], Field(min_length=1)]
    """The hosts that runners work on."""


AnyTarget = Annotated[PathTarget | BucketTarget | PoolTarget | RemoteTarget, Field(discriminator="kind")]


class RequirementLine(Block):
    """What a target has to reach in a step of a preset, whatever its baseline is."""

    target: str
    """The target, of `targets:`."""
    step: Annotated[str, Field(min_length=1)]
    """The name of a step, or a pattern such as `mixed-*`."""
    throughput: Size | None = None
    """Bytes per second of all streams together, at least. None: any."""
    p95_ms: Annotated[float, Field(gt=0)] | None = None
    """The 95th percentile of the latency, at most. None: any."""

    @model_validator(mode="after")
    def _requires_something(self) -> RequirementLine:
        if self.throughput is None and self.p95_ms is None:
            raise fault("a requirement without a figure", "Add `throughput:` as 20GB, or `p95_ms:`.")
        return self


class NightlyBenchmark(Block):
    """The campaign that the DAG `storage_benchmark` begins by itself."""

    schedule: Schedule
    """In UTC, at an hour at which nothing else uses the target."""
    target: str
    """The target, of `targets:`."""
    preset: Annotated[str, Field(min_length=1)] = "hlt2-uncontrolled"
    """What is run; `nightshift storage-benchmark presets` lists them."""
    scale: Annotated[float, Field(gt=0, le=1)] = 0.01
    """A factor for streams and sizes of the preset; 1: those of the source."""
    minutes: Annotated[int, Field(ge=1, le=1440)] = 15
    """All steps and rounds together, within the target's `limits`."""


class BenchmarkSettings(Block):
    """Targets of storage benchmarks, their requirements, and how campaigns are compared."""

    targets: Mapping[Name, AnyTarget] = Field(default_factory=dict)
    """What may be measured, by name: a path, a bucket, a pool or a folder of remote hosts."""
    requirements: tuple[RequirementLine, ...] = ()
    nightly: NightlyBenchmark | None = None
    """None: campaigns are begun by hand only."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """The currency of each target's `price`."""
    margin: Annotated[float, Field(ge=0.01, le=0.5)] = 0.1
    """The share by which a figure may be worse than its baseline and still pass."""
    rounds: Annotated[int, Field(ge=1, le=50)] = 5
    """How often each step is repeated; fewer than five make most comparisons inconclusive."""
    most_rounds: Annotated[int, Field(ge=1, le=50)] = 20
    """Up to so many rounds are run while the verdict is open, within the limits; fewer than `rounds` count as those."""

    @field_validator("targets", mode="before")
    @classmethod
    def _targets_know_their_names(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: {**block, "name": key} if isinstance(block, Mapping) else block for key, block in value.items()}

    def rounds_of(self, rounds: int | None, most: int | None) -> tuple[int, int]:
        """How often steps are repeated, at least and at most; with `rounds` alone there are no further ones."""
        least = self.rounds if rounds is None else rounds
        usual = self.most_rounds if rounds is None else rounds
        return least, max(least, usual if most is None else most)

    def target(self, name: str) -> PathTarget | BucketTarget | PoolTarget | RemoteTarget:
        """The target of that name; SettingsError names those that there are."""
        if name not in self.targets:
            listed = ", ".join(sorted(self.targets)) or "none"
            raise SettingsError(
                f"unknown target {name!r}; `benchmarks:` has: {listed}. Use one of these or add it there."
            )
        return self.targets[name]

    @model_validator(mode="after")
    def _requirements_name_targets(self) -> BenchmarkSettings:
        named = [("a requirement", line.target) for line in self.requirements]
        named += [("a nightly campaign", self.nightly.target)] if self.nightly else []
        for what, target in named:
            if target not in self.targets:
                listed = ", ".join(sorted(self.targets)) or "none"
                raise fault(f"{what} of the unknown target {target!r}", f"Targets: {listed}.")
        return self
