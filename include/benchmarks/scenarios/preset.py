"""What a preset consists of: loads at the size of their source, in steps, in phases. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from include.benchmarks.loads import BLOCK_UNIT, DataPattern, LoadAccess, RunnerKind, ServerState, StreamLoad
from include.settings.storage_benchmark.blocks import TargetKind

MIB = 1 << 20
LEAST_FILES = 200
"""Of a stream with as many: fewer operations say little about latencies."""
WHOLE_OBJECTS = frozenset({RunnerKind.OBJECTS, RunnerKind.RADOS})
"""Runners whose operations are on whole objects: a stream's file becomes objects of one block each."""
ANY_TARGET = frozenset(TargetKind)


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

    def scaled(self, factor: float, runner: RunnerKind) -> StreamLoad:
        """The load on a machine that is smaller by `factor`: fewer streams, shorter files, the same rate of each."""
        block = self.block_bytes
        size = max(block, _multiple(int(self.file_bytes * factor), block))
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
        """Whether OSDs are stopped for it."""
        return any(step.servers is not None for phase in self.phases for step in phase.steps)


def by_name(*presets: Preset) -> Mapping[str, Preset]:
    """The presets by their names."""
    return {preset.name: preset for preset in presets}


def _multiple(size: int, block: int) -> int:
    return max(BLOCK_UNIT, size // block * block)
