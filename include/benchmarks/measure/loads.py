"""Loads that a step puts on a target, and the results that runners report of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field

from include.settings.benchmarks import EndpointServer

BLOCK_UNIT = 4096
"""Blocks are multiples of it, as direct I/O needs."""


class LoadAccess(Enum):
    """What streams do."""

    WRITE = "write"
    READ = "read"
    MIXED = "mixed"
    """Each stream reads and writes."""
    DELETE = "delete"
    LIST = "list"
    PUBLISH = "publish"
    """Each stream is a directory with files and a catalog of its own; all are published to a new repository at once."""


class DataPattern(Enum):
    """What is written."""

    ZEROS = "zeros"
    """As of /dev/zero; a store that compresses writes next to nothing."""
    RANDOM = "random"
    """Cannot be compressed."""


class RunnerKind(Enum):
    """What makes the load."""

    FIO = "fio"
    DD = "dd"
    RADOS = "rados"
    OBJECTS = "objects"
    """Our own driver for object stores."""
    REMOTE = "remote"
    """fio, on several hosts at the same time."""
    PUBLISHER = "publisher"
    """The publisher of nights, with a gateway."""
    READERS = "readers"
    """Jobs that read a shared data set over HTTP, with servers and caches of their own."""
    CURL = "curl"
    DAVIX = "davix"
    XRDCP = "xrdcp"
    READER = "reader"
    """Our own reader of files at a distance."""


class ReaderWay(Enum):
    """The way from the jobs to a data set."""

    ORIGIN = "origin"
    """nginx, without a cache."""
    LIMITED = "limited"
    """A server of a limited rate."""
    REDIRECTING = "redirecting"
    """A front end that redirects to two servers of that rate."""
    NGINX = "nginx"
    """nginx as a caching proxy."""
    SQUID = "squid"
    """Squid with its default limit of an object's size."""
    SQUID_RAISED = "squid-raised"
    XCACHE = "xcache"
    """XRootD's caching proxy before an XRootD server."""
    ALIEN_COLD = "alien-cold"
    """A shared cache that is empty in the beginning."""
    ALIEN_WARM = "alien-warm"
    """A shared cache that was warmed before."""
    LOCAL = "local"
    """Local caches, each shared by the jobs of a machine."""


LOCAL_CACHES = 8


class TcpWindow(Enum):
    """The most that TCP has on its way."""

    STOCK = "stock"
    """The kernel's own: 4 MB of what is sent."""
    TUNED = "tuned"
    """64 MB."""


class DistantStrategy(Enum):
    """Strategies of the reader (docs/federation.md)."""

    STORAGE = "storage"
    APPLICATION = "application"
    LAZY = "lazy"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class DistantRead:
    """A read of the file of an endpoint."""

    server: EndpointServer
    rtt_ms: float | None
    """The round trip that is set before; None: it is as it is."""
    window: TcpWindow = TcpWindow.STOCK
    strategy: DistantStrategy | None = None
    """None: it is no read of our reader, but a copy by another program."""
    trace: bool = False
    """True: what an application reads of the file; its bytes alone count. False: all of the file."""


@dataclass(frozen=True, slots=True)
class DistantFigures:
    """Figures of a read at a distance."""

    rtt_ms: float
    """The median round trip before it."""
    cpu_s: float | None = None
    requests: int | None = None


class ServerState(Enum):
    """How the servers of the target are while a step runs."""

    HEALTHY = "healthy"
    """All OSDs are up, and all placement groups active and clean."""
    OSD_DOWN = "osd-down"
    """One OSD is stopped."""
    HOST_DOWN = "host-down"
    """All OSDs of one server are stopped."""
    RECOVERING = "recovering"
    """What was stopped has just been started again."""

    @property
    def is_outage(self) -> bool:
        """Tell whether something is stopped for it."""
        return self in {ServerState.OSD_DOWN, ServerState.HOST_DOWN}


