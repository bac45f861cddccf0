"""Which process is whose: task processes of Airflow by the requests that they make, their supervisors and children."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass

import psutil

from tests.fakes.faultproxy import Fault, FaultProxy

TITLE = "airflow worker -- "


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
    """Who made the request that a fault holds; it must be a task's process."""
    there = int(proxy.url.rpartition(":")[2])
    for connection in psutil.net_connections(kind="tcp4"):
        if connection.laddr.port == fault.peer and connection.raddr and connection.raddr.port == there:
            process = psutil.Process(connection.pid)
            title = " ".join(process.cmdline())
            assert title.startswith(TITLE), f"{title!r} is not the process of a task"
            return TaskProcess(process.pid, process.ppid(), title.removeprefix(TITLE).strip())
    raise AssertionError(f"nobody has the connection from port {fault.peer}")
