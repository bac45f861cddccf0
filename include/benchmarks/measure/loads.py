"""The load of a step: streams that read, write, list or delete at the same time. Pure values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field

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
    connections: Annotated[int | None, Field(exclude_if=lambda count: count is None)] = None
    """Requests at the same time of what publishes. None is not written: documents without it stay as they were."""

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
        return self.access in {LoadAccess.READ, LoadAccess.LIST}

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
