"""The machines of a lab with Celery: network namespaces with addresses of their own on a bridge of this machine.

The services listen on the bridge's own address; each worker has a namespace, a host name, which is its address, and a
folder for its state. Namespaces share processes, clock and disk with the machine, and need root.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from include.settings.scheduling import Queue
from lab.errors import LabError
from lab.servers.process import find_program

MOST_WORKERS = 99
_NEEDED = {
    "ip": "iproute2", "unshare": "util-linux", "socat": "socat", "mariadbd": "mariadb-server",
    "rabbitmq-server": "rabbitmq-server",
}  # fmt: skip
_AS_A_MACHINE = 'hostname "$0" && exec "$@" --queues "$NIGHTSHIFT_QUEUES"'


@dataclass(frozen=True, slots=True)
class Machine:
    """One worker: its name, address and network namespace, and the queues that it serves."""

    name: str
    address: str
    namespace: str
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many workers and a collector, on the network 10.213.`number`.0/24."""

    number: int
    workers: int

    @classmethod
    def choose(cls, workers: int) -> Self:
        """Return one on a network that this machine does not use yet.

        Raises LabError: this user or this machine cannot have namespaces, or a program is missing.
        """
        if os.geteuid() != 0:
            raise LabError("network namespaces need root: run as root, or leave out --executor celery")
        if missing := {package for program, package in _NEEDED.items() if find_program(program) is None}:
            raise LabError(f"programs are missing: apt-get install {' '.join(sorted(missing))}")
        used = {str(route.get("dst")) for route in _asked("route", "show", "table", "all")}
        used |= {str(link["ifname"]) for link in _asked("link")}
        for number in range(256):
            made = cls(number, workers)
            if not used & {made.network, made.bridge}:
                return made
        raise LabError("all networks 10.213.0.0/24 to 10.213.255.0/24 are in use: nightshift lab down in other folders")

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return what `save` wrote; None if it did not."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @property
    def network(self) -> str:
        return f"10.213.{self.number}.0/24"

    @property
    def address(self) -> str:
        """Return where the services listen."""
        return f"10.213.{self.number}.1"

    @property
    def bridge(self) -> str:
        return f"nightshift{self.number}"

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The workers, and the gateway's host, which serves its queue alone, with keys that switch, delete and sign.

        The first worker stands for the host of benchmarks, too.
        """
        every = (Queue.DEFAULT, Queue.PUBLISH, Queue.TRANSFER)
        queues = {
            f"worker-{which}": (*every, Queue.BENCHMARK) if which == 1 else every
            for which in range(1, self.workers + 1)
        } | {"collector": (Queue.GATEWAY_HOST,)}
        return tuple(
            Machine(
                name, f"10.213.{self.number}.{which}", f"{self.bridge}-{name}", tuple(queue.value for queue in served)
            )
            for which, (name, served) in enumerate(queues.items(), 101)
        )

    def link(self, machine: Machine) -> str:
        """The end of a worker's cable at the bridge: it is cut by `ip link set <link> down`."""
        return f"ns{self.number}-{machine.name}"

    def make(self) -> None:
        """Makes what is not there: after a reboot all of it is gone. Raises LabError: the kernel refuses."""
        links = {str(link["ifname"]) for link in _asked("link")}
        if self.bridge not in links:
            _ip("link", "add", self.bridge, "type", "bridge")
            _ip("address", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for machine in self.machines:
            if self.link(machine) in links:
                continue
            inside = ("-netns", machine.namespace)
            _ip("netns", "add", machine.namespace)
            _ip("link", "add", self.link(machine), "type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
            _ip("link", "set", self.link(machine), "master", self.bridge, "up")
            _ip(*inside, "address", "add", f"{machine.address}/24", "dev", "eth0")
            for name in ("lo", "eth0"):
                _ip(*inside, "link", "set", name, "up")

    def remove(self) -> None:
        """Removes what is there of it; the programs in it have ended."""
        links = {str(link["ifname"]) for link in _asked("link")}
        spaces = {str(space["name"]) for space in _asked("netns", "list")}
        for machine in self.machines:
            if machine.namespace in spaces:
                _ip("netns", "delete", machine.namespace)
        # the kernel removes the cables of a namespace some time after it
        for name in (*map(self.link, self.machines), self.bridge):
            if name in links:
                _ip("link", "delete", name, gone=True)

    def inside(self, machine: Machine, command: tuple[str, ...]) -> tuple[str, ...]:
        """The command line that runs a worker's command on a machine; the process keeps its number."""
        named = ("unshare", "--uts", "sh", "-c", _AS_A_MACHINE, machine.address)
        return (str(find_program("ip")), "netns", "exec", machine.namespace, *named, *command)


_GONE = ("Cannot find device", "No such device")
"""Words of `ip` about a link that is not there when it looks for it, or when it deletes it."""


def _asked(*words: str) -> list[Mapping[str, Any]]:
    answer: list[Mapping[str, Any]] = json.loads(_ip("-json", *words) or "[]")
    return answer


def _ip(*words: str, gone: bool = False) -> str:
    """Return what `ip` prints. `gone`: it is good if the thing has gone meanwhile."""
    done = subprocess.run([str(find_program("ip")), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode and not (gone and any(text in done.stderr for text in _GONE)):
        raise LabError(f"ip {' '.join(words)}: {done.stderr.strip()}; run as root where namespaces are allowed")
    return done.stdout
