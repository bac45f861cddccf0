"""SeaweedFS's command line, written once for the lab, the tests' servers and `docker/compose.yaml`."""

from __future__ import annotations

import shutil
import sysconfig
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Self

from lab.ports import LOOPBACK, free_port

EVERYWHERE = "0.0.0.0"  # noqa: S104 - in a container
SOCKET_FOLDER = Path("/tmp")  # noqa: S108 - the program's choice


@dataclass(frozen=True, slots=True)
class WeedPorts:
    """Every port that the program listens on."""

    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int
    admin: int
    admin_grpc: int

    @classmethod
    def free(cls) -> Self:
        """Ports that are free now."""
        return cls(*(free_port() for _ in fields(cls)))


def find_weed() -> str | None:
    """The program: that of this Python environment, else that of PATH; None if there is none."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


def weed_command(
    program: str,
    directory: Path,
    ports: WeedPorts,
    *,
    bind: str = LOOPBACK,
    users: Path | None = None,
    sockets: tuple[Path, Path] | None = None,
) -> tuple[str, ...]:
    """All of SeaweedFS in one process; no secret is on its command line.

    `bind`: the address that all ports listen on. Only S3 asks for a login. `users`: a file of users in place of the key
    pair in the environment. `sockets`: where the filer and S3 make their local sockets, else in a fixed folder, named
    by port.
    """
    flags: dict[str, object] = {
        "dir": directory,
        "ip": LOOPBACK if bind == EVERYWHERE else bind,  # by which its parts call each other
        "ip.bind": bind,
        "s3.port": ports.s3,
        "s3.port.grpc": ports.s3_grpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.domainName": "localhost",
        "s3.autoCreateBucket": "false",
        "master.telemetry": "false",
        "volume.preStopSeconds": 0,
        "admin.ui": "false",
        "webdav": "false",
    }
    for part in ("master", "volume", "filer", "admin"):
        flags[f"{part}.port"] = getattr(ports, part)
        flags[f"{part}.port.grpc"] = getattr(ports, f"{part}_grpc")
    if users is not None:
        flags["s3.config"] = users
    if sockets is not None:
        flags["filer.localSocket"], flags["s3.localSocket"] = sockets
    return (program, "-logtostderr=true", "mini", *(f"-{name}={value}" for name, value in flags.items()))


def left_sockets(ports: WeedPorts) -> list[Path]:
    """Sockets in the fixed folder, which the program does not remove."""
    names = ("seaweedfs-*-grpc-{}.sock", "seaweedfs-*-{}.sock")
    return [path for port in astuple(ports) for name in names for path in SOCKET_FOLDER.glob(name.format(port))]
