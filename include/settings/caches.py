"""Settings of shared caches: alien caches of CernVM-FS clients on a site's file system (docs/auxiliary-data.md)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

from pydantic import ByteSize, Field, model_validator

from include.settings.prepare import Block
from include.settings.text_types import Fqrn, HttpUrl, SitePath, fault

Bytes = Annotated[ByteSize, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class UseOfObjects(Enum):
    """The way in which the last use of a cached object is known; `auto` looks at the mount."""

    AUTO = "auto"
    ATIME = "atime"
    """The access time moves with every read: a mount with `strictatime`."""
    RELATIME = "relatime"
    """The access time moves once, and again after it was re-armed; Linux' default."""
    RECORD = "record"
    """The last warm that wanted the object; for `noatime`."""
    AGE = "age"
    """The time in the cache: the oldest go first; for `noatime`."""


class Marks(Block):
    """Marks of a trim. It begins where one of the first kind is passed, and ends where all of the second are kept."""

    free_below: Bytes | None = None
    """Free bytes of the file system below which a trim begins; leave room for what clients write between two trims,
    at least 64 MiB for each."""
    free_until: Bytes | None = None
    """Free bytes at which it ends."""
    inodes_below: Count | None = None
    """Free inodes of the file system below which a trim begins."""
    inodes_until: Count | None = None
    """Free inodes at which it ends."""
    used_above: Bytes | None = None
    """Bytes of the cache above which a trim begins."""
    used_until: Bytes | None = None
    """Bytes of the cache at which it ends."""

    @model_validator(mode="after")
    def _pairs(self) -> Marks:
        pairs = (("free_below", "free_until", 1), ("inodes_below", "inodes_until", 1), ("used_above", "used_until", -1))
        for begin, end, sign in pairs:
            first, last = getattr(self, begin), getattr(self, end)
            if (first is None) != (last is None):
                raise fault(f"`{begin}` and `{end}` belong together", f"Set both, as `{begin}: …` and `{end}: …`.")
            if first is not None and (last - first) * sign <= 0:
                more = "more" if sign > 0 else "less"
                raise fault(f"a trim that ends before it begins: `{end}` is not {more} than `{begin}`", "Correct them.")
        return self

    @property
    def any(self) -> bool:
        """Tell whether there is a mark at all."""
        return any(mark is not None for mark in (self.free_below, self.inodes_below, self.used_above))


class Pins(Block):
    """Objects that no trim takes, beside what clients mount with: certificate and catalogs of each breadcrumb."""

    tags: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tags whose catalogs stay; with `paths`, their objects below these too."""
    paths: tuple[Annotated[str, Field(pattern=r"^/")], ...] = ()
    """Paths whose objects stay, in the newest revision and in those of `tags`."""
    hours: Annotated[float, Field(ge=0)] = 1.0
    """Objects that came into the cache less than so long ago stay."""


class CacheSettings(Block):
    """A cache that the worker nodes of a site share, and that Nightshift looks after."""

    name: str
    path: SitePath
    """Its folder, at the same place on all machines of `queue`."""
    repositories: Annotated[tuple[Fqrn, ...], Field(min_length=1)]
    """The repositories whose clients use it."""
    origins: tuple[HttpUrl, ...] = ()
    """URLs of servers, each with the placeholder `@fqrn@`, in the order in which they are tried; none: the
    repository's `public_url`."""
    group: str | None = None
    """The group, by name or number, whose members read and write it. None: the one that its folder has."""
    queue: str = "default"
    """The queue of the Airflow workers that mount it."""
    use: UseOfObjects = UseOfObjects.AUTO
    marks: Marks = Marks()
    pins: Pins = Pins()
    preloaded: Literal["refuse", "catalogs-first"] = "refuse"
    """A trim of a cache that `cvmfs_preload` fills: refused, or whole catalogs go first, as it never fetches objects
    again below a catalog that is there."""
    warm: tuple[Annotated[str, Field(pattern=r"^/")], ...] = ()
    """Paths that a new revision is warmed with; none: nothing is, unless a run says which."""
    share: Annotated[int, Field(ge=1, le=256)] = 7
    """The nightly check reads one part in so many of the cache."""

    @model_validator(mode="after")
    def _origins_name_the_repository(self) -> CacheSettings:
        for url in self.origins:
            if "@fqrn@" not in url and len(self.repositories) > 1:
                raise fault(f"an origin for several repositories: {url}", "Put @fqrn@ where the name belongs.")
        return self
