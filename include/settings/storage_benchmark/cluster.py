"""The Ceph cluster that a target is on: how it is asked, which servers may be stopped, and what production needs.

Its servers are stopped only for presets that need `degrade: allowed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from include.settings.block import Block
from include.settings.ssh import SshLogin
from include.settings.text_types import Name, NodeFolder, SitePath, fault

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
    """Where the timer has its files."""


class ProductionProbe(Block):
    """A small object of production, which is read while a step runs."""

    pool: Name
    """The pool that has it."""
    object: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^-]")]
    """The name of the object."""
    limit_ms: Annotated[float, Field(gt=0)] = 1000.0
    """How long a read may take, with the start of the program that reads, a tenth of a second."""


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


class ClusterBlock(Block):
    """Checked before each step and during it; it also decides how full the target is."""

    conf: SitePath | None = None
    """None: /etc/ceph/ceph.conf."""
    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] = "admin"
    """Without `client.` before it. Its key is in `conf` or in a keyring there."""
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
