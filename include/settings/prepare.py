"""The settings of how an artifact is prepared: what it may hold, what is kept of it, and where it is cut."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ByteSize, Field, model_validator

from include.settings.block import Block
from include.settings.text_types import SitePath, fault


class ArtifactLimits(Block):
    """What one artifact may hold before it is refused; sizes in bytes, or written as `20GiB`."""

    members: Annotated[int, Field(gt=0)] = 2_000_000
    """Entries: files, folders and links."""
    bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(200 * 1024**3)
    """All files together, unpacked."""
    file_size: Annotated[ByteSize, Field(gt=0)] = ByteSize(20 * 1024**3)
    """The largest file."""


class OwnerSettings(Block):
    """Whose everything is."""

    uid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    """The user id of all entries."""
    gid: Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
    """The group id of all entries."""


class Prepare(Block):
    """What is kept of a tree, and where it is cut into catalogs. All of it follows the stock tools' options."""

    specials: Literal["refuse", "keep", "skip"] = "refuse"
    """Devices, sockets and FIFOs."""
    special_bits: Literal["strip", "keep"] = "strip"
    """What becomes of set-uid, set-gid and sticky bits."""
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
    """Whether large folders become catalogs of their own."""
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
