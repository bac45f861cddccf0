"""Targets of storage benchmarks, what a run may do to each of them, and what they are required to reach.

Nothing is measured that is not marked: a benchmark loads its target as much as it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, field_validator, model_validator

from include.settings.errors import SettingsError
from include.settings.prepare import Block
from include.settings.services import SshLogin
from include.settings.text_types import Name, NodeFolder, Schedule, SitePath, fault, name_fault, no_userinfo

OSD = "{osd}"
"""In a command: the number of the OSD."""


def _names_the_osd(command: tuple[str, ...]) -> tuple[str, ...]:
    if not any(OSD in word for word in command):
        raise fault("a command without {osd}", 'As in ["systemctl", "stop", "ceph-osd@{osd}"].')
    return command


OsdCommand = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_names_the_osd)]


class CephServer(Block):
    """A server with OSDs that campaigns may stop. Its commands are run once for each OSD, `{osd}` is its number.

    A timer on the server also runs `start` and `unset`; both must change nothing when they are run again.
    """

    osds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    """The numbers of its OSDs."""
    login: SshLogin | None = None
    """None: this machine."""
    stop: OsdCommand = ("systemctl", "stop", "ceph-osd@{osd}")
    """The command, as a list of words, that stops an OSD."""
    start: OsdCommand = ("systemctl", "start", "ceph-osd@{osd}")
    """The command that starts it again."""
    unset: OsdCommand = ("ceph", "osd", "unset-group", "noout", "osd.{osd}")
    """The command that takes back the `noout` of an OSD, which the campaign set before it stopped it."""
    folder: NodeFolder = "/var/tmp"  # noqa: S108 - files that are found there are not used
    """The folder of the timer's files."""


class ProductionProbe(Block):
    """A small object of production, which is read while a step runs."""

    pool: Name
    """The pool that has it."""
    object: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^-]")]
    """The name of the object."""
    limit_ms: Annotated[float, Field(gt=0)] = 1000.0
    """Time that a read may take, with the start of the program that reads, a tenth of a second."""


class ErasureCode(Block):
    """The erasure code of pools that campaigns create: that of the pool which they stand for."""

    k: Annotated[int, Field(ge=2, le=32)] = 8
    """Pieces of data of an object."""
    m: Annotated[int, Field(ge=1, le=16)] = 2
    """Pieces of parity: so many may be lost."""
    failure_domain: Annotated[str, Field(pattern=r"^[a-z]+$")] = "host"
    """A kind of CRUSH bucket, as `host` or `osd`: no two pieces of an object are in one."""
    groups: Annotated[int, Field(ge=1, le=4096)] = 128
    """Placement groups of a pool."""


class CephAccess(Block):
    """Access to a Ceph cluster."""

    conf: SitePath | None = None
    """None: /etc/ceph/ceph.conf."""
    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "admin"
    """Without `client.` before it. Its key is in `conf` or in a keyring there."""


class ClusterBlock(CephAccess):
    """Checked before each step and during it; it also decides how full the target is."""

    pool: Name
    """With the data of the target."""
    servers: Mapping[Name, CephServer] = Field(default_factory=dict)
    production: ProductionProbe | None = None
    erasure: ErasureCode = ErasureCode()
    timer_s: Annotated[int, Field(ge=15, le=3600)] = 120
    """So long after the campaign was last heard of, a server starts its OSDs by itself."""
    clean_s: Annotated[int, Field(ge=10, le=86400)] = 1800
    """For how long a campaign waits for all placement groups to be active and clean."""

    @model_validator(mode="after")
    def _osds_are_of_one_server(self) -> ClusterBlock:
        osds = [osd for server in self.servers.values() for osd in server.osds]
        twice = sorted({osd for osd in osds if osds.count(osd) > 1})
        if twice:
            raise fault(f"OSD {twice[0]} is named twice", "An OSD is on one server.")
        return self


class Mark(Enum):
    """Permission of a target for a kind of run."""

    ALLOWED = "allowed"
    REFUSED = "refused"


class TargetKind(Enum):
    """The kind of a target. Each is a block of settings here and a class in `include/benchmarks/measure`."""

    PATH = "path"
    BUCKET = "bucket"
    POOL = "pool"
    REMOTE = "remote"
    ENDPOINT = "endpoint"


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
    """Limits of one campaign on its target. A plan that exceeds one is refused before anything is written."""

    minutes: Annotated[int, Field(ge=1, le=1440)] = 60
    """All steps and rounds together."""
    bytes: Size = ByteSize(20 << 30)
    """Written by all steps and rounds together."""
    fill_percent: Annotated[int, Field(ge=1, le=95)] = 70
    """Fill level that the target may reach. On a cluster: the fullest OSD, with room for the data of one lost host."""


class ServerView(Block):
    """Questions to a target's servers while it is measured. Nothing is changed there."""

    every_s: Annotated[int, Field(ge=1, le=300)] = 10
    """Seconds from one look to the next."""
    ceph: CephAccess | None = None
    """Latencies of OSDs, and recovery. None: that of the pool or of `cluster:`, if there is one."""
    hosts: Mapping[Name, SshLogin] = Field(default_factory=dict)
    """Processors, disks and network of these machines. This one, and the hosts of a remote target, are always asked."""


