"""The ports of the embedded services: their defaults, how the environment moves them, and whether they are free."""

import contextlib
import itertools
import os
import random
import socket
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

import psutil

from lab.errors import LabError

LOOPBACK = "127.0.0.1"
OFFSET = "NIGHTSHIFT_PORT_OFFSET"
LARGEST_OFFSET = 30_000


@dataclass(frozen=True, slots=True)
class Ports:
    """One number per listening socket; all defaults lie below the kernel's range of outgoing ports."""

    s3: int = 8433
    s3_grpc: int = 18433
    weed_master: int = 21333
    weed_master_grpc: int = 31333
    weed_volume: int = 21080
    weed_volume_grpc: int = 31080
    weed_filer: int = 21888
    weed_filer_grpc: int = 31888
    weed_admin: int = 21646
    weed_admin_grpc: int = 31646
    gateway: int = 4929
    fts: int = 8446
    postgres: int = 15432
    airflow: int = 8080
    # with Celery only
    execution: int = 8081
    ledger: int = 13306
    rabbitmq: int = 5672
    rabbitmq_node: int = 25672
    rabbitmq_names: int = 14369

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """The defaults plus `NIGHTSHIFT_PORT_OFFSET`, and what `NIGHTSHIFT_<NAME>_PORT` gives as it is.

        Raises LabError: a variable is no port number, or two services share one.
        """
        offset = environment.get(OFFSET) or "0"
        if not offset.isdigit() or int(offset) > LARGEST_OFFSET:
            raise LabError(f"{OFFSET}={offset!r} is no offset: give a number from 0 to {LARGEST_OFFSET}")
        moved = {name: port + int(offset) for name, port in asdict(cls()).items()}
        for name in moved:
            text = environment.get(variable(name))
            if text:
                if not text.isdigit() or not 0 < int(text) < 65536:
                    raise LabError(f"{variable(name)}={text!r} is not a port: give a number from 1 to 65535")
                moved[name] = int(text)
        ports = cls(**moved)
        owner: dict[int, str] = {}
        for name, port in asdict(ports).items():
            if port in owner:
                raise LabError(f"{name} and {owner[port]} share port {port}: move one with {variable(name)}=<number>")
            owner[port] = name
        return ports

    @classmethod
    def unused(cls) -> Self:
        """Free ports, for a lab beside another one."""
        return cls(**{one.name: free_port() for one in fields(cls)})

    def to_environment(self) -> dict[str, str]:
        return {variable(name): str(port) for name, port in asdict(self).items()}


def variable(name: str) -> str:
    """The environment variable that moves a port."""
    return f"NIGHTSHIFT_{name.upper()}_PORT"


def check_free(ports: Ports, names: Iterable[str]) -> None:
    """Raises LabError, which names every one of these ports that are in use, and how to move them."""
    taken: dict[str, int] = {name: getattr(ports, name) for name in names if not can_listen(getattr(ports, name))}
    if not taken:
        return
    defaults = asdict(Ports())
    offset = next((one for one in range(100, 1000, 100) if all(can_listen(p + one) for p in defaults.values())), None)
    used, exports = set(asdict(ports).values()), []
    for name, port in taken.items():
        others = itertools.chain(range(port + 1, 65536), range(1024, port))
        free = next(one for one in others if one not in used and can_listen(one))
        used.add(free)
        exports.append(f"{variable(name)}={free}")
    lines = []
    for name, port in taken.items():
        by = holder(port)
        lines.append(f"{port} for {name}{f' by {by}' if by else ''}")
    together = [f"  export NIGHTSHIFT_PORT_OFFSET={offset}    # all ports, or"] if offset else []
    message = [
        f"{len(lines)} {'port is' if len(lines) == 1 else 'ports are'} taken:",
        *(f"  {line}" for line in lines),
        "End these programs, or choose other ports:",
        *together,
        *(f"  export {line}" for line in exports),
    ]
    raise LabError("\n".join(message))


def holder(port: int) -> str | None:
    """Return who listens on a port, as "name (pid 12)", if this user may see it."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid is not None:
            with contextlib.suppress(psutil.Error):  # ended meanwhile
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return None


def can_listen(port: int) -> bool:
    """Tell whether a server could listen on a port of loopback."""
    with socket.socket() as probe:
        # As servers do: connections of an earlier server that still close are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A TCP port of loopback that no process listens on.

    It is not given again, to this process or to another, before this process ended or was given 100 others.

    From below the range that the kernel uses for outgoing connections, which could take it before the server does.
    Raises LabError: no port is free.
    """
    with _ports_lock:
        for _ in range(1000):
            port = random.randrange(12_000, 32_000)  # noqa: S311 - not a secret
            if can_listen(port) and _reserve(port):
                return port
    raise LabError("no free port found between 12000 and 32000: stop what listens there")


def _reserve(port: int) -> bool:
    """Tell whether this process is the first; servers that start at the same time would see the same ports free."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0nightshift-port-{port}")  # abstract: of this network namespace, and gone with the process
    except OSError:
        mark.close()
        return False
    _reservations.append(mark.detach())
    if len(_reservations) > _MOST_RESERVATIONS:
        os.close(_reservations.popleft())
    return True


_MOST_RESERVATIONS = 100
_reservations: deque[int] = deque()  # descriptors, which this process keeps to its end
_ports_lock = threading.Lock()