def _is_none(value: object) -> bool:
    return value is None


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """Streams of one kind. A stream has files of its own, or objects: `files` of `file_bytes` each."""

    access: LoadAccess
    dataset: str
    """Names the files: what one step writes another reads."""
    streams: int
    file_bytes: int
    block_bytes: int
    files: int = 1
    rate: int | None = None
    """Bytes per second of each stream at most; None: as fast as it goes."""
    read_share: float = 0.5
    """Of mixed streams: the share of operations that read."""
    pattern: DataPattern = DataPattern.RANDOM
    connections: Annotated[int | None, Field(exclude_if=_is_none)] = None
    """Requests at the same time of what publishes. None is not written: documents without it stay as they were."""
    way: Annotated[ReaderWay | None, Field(exclude_if=_is_none)] = None
    """The way of jobs: each stream is a job, and reads some files of a dataset that all of them share, twice."""
    each: Annotated[int | None, Field(exclude_if=_is_none)] = None
    """Files that each job reads."""
    distant: Annotated[DistantRead | None, Field(exclude_if=_is_none)] = None
    """A read of an endpoint, whose streams are connections."""
    copies: Annotated[int, Field(exclude_if=lambda count: count == 1)] = 1
    """Number of copies of the dataset on the target at most, those in caches among them."""

    @property
    def directions(self) -> tuple[LoadAccess, ...]:
        """The directions that are measured, each by itself."""
        return (LoadAccess.READ, LoadAccess.WRITE) if self.access is LoadAccess.MIXED else (self.access,)

    @property
    def creates(self) -> bool:
        """Tell whether the dataset is made by it, and replaces one that is there."""
        return self.access in {LoadAccess.WRITE, LoadAccess.PUBLISH}

    @property
    def writes(self) -> bool:
        """Tell whether the dataset is created or changed."""
        return self.creates or self.access is LoadAccess.MIXED

    @property
    def endless(self) -> bool:
        """True if it goes on until its time is over: it begins again after its last file."""
        return self.way is None and self.access in {LoadAccess.READ, LoadAccess.LIST}

    @property
    def needs_data(self) -> bool:
        """Tell whether the dataset exists before."""
        return not self.creates

    @property
    def bytes(self) -> int:
        """The size of the dataset."""
        return self.streams * self.files * self.file_bytes

    def names_of(self, stream: int) -> Iterator[str]:
        """The names of a stream's files."""
        return (file_name(self.dataset, stream, file) for file in range(self.files))

    def names(self) -> Iterator[str]:
        """The names of all files; of a repository that of its folder, with a slash."""
        if self.access is LoadAccess.PUBLISH:
            return iter((f"{self.dataset}/",))
        return (name for stream in range(self.streams) for name in self.names_of(stream))


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Loads that run at the same time, by one runner."""

    name: str
    runner: RunnerKind
    loads: tuple[StreamLoad, ...]
    seconds: int
    """Reading and listing end after so long; all else when every file was worked on once, or after so long. A step of
    both ends with the first stream that ends."""
    ramp_s: int = 0
    """The first seconds are not counted."""

    @property
    def together(self) -> bool:
        """True if some loads end by themselves and others go on: all end with the first stream that ends."""
        return len({load.endless for load in self.loads}) > 1


def file_name(dataset: str, stream: int, file: int) -> str:
    """The name of a file or object; fio's `$jobnum` and `$filenum` count the same."""
    return f"{dataset}.{stream}.{file}"


PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
NS_PER_MS = 1_000_000
_BITS = 6
_PER_POWER = 1 << _BITS
LAST_BUCKET = 29 * _PER_POWER - 1
"""Last bucket of fio; it holds everything above 17 s."""


def bucket_of(nanoseconds: int) -> int:
    """The number of the bucket that a latency is counted in."""
    shift = max(0, nanoseconds.bit_length() - 1 - _BITS)
    if shift == 0:
        return max(0, nanoseconds)
    return min(LAST_BUCKET, ((shift + 1) << _BITS) + ((nanoseconds >> shift) & (_PER_POWER - 1)))


