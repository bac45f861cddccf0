"""Settings of preparation and of the quality gate: limits of an artifact, its entries, its catalogs, its suites."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, model_validator

from include.settings.text_types import SitePath, fault


class Block(BaseModel):
    """A block of keys: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Suite(Enum):
    """A suite of the quality gate. Each is a field of `QualitySettings`."""

    INDEX = "index"
    PUBLISHED = "published"
    NIGHT = "night"
    GROWTH = "growth"


class QualityMode(Enum):
    """The consequence of a suite's findings: the run stops, it is only reported, or the suite is left out."""

    BLOCK = "block"
    WARN = "warn"
    OFF = "off"


# YAML reads a bare `off` as false
Mode = Annotated[QualityMode, BeforeValidator(lambda value: "off" if value is False else value)]


class QualitySettings(Block):
    """Modes of the suites, and limits for the difference of a build from the nights before it."""

    index: Mode = QualityMode.BLOCK
    """The build index, before anything is published: digests, sizes, artifacts that the build before had."""
    published: Mode = QualityMode.BLOCK
    """Contents of the build in the repository: files, sizes, empty libraries, executables, links."""
    night: Mode = QualityMode.WARN
    """Files, bytes and working time, compared with the last seven nights."""
    growth: Mode = QualityMode.WARN
    """Bytes and objects that the night added to the repository, compared with the last seven nights."""
    band: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """The share by which files and bytes may differ from their median over seven nights, and files be fewer."""
    factor: Annotated[float, Field(ge=1, le=1000)] = 3.0
    """Limit for the working time and for the growth of a night, as a multiple of their median."""
    keep_runs: Annotated[int, Field(ge=1, le=10_000)] = 30
    """Runs of the slot whose Data Docs are kept."""

    @model_validator(mode="after")
    def _something_is_judged(self) -> QualitySettings:
        if all(self.mode(suite) is QualityMode.OFF for suite in Suite):
            raise fault("a quality gate whose suites are all off", "Turn one on, or remove `quality:`.")
        return self

    def mode(self, suite: Suite) -> QualityMode:
        mode: QualityMode = getattr(self, suite.value)
        return mode


class ArtifactLimits(Block):
    """Limits of one artifact; sizes in bytes, or written as `20GiB`."""

    members: Annotated[int, Field(gt=0)] = 2_000_000
    """Entries: files, folders and links."""
    bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(200 * 1024**3)
    """All files together, unpacked."""
    file_size: Annotated[ByteSize, Field(gt=0)] = ByteSize(20 * 1024**3)
    """The largest file."""


class OwnerSettings(Block):
    """Owner of all entries."""

    uid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    """The user id of all entries."""
    gid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    """The group id of all entries."""


class ChunkSizes(Block):
    """Lengths of the pieces that a large file is cut into; in bytes, or written as `64MiB`."""

    min: Annotated[ByteSize, Field(ge=32)]
    """The least length; a file that is not longer stays whole."""
    average: Annotated[ByteSize, Field(gt=32)]
    """The length that is aimed at."""
    max: Annotated[ByteSize, Field(gt=32, le=1024**3)]
    """The greatest length."""

    @model_validator(mode="after")
    def _grow(self) -> ChunkSizes:
        if not self.min < self.average < self.max:
            raise fault("sizes of chunks that do not grow", "Write them such that min < average < max.")
        return self


class Prepare(Block):
    """Preparation of a tree: entries that are kept, cuts into catalogs. All of it follows the stock tools' options."""

    chunks: Literal["stock", "data"] | ChunkSizes = "stock"
    """Cuts of large files: `stock` has pieces of 4 to 16 MiB, `data` of 48 to 64 MiB for sets of large files, or sizes
    of one's own. A change concerns only what is published from then on."""
    compression: Literal["fast", "balanced", "stock", "none"] = "stock"
    """Maker of objects, which are zlib streams: `fast` is ISA-L at level 3, `balanced` zlib-ng at level 6, `stock` zlib
    at level 6, as in the stock tools. `none` is for files that are compressed inside, as those of data sets, and lets a
    cache be verified by names alone."""
    specials: Literal["refuse", "keep", "skip"] = "refuse"
    """Devices, sockets and FIFOs."""
    special_bits: Literal["strip", "keep"] = "strip"
    """Treatment of set-uid, set-gid and sticky bits."""
    xattrs: tuple[str, ...] = ()
    """Namespaces of the extended attributes to be kept, such as `user.`."""
    mtime_ns: bool = False
    """Keep nanoseconds; needs a repository that was created for them."""
    owner: OwnerSettings | None = None
    """None: each entry keeps the owner that the source has."""
    uid_map: SitePath | None = None
    """A file with a line `from to` for each user id; `*` for all others."""
    gid_map: SitePath | None = None
    """The same for group ids."""
    dirtab: bool = False
    """Obey the rules of the repository's own /.cvmfsdirtab; put it there with `nightshift repo dirtab`."""
    autocatalogs: bool = False
    """Makes catalogs of large folders."""
    autocatalogs_max: Annotated[int, Field(ge=2)] = 100_000
    """A catalog with more entries is cut."""
    autocatalogs_min: Annotated[int, Field(ge=1)] = 1_000
    """An automatic catalog with fewer entries goes into the one above."""
    catalog_entries: Annotated[int, Field(ge=0)] = 500_000
    """A catalog with more entries is refused; 0 for no limit."""
    root_entries: Annotated[int, Field(ge=0)] = 200_000
    """A root catalog of the repository with more entries is refused; 0 for no limit."""

    @model_validator(mode="after")
    def _one_owner(self) -> Prepare:
        if self.owner and (self.uid_map or self.gid_map):
            raise fault("an owner for everything and a map of owners", "Keep one of them.")
        return self
