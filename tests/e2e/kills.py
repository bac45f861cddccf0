"""kill -9 under the scheduler while a proxy holds a request: which task that is, and how it is killed."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from typing import Any

import psutil

from include.cvmfs.format.hashes import hash_bytes
from include.cvmfs.format.objects import compress
from tests.e2e.deployment import FQRN, Deployment
from tests.fakes.builds import Build, tree
from tests.fakes.faultproxy import Fault, FaultProxy

DAG = "nightly_install"
COMMIT = "/leases/[^/]+$"
SOON_S = 60.0
TITLE = "airflow worker -- "
RETRY_S = 90.0  # until a kill is noticed, the delay of the retry, and its start


def own_file(artifact: str) -> bytes:
    """What only this artifact holds, so that its object's key tells whose upload that is."""
    return f"of {artifact} alone ".encode() * 400


def upload_of(artifact: str) -> str:
    return f"{FQRN}/{hash_bytes(compress(own_file(artifact))).key}"


def build_of_victims(date: str, *artifacts: tuple[str, int]) -> Build:
    """A build of these artifacts (`victim/when` and priority), for the slot without projects."""
    build = Build(date, slot="faults")
    for name, priority in artifacts:
        files = {"lib/common.so": b"in every artifact" * 300, "lib/own.so": own_file(name)}
        project, platform = name.split("/")
        build.add(project, platform, tree(files), priority=priority)
    return build


@dataclass(frozen=True, slots=True)
class TaskProcess:
    """The process that runs one try of a task; `instance` is Airflow's id of that try."""

    pid: int
    supervisor: int
    instance: str

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def kill_supervisor(self) -> None:
        os.kill(self.supervisor, signal.SIGKILL)

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]

    def alive(self) -> bool:
        return psutil.pid_exists(self.pid) and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE

    def ended(self, timeout_s: float) -> bool:
        """Wait until it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        finally:
            os.close(handle)


def requester(fault: Fault, proxy: FaultProxy) -> TaskProcess:
    """Return the process whose request a fault holds; it must be that of a task."""
    there = int(proxy.url.rpartition(":")[2])
    for connection in psutil.net_connections(kind="tcp4"):
        if connection.laddr.port == fault.peer and connection.raddr and connection.raddr.port == there:
            process = psutil.Process(connection.pid)
            title = " ".join(process.cmdline())
            assert title.startswith(TITLE), f"{title!r} is not the process of a task"
            return TaskProcess(process.pid, process.ppid(), title.removeprefix(TITLE).strip())
    raise AssertionError(f"nobody has the connection from port {fault.peer}")


@dataclass
class Accident:
    """A request that is held, the process that made it, and the artifact that it works on."""

    fault: Fault
    process: TaskProcess
    artifact: str
    try_number: int

    @property
    def victim(self) -> str:
        return self.artifact.partition("/")[0]

    def kill(self, orphans: list[int]) -> None:
        if self.victim == "supervisor":
            self.process.kill_supervisor()
            return
        children = self.process.children()
        assert bool(children) == (self.victim == "child"), children
        orphans += children
        self.process.kill()
        assert self.process.ended(SOON_S)


class Stage:
    """Finds out who is held in a run."""

    def __init__(self, deployment: Deployment, run: str) -> None:
        self.deployment = deployment
        self.run = run

    def accident(self, fault: Fault, proxy: Any, timeout_s: float = SOON_S) -> Accident:
        fault.wait(timeout_s)
        process = requester(fault, proxy)
        instance = next(one for one in self.instances() if one["id"] == process.instance)
        return Accident(fault, process, str(instance["rendered_map_index"]), int(instance["try_number"]))

    def instances(self) -> list[dict[str, Any]]:
        return self.deployment.tasks(DAG, self.run)

    def answered(self, one: Accident) -> None:
        """Wait until the held request has been answered, and a process that outlived its supervisor has ended."""
        assert one.fault.done.wait(SOON_S)
        if one.victim == "supervisor":
            assert one.process.ended(SOON_S), "it outlives the answer that it waited for"
