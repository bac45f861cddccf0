"""The settings of how an artifact is prepared: what it may hold, what is kept of it, and where it is cut."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ByteSize, Field, model_validator

from include.settings.block import Block
from include.settings.text_types import SitePath, fault


class ArtifactLimits(Block):
    """What one artifact may hold before it is refused; sizes in bytes, or written as `20GiB`."""

    members: Annotated[int, Field(gt=0)] = 2_000_000
    bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(200 * 1024**3)
    file_size: Annotated[ByteSize, Field(gt=0)] = ByteSize(20 * 1024**3)


class OwnerSettings(Block):
    """Whose everything is."""

    uid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    gid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]


class Prepare(Block):
    """What is kept of a tree, and where it is cut into catalogs. All of it follows the stock tools' options."""

    specials: Literal["refuse", "keep", "skip"] = "refuse"
    special_bits: Literal["strip", "keep"] = "strip"
    """What becomes of set-uid, set-gid and sticky bits."""
    xattrs: tuple[str, ...] = ()
    """Namespaces of the extended attributes to be kept, such as `user.`."""
    mtime_ns: bool = False
    owner: OwnerSettings | None = None
    uid_map: SitePath | None = None
    gid_map: SitePath | None = None
    """Files with a line `from to` for each id; `*` for all others."""
    dirtab: bool = False
    """Whether the rules of the repository's own /.cvmfsdirtab count."""
    autocatalogs: bool = False
    autocatalogs_max: Annotated[int, Field(ge=2)] = 100_000
    autocatalogs_min: Annotated[int, Field(ge=1)] = 1_000
    catalog_entries: Annotated[int, Field(ge=0)] = 500_000
    root_entries: Annotated[int, Field(ge=0)] = 200_000
    """More in one catalog, or in the repository's root catalog, are refused; 0 for no limit."""

    @model_validator(mode="after")
    def _one_owner(self) -> Prepare:
        if self.owner and (self.uid_map or self.gid_map):
            raise fault("an owner for everything and a map of owners", "Keep one of them.")
        return self