def middle_of(bucket: int) -> float:
    """The latency in nanoseconds that represents a bucket."""
    if bucket < 2 * _PER_POWER:
        return float(bucket)
    shift = (bucket >> _BITS) - 1
    return float((1 << (shift + _BITS)) + ((bucket % _PER_POWER) + 0.5) * (1 << shift))


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Counts of operations by the bucket of their latency."""

    counts: Mapping[int, int]

    @classmethod
    def of(cls, nanoseconds: Iterable[int]) -> LatencyHistogram:
        """The histogram of these latencies."""
        return cls(Counter(map(bucket_of, nanoseconds)))

    @classmethod
    def merged(cls, histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
        """All of them in one."""
        total: Counter[int] = Counter()
        for histogram in histograms:
            total.update(histogram.counts)
        return cls(total)

    @property
    def operations(self) -> int:
        """Return how many were counted."""
        return sum(self.counts.values())

    def percentile_ms(self, percent: float) -> float | None:
        """The latency in milliseconds that `percent` of the operations do not exceed; None without operations."""
        needed, seen = self.operations * percent / 100, 0
        for bucket, count in sorted(self.counts.items()):
            seen += count
            if seen >= needed:
                return middle_of(bucket) / NS_PER_MS
        return None

    def mean_ms(self) -> float | None:
        """The mean in milliseconds; None without operations."""
        total = self.operations
        summed = sum(middle_of(bucket) * count for bucket, count in self.counts.items())
        return summed / total / NS_PER_MS if total else None


WHOLE = 100.0
"""Percent."""


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """A second of a load; `p95_ms`: None where the runner reports no latencies over time."""

    second: int
    bytes_per_s: float
    p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """A look at the cluster while a step runs."""

    second: float
    osds_down: int
    unclean: int
    """Placement groups that are not active and clean."""
    degraded_percent: float
    """Copies and shards of objects that are missing."""
    misplaced_percent: float
    production_ms: float | None = None
    """Latency of a small read of production."""


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Times of jobs that read a shared data set."""

    jobs: tuple[float, ...]
    """Seconds of each job."""
    files: tuple[tuple[float, float], ...]
    """Start (s after the first job's) and seconds of each first read of a file."""
    wrong: int = 0
    """Files with wrong bytes."""
    origin_share: float | None = None
    """Bytes that the origin sent, as a share of the data set; None: not counted."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Operations of one kind, without the ramp. `seconds` ends with the last stream."""

    access: LoadAccess
    bytes: int
    operations: int
    failed: int
    seconds: float
    first_done_s: float
    """When the first stream was done: from then on fewer streams share the target."""
    latencies: LatencyHistogram | None = None
    mean_ms: float | None = None
    series: tuple[SeriesPoint, ...] = ()
    times: Annotated[JobTimes | None, Field(exclude_if=_is_none)] = None
    distant: Annotated[DistantFigures | None, Field(exclude_if=_is_none)] = None

    @property
    def throughput(self) -> float:
        """Bytes per second of all streams together."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def rate(self) -> float:
        """Operations per second of all streams together."""
        return self.operations / self.seconds if self.seconds > 0 else 0.0

    def percentiles(self) -> dict[str, float]:
        """Latencies in milliseconds by `p50` to `p99.9`: those that at least one operation exceeds.

        The 95th percentile of five operations would be their maximum. Empty where the runner reports no latencies.
        """
        if self.latencies is None:
            return {}
        operations = self.latencies.operations
        enough = [percent for percent in PERCENTILES if round(operations * (100 - percent), 6) >= WHOLE]
        found = {f"p{percent:g}": self.latencies.percentile_ms(percent) for percent in enough}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RunnerResult:
    """Report of a runner on a step: its exact command lines, and what limits the meaning of the figures."""

    version: str
    commands: tuple[tuple[str, ...], ...]
    loads: tuple[MeasuredLoad, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Hosts without a result, each with the reason: the figures are of the others, and are not compared."""