class TargetSettings(Block):
    """The common keys of all targets: marks, limits, and figures that only people know."""

    name: str
    benchmark: Mark = Mark.REFUSED
    """Allows campaigns."""
    fill: Mark = Mark.REFUSED
    """Allows presets that fill the target."""
    pools: Mark = Mark.REFUSED
    """Allows presets that create pools on its cluster."""
    degrade: Mark = Mark.REFUSED
    """Allows presets that stop its servers."""
    limits: BenchmarkLimits = BenchmarkLimits()
    servers: ServerView = ServerView()
    raw_bytes: Size | None = None
    """The size of all disks together. None: it is not reported."""
    usable_bytes: Size | None = None
    """Capacity that remains for data, after replicas or erasure coding; None: what the target itself reports."""
    price: Annotated[float, Field(gt=0)] | None = None
    """Cost of the whole target, in `currency`; None: no cost is computed."""
    cluster: ClusterBlock | None = None
    """The Ceph cluster that has the data; None: it is on none, or only its clients are watched."""

    @property
    def ceph(self) -> ClusterBlock | None:
        """The access to the cluster."""
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
    """Prefix of the keys of all objects of campaigns."""


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


class EndpointServer(Enum):
    """The server software of an endpoint."""

    NGINX = "nginx"
    APACHE = "apache"
    XRDHTTP = "xrdhttp"
    """XRootD's HTTP."""
    XROOT = "xroot"


RTT_MS, WINDOW = "{rtt_ms}", "{window}"
"""In a command: the round trip in milliseconds; `stock` or `tuned`."""


def _url(text: str) -> str:
    no_userinfo(text)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https", "root") or not parts.hostname or not parts.path:
        raise fault("it is no URL of a file or folder", "As in https://se.example.org/store/test.root, or root://.")
    return text


def _sets_the_link(command: tuple[str, ...]) -> tuple[str, ...]:
    if RTT_MS not in command or WINDOW not in command:
        raise fault(f"a command without {RTT_MS} and {WINDOW}", 'As in ["set-link", "{rtt_ms}", "{window}"].')
    return command


class EndpointLink(Block):
    """A link in a laboratory whose delay can be set, between what reads and an endpoint."""

    read: Annotated[tuple[str, ...], Field(min_length=1)]
    """The words before each command that reads, as in `ip netns exec NAME`."""
    set: Annotated[tuple[str, ...], AfterValidator(_sets_the_link)]
    """The command, as a list of words, that sets round trip and windows; `{rtt_ms}` and `{window}` are words of it."""


class EndpointTarget(TargetSettings):
    """A file at a distance: one that exists, and is read only, or one that each campaign writes and removes."""

    kind: Literal["endpoint"]
    """A file at a distance, by URL."""
    urls: Annotated[Mapping[EndpointServer, Annotated[str, AfterValidator(_url)]], Field(min_length=1)]
    """The URL of the file by the software of its server: `nginx`, `apache`, `xrdhttp` or `xroot`."""
    size: Size
    """The size of the file."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """The SHA-256 of the file, in hexadecimal. None: the URLs are of a folder, and campaigns write a file there."""
    trace: SitePath | None = None
    """The ranges that an application reads, as JSON lines. None: one is made for the size of the file."""
    link: EndpointLink | None = None
    """None: the round trip is that of the endpoint, and is measured."""

    @model_validator(mode="after")
    def _folders_end_with_a_slash(self) -> EndpointTarget:
        if any(url.endswith("/") is not (self.sha256 is None) for url in self.urls.values()):
            raise fault("URLs of files have a `sha256`, and those of folders end with a slash", "Correct one of them.")
        if self.sha256 is None and set(self.urls) <= {EndpointServer.XROOT}:
            raise fault("a folder that is known by xroot only", "Add its URL by HTTP, by which the file is written.")
        return self


AnyTarget = Annotated[
    PathTarget | BucketTarget | PoolTarget | RemoteTarget | EndpointTarget, Field(discriminator="kind")
]


class RequirementLine(Block):
    """A figure that a target has to reach in a step of a preset, whatever its baseline is."""

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
    """Name of a preset; `nightshift storage-benchmark presets` lists them."""
    scale: Annotated[float, Field(gt=0, le=1)] = 0.01
    """A factor for streams and sizes of the preset; 1: those of the source."""
    minutes: Annotated[int, Field(ge=1, le=1440)] = 15
    """All steps and rounds together, within the target's `limits`."""


class BenchmarkSettings(Block):
    """Targets of storage benchmarks, their requirements, and how campaigns are compared."""

    targets: Mapping[Name, AnyTarget] = Field(default_factory=dict)
    """Targets by name: a path, a bucket, a pool, a folder of remote hosts or a file at a distance."""
    requirements: tuple[RequirementLine, ...] = ()
    nightly: NightlyBenchmark | None = None
    """None: campaigns are begun by hand only."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """The currency of each target's `price`."""
    margin: Annotated[float, Field(ge=0.01, le=0.5)] = 0.1
    """The share by which a figure may be worse than its baseline and still pass."""
    rounds: Annotated[int, Field(ge=1, le=50)] = 5
    """Number of rounds of each step; fewer than five make most comparisons inconclusive."""
    most_rounds: Annotated[int, Field(ge=1, le=50)] = 20
    """Up to so many rounds are run while the verdict is open, within the limits; fewer than `rounds` count as those."""

    @field_validator("targets", mode="before")
    @classmethod
    def _targets_know_their_names(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: {**block, "name": key} if isinstance(block, Mapping) else block for key, block in value.items()}

    def rounds_of(self, rounds: int | None, most: int | None) -> tuple[int, int]:
        """The number of rounds, at least and at most; with `rounds` alone there are no further ones."""
        least = self.rounds if rounds is None else rounds
        usual = self.most_rounds if rounds is None else rounds
        return least, max(least, usual if most is None else most)

    def target(self, name: str) -> AnyTarget:
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
