"""The presets. Those named `hlt2-*` carry the parameters of the LHCb HLT2 storage tests of 2022.

There, 12 servers wrote and read with 16 streams each, `dd bs=64M`, without control; about 2,000 clients wrote and read
at 32 MB/s each. With servers lost, reading and writing were limited to what data taking needs: 10 GB/s in and 10 GB/s
out, here by clients of 32 MB/s. One factor scales streams and files to the target at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from include.benchmarks.measure.loads import (
    BLOCK_UNIT,
    LOCAL_CACHES,
    DataPattern,
    DistantRead,
    DistantStrategy,
    LoadAccess,
    ReaderWay,
    RunnerKind,
    ServerState,
    StreamLoad,
    TcpWindow,
)
from include.settings.benchmarks import EndpointServer, TargetKind

MIB = 1 << 20
LEAST_FILES = 200
"""Of a stream with as many: fewer operations say little about latencies."""
WHOLE_OBJECTS = frozenset({RunnerKind.OBJECTS, RunnerKind.RADOS})
"""Runners whose operations are on whole objects: a stream's file becomes objects of one block each."""
ANY_TARGET = frozenset(TargetKind) - {TargetKind.ENDPOINT}


@dataclass(frozen=True, slots=True)
class PresetLoad:
    """Streams as their source had them; `scaled` fits them to a machine."""

    access: LoadAccess
    dataset: str
    streams: int
    file_bytes: int
    block_bytes: int
    rate: int | None = None
    read_share: float = 0.5
    pattern: DataPattern = DataPattern.RANDOM
    files: int = 1
    each: int = 1
    """Multiplies the streams after they were scaled: for presets about the number of streams."""
    connections: int | None = None
    """Of a publication; not scaled."""
    way: ReaderWay | None = None
    sample: int | None = None
    """Files that each job reads; not scaled."""
    copies: int = 1
    distant: DistantRead | None = None
    """A read of an endpoint's file, which is what it is: nothing of the load is scaled."""

    def scaled(self, factor: float, runner: RunnerKind) -> StreamLoad:
        """The load on a machine that is smaller by `factor`: fewer streams, shorter files, the same rate of each."""
        block, factor = self.block_bytes, 1 if self.distant else factor
        size = max(block, BLOCK_UNIT, int(self.file_bytes * factor) // block * block)
        files = max(min(self.files, LEAST_FILES), round(self.files * factor))
        if runner in WHOLE_OBJECTS and files == 1:
            size, files = block, max(1, size // block)
        return StreamLoad(
            access=self.access,
            dataset=self.dataset,
            streams=max(1, round(self.streams * factor)) * self.each,
            file_bytes=size,
            block_bytes=block,
            files=files,
            rate=self.rate,
            read_share=self.read_share,
            pattern=DataPattern.ZEROS if runner is RunnerKind.DD else self.pattern,
            connections=self.connections,
            way=self.way,
            each=self.sample,
            copies=self.copies,
            distant=self.distant,
        )

    def reading(self) -> PresetLoad:
        """The same files, read."""
        return replace(self, access=LoadAccess.READ)


@dataclass(frozen=True, slots=True)
class PresetStep:
    """Loads at the same time. `seconds`: at the size of the source; `runner`: None for the usual one of the target."""

    name: str
    loads: tuple[PresetLoad, ...]
    seconds: int = 300
    runner: RunnerKind | None = None
    servers: ServerState | None = None
    """None: whatever they are."""
    packet_bytes: int | None = None
    """Of erasure coding, on a pool that is created for the step; None: on the target as it is."""
    whole_scale: bool = False
    """Run at the scale 1 alone."""


@dataclass(frozen=True, slots=True)
class PresetPhase:
    """Steps that are repeated together, after the target was filled to a level."""

    steps: tuple[PresetStep, ...]
    fill_percent: int | None = None
    """None: the target stays as full as it is."""
    ageing: int = 0
    """After it was filled: so often a random half of that is deleted and written again, among data that are deleted
    then."""
    prepare: tuple[PresetStep, ...] = ()
    """Run once before, and not counted."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A scenario with the parameters of its source."""

    name: str
    title: str
    phases: tuple[PresetPhase, ...]
    targets: frozenset[TargetKind] = ANY_TARGET
    marks: tuple[str, ...] = ()
    """What a target has to be marked for besides `benchmark`; such presets never run on a schedule."""

    @property
    def stops_servers(self) -> bool:
        """Tell whether OSDs are stopped for it."""
        return any(step.servers is not None for phase in self.phases for step in phase.steps)


SERVERS, STREAMS_PER_SERVER, CLIENTS = 12, 16, 2000
CLIENT_RATE = 32_000_000
TAKING_CLIENTS = 10_000_000_000 // CLIENT_RATE
OUTAGE_STEP_S = 120
TAKING_BLOCK = 4 * MIB
"""A client of 32 MB/s has several operations in a second, so that a change shows in its second."""
BLOCK = 64 * MIB
FILE = 64 * 1024 * MIB
"""The source names no size of files; a stream of 64 GiB takes five minutes at its highest speed."""
DIRECTORIES, FILES_OF_DIRECTORY, SMALL_FILE = 250, 1000, 4096
"""Of the publication benchmark of the LHCb nightlies of 2021, which found S3 to be 5 times as fast as a volume."""
READERS, READERS_FILES, READERS_SAMPLE, READERS_FILE = 128, 60, 8, 256 * MIB
"""From the paper on auxiliary data: 128 jobs of a set of 15 GB, 2 GB each."""
READERS_S = {
    ReaderWay.ORIGIN: 150, ReaderWay.LIMITED: 560, ReaderWay.REDIRECTING: 350, ReaderWay.NGINX: 150,
    ReaderWay.SQUID: 450, ReaderWay.SQUID_RAISED: 450, ReaderWay.XCACHE: 350, ReaderWay.ALIEN_COLD: 150,
    ReaderWay.ALIEN_WARM: 120, ReaderWay.LOCAL: 200,
}  # fmt: skip
"""The seconds of each way."""

_WRITE = PresetLoad(LoadAccess.WRITE, "data", SERVERS * STREAMS_PER_SERVER, FILE, BLOCK)
_HALF = replace(_WRITE, streams=_WRITE.streams // 2)
_CLIENT = replace(_WRITE, dataset="clients", streams=CLIENTS, rate=CLIENT_RATE, file_bytes=300 * CLIENT_RATE)
_TAKING = replace(_CLIENT, streams=TAKING_CLIENTS, block_bytes=TAKING_BLOCK)


def _write_and_read(load: PresetLoad, suffix: str = "") -> tuple[PresetStep, PresetStep]:
    return (PresetStep(f"write{suffix}", (load,)), PresetStep(f"read{suffix}", (load.reading(),)))


_STREAMS = tuple(
    step
    for streams in (1, 2, 4, 8, 16)
    for step in _write_and_read(
        replace(_WRITE, dataset=f"streams-{streams}", streams=SERVERS, each=streams), f"-{streams:02}"
    )
)
_BLOCKS = tuple(
    step
    for kib in (64, 1024, 4096, 16384, 65536)
    for step in _write_and_read(replace(_WRITE, dataset=f"blocks-{kib}", block_bytes=kib << 10), f"-{kib:05}k")
)
_PACKETS = tuple(
    replace(step, packet_bytes=kib << 10)
    for kib in (4, 16, 64, 256)
    for step in _write_and_read(replace(_WRITE, dataset=f"packets-{kib}"), f"-{kib:03}k")
)


def _outage(name: str, title: str, outage: ServerState) -> Preset:
    def together(step: str, state: ServerState) -> PresetStep:
        # files of its own for the outage: removing them would leave nothing to recover
        written = replace(_TAKING, dataset="missed" if state.is_outage else "new")
        loads = (written, replace(_TAKING, dataset="stored").reading())
        return PresetStep(step, loads, OUTAGE_STEP_S, servers=state)

    states = (("healthy", ServerState.HEALTHY), (outage.value, outage), ("recovering", ServerState.RECOVERING),
              ("after", ServerState.HEALTHY))  # fmt: skip
    prepare = PresetStep("prepare", (replace(_TAKING, dataset="stored"),), OUTAGE_STEP_S)
    phase = PresetPhase(tuple(together(*state) for state in states), fill_percent=50, prepare=(prepare,))
    kinds = frozenset({TargetKind.PATH, TargetKind.BUCKET, TargetKind.REMOTE})
    return Preset(name, title, (phase,), targets=kinds, marks=("fill", "degrade"))


def _objects() -> tuple[PresetStep, ...]:
    def steps(kib: int, streams: int, files: int) -> tuple[PresetStep, ...]:
        name = f"{kib:05}k-{streams:03}"
        load = PresetLoad(LoadAccess.WRITE, f"objects-{name}", streams, kib << 10, kib << 10, files=files)
        accesses = (LoadAccess.WRITE, LoadAccess.READ, LoadAccess.MIXED, LoadAccess.LIST, LoadAccess.DELETE)
        return tuple(
            PresetStep(f"{access.value}-{name}", (replace(load, access=access),), seconds=60) for access in accesses
        )

    sizes = ((4, 64, 16384), (1024, 64, 64), (65536, 16, 4))
    return tuple(step for kib, streams, files in sizes for step in steps(kib, streams, files))


def _publications() -> tuple[PresetStep, ...]:
    return tuple(
        PresetStep(
            f"publish-{connections:03}",
            (
                PresetLoad(
                    LoadAccess.PUBLISH, f"repository-{connections:03}", DIRECTORIES, SMALL_FILE, SMALL_FILE,
                    files=FILES_OF_DIRECTORY, connections=connections,
                ),
            ),
            runner=RunnerKind.PUBLISHER,
        )
        for connections in (1, 2, 4, 8, 16, 32, 64, 128)
    )  # fmt: skip


def _readers() -> PresetPhase:
    data = PresetLoad(
        LoadAccess.PUBLISH, "data-set", 1, READERS_FILE, MIB, files=READERS_FILES, copies=2 + LOCAL_CACHES
    )
    jobs = replace(data, access=LoadAccess.READ, streams=READERS, sample=READERS_SAMPLE, copies=1)
    return PresetPhase(
        tuple(
            PresetStep(f"read-{way.value}", (replace(jobs, way=way),), seconds, RunnerKind.READERS)
            for way, seconds in READERS_S.items()
        ),
        prepare=(PresetStep("data-set", (data,), 120, RunnerKind.READERS),),
    )


ROUND_TRIPS_MS, SOME_ROUND_TRIPS_MS = (0, 5, 10, 25, 50, 100), (0, 25, 100)
"""The distances of the source, and those for servers that are much like another one."""
LIKE_NGINX = (EndpointServer.APACHE, EndpointServer.XRDHTTP)
DISTANT_S, SEVERAL = 8, 4
"""Seconds after which a read at a distance ends, and how many connections there are where there are several."""
LONG_MS = 50
"""From this round trip on the window bounds a connection."""
_COPIES = ((RunnerKind.CURL, 1), (RunnerKind.CURL, SEVERAL), (RunnerKind.DAVIX, 1), (RunnerKind.XRDCP, 1),
           (RunnerKind.XRDCP, SEVERAL))  # fmt: skip


def _distant(runner: RunnerKind, read: DistantRead, streams: int = 1) -> PresetStep:
    load = PresetLoad(LoadAccess.READ, "file", 1, BLOCK_UNIT, 1, each=streams, distant=read)
    tool = read.strategy.value if read.strategy else runner.value
    parts = (tool, read.server.value, f"{read.rtt_ms or 0:03g}ms", read.window.value, f"{streams}")
    # what is much like another step is left out of a smaller campaign
    alike = read.server in LIKE_NGINX and read.rtt_ms not in SOME_ROUND_TRIPS_MS
    alike = alike or (read.trace and read.window is TcpWindow.TUNED)
    return PresetStep("-".join(parts), (load,), DISTANT_S, runner, whole_scale=alike)


def _transfers() -> PresetPhase:
    """Steps of tools beside each other, at one server, distance and window after the other."""
    return PresetPhase(
        tuple(
            _distant(runner, DistantRead(server, rtt_ms, window), streams)
            for server in EndpointServer
            for rtt_ms in ROUND_TRIPS_MS
            for window in TcpWindow
            for runner, streams in _COPIES
            if (server is EndpointServer.XROOT) is (runner is RunnerKind.XRDCP)
        )
    )


def _strategies() -> PresetPhase:
    return PresetPhase(
        tuple(
            _distant(
                RunnerKind.READER,
                DistantRead(server, rtt_ms, window, strategy, trace=True),
                SEVERAL if strategy is DistantStrategy.LAZY else 1,
            )
            for server in EndpointServer
            for rtt_ms in ROUND_TRIPS_MS
            for window in TcpWindow
            for strategy in DistantStrategy
        )
    )


def _beside_curl() -> PresetPhase:
    """All of the file by our reader and by curl, one after the other."""
    steps = []
    for window in TcpWindow:
        for rtt_ms in ROUND_TRIPS_MS:
            read = DistantRead(EndpointServer.NGINX, rtt_ms, window)
            ours = [(DistantStrategy.WHOLE, 1)] if window is TcpWindow.STOCK else []
            ours += [(DistantStrategy.LAZY, SEVERAL)] if rtt_ms >= LONG_MS else []
            if ours:
                steps.append(_distant(RunnerKind.CURL, read))
            steps += [
                _distant(RunnerKind.READER, replace(read, strategy=strategy), streams) for strategy, streams in ours
            ]
    return PresetPhase(tuple(steps))


_PRESETS = (
    Preset(
        "hlt2-uncontrolled",
        "100 % writing, then 100 % reading, 16 streams of each of 12 servers, as fast as it goes",
        (PresetPhase(_write_and_read(_WRITE)),),
    ),
    Preset(
        "hlt2-mixed",
        "Writing from 6 servers and reading from 6 others at the same time, 16 streams each",
        (
            PresetPhase(
                (PresetStep("mixed", (replace(_HALF, dataset="new"), _HALF.reading())),),
                prepare=(PresetStep("prepare", (_HALF,)),),
            ),
        ),
    ),
    Preset(
        "hlt2-ratio",
        "Each stream reads and writes in equal shares",
        (
            PresetPhase(
                (PresetStep("mixed-50", (replace(_WRITE, access=LoadAccess.MIXED),)),),
                prepare=(PresetStep("prepare", (_WRITE,)),),
            ),
        ),
        targets=frozenset({TargetKind.PATH, TargetKind.BUCKET, TargetKind.REMOTE}),
    ),
    Preset(
        "hlt2-controlled",
        "About 2,000 clients, each limited to 32 MB/s: writing, then reading",
        (PresetPhase(_write_and_read(_CLIENT, "-controlled")),),
        targets=frozenset({TargetKind.PATH, TargetKind.BUCKET, TargetKind.REMOTE}),
    ),
    Preset("hlt2-streams", "Throughput against the number of streams", (PresetPhase(_STREAMS),)),
    Preset("hlt2-blocks", "Throughput against the size of blocks", (PresetPhase(_BLOCKS),)),
    Preset(
        "hlt2-dd",
        "dd with zeros, as the source measured, and fio with data that cannot be compressed",
        (
            PresetPhase(
                (
                    PresetStep("write-dd", (replace(_WRITE, dataset="dd"),), runner=RunnerKind.DD),
                    PresetStep("read-dd", (replace(_WRITE, dataset="dd").reading(),), runner=RunnerKind.DD),
                    PresetStep("write-zeros", (replace(_WRITE, dataset="zeros", pattern=DataPattern.ZEROS),)),
                    PresetStep("write-random", (replace(_WRITE, dataset="random"),)),
                )
            ),
        ),
        targets=frozenset({TargetKind.PATH}),
    ),
    Preset(
        "hlt2-occupancy",
        "Writing, as the target fills",
        tuple(
            PresetPhase((PresetStep(f"write-at-{percent}", (_WRITE,)),), fill_percent=percent)
            for percent in (20, 40, 60, 80)
        ),
        targets=frozenset({TargetKind.PATH, TargetKind.POOL}),
        marks=("fill",),
    ),
    Preset(
        "hlt2-aged",
        "Writing and reading on a target that was filled once, and on the same level after random parts of it were "
        "deleted and written again",
        tuple(
            PresetPhase(_write_and_read(_WRITE, f"-aged-{cycles}"), fill_percent=40, ageing=more)
            for cycles, more in ((0, 0), (2, 2), (4, 2))
        ),
        targets=frozenset({TargetKind.PATH, TargetKind.POOL}),
        marks=("fill",),
    ),
    _outage("hlt2-degraded-osd", "Reading and writing at 10 GB/s each, half full: healthy, with an OSD stopped, "
            "while it recovers, and after", ServerState.OSD_DOWN),
    _outage("hlt2-degraded-host", "Reading and writing at 10 GB/s each, half full: healthy, with a server stopped, "
            "while it recovers, and after", ServerState.HOST_DOWN),
    Preset("hlt2-packet-size", "Writing and reading against the packet size of erasure coding (`stripe_unit`)",
           (PresetPhase(_PACKETS),), targets=frozenset({TargetKind.POOL}), marks=("pools",)),
    Preset("objects", "Objects of 4 kB, 1 MB and 64 MB: put, get, mixed, list, delete", (PresetPhase(_objects()),),
           targets=frozenset({TargetKind.BUCKET})),
    Preset("publication",
           "250 directories of 1,000 files of 4 kB, a catalog each, published by 1 to 128 connections",
           (PresetPhase(_publications()),), targets=frozenset({TargetKind.BUCKET, TargetKind.PATH})),
    Preset("readers-many",
           "128 jobs, each of which reads 8 of 60 files of 256 MB twice, by every way to a shared data set",
           (_readers(),), targets=frozenset({TargetKind.PATH})),
    Preset("cms-transfer", "A file copied by curl, davix and xrdcp against round trip, window and number of streams",
           (_transfers(),), targets=frozenset({TargetKind.ENDPOINT})),
    Preset("cms-strategies", "The reads of an application by each strategy of our reader against the round trip",
           (_strategies(),), targets=frozenset({TargetKind.ENDPOINT})),
    Preset("cms-pairs", "A whole file by our reader and by curl, one after the other, against the round trip",
           (_beside_curl(),), targets=frozenset({TargetKind.ENDPOINT})),
)  # fmt: skip
PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _PRESETS}
