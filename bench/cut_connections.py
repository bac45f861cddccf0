"""Programs that read a file whose connections are cut, and whose server is restarted: which of them have right bytes.

Run as a program, it is the relay that cuts: `ADDRESS PORT TARGET_PORT BYTES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.distance.link import DelayedLink
from bench.distance.servers import DistantServers
from include.benchmarks.measure.programs import TimedRun, time_program
from include.benchmarks.measure.traces import make_trace
from lab.ports import free_port
from lab.servers.process import find_program

EVERY = 64 << 20
RTT_MS, LIMIT_S, MB = 1, 120, 1e6
STRATEGIES = ("whole", "lazy", "application", "storage")
_AGAIN = ("-sSf", "--retry", "8", "--retry-all-errors", "--retry-delay", "1")
TOOLS = {
    "curl --retry 8": ("curl", (*_AGAIN, "-o", "{to}", "{url}")),
    "curl --retry 8 -C -": ("curl", (*_AGAIN, "-C", "-", "-o", "{to}", "{url}")),
    "davix-get": ("davix-get", ("{url}", "{to}")),
    "davix-get --retry 8": ("davix-get", ("--retry", "8", "--retry-delay", "1", "{url}", "{to}")),
}
OPENED = "opened\n"
_BLOCK = 1 << 18
_SAYING = threading.Lock()


@dataclass(slots=True)
class CutRun:
    """Outcome of a program: its exit code, its time, what the server sent, and whether the bytes are right."""

    name: str
    code: int | None
    seconds: float
    sent: int
    connections: int
    right: bool


class _Relay:
    """The relay as it is seen from here: what it has sent since the last program began."""

    def __init__(self, process: subprocess.Popen[str], servers: DistantServers) -> None:
        self._process, self._servers, self._changed = process, servers, threading.Condition()
        self.begin()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self.sent, self.connections, self._open, self._restarted = 0, 0, 0, False

    def end(self) -> None:
        """Wait until all connections have ended, and so were counted."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, LIMIT_S)

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            with self._changed:
                self._open += 1 if line == OPENED else -1
                self.connections += line == OPENED
                self.sent += 0 if line == OPENED else int(line)
                self._changed.notify()
            if line != OPENED and int(line) >= EVERY and not self._restarted:
                self._restarted = True
                self._servers.processes["nginx"].kill()
                self._servers.processes["nginx"].start()


def cut_runs(link: DelayedLink, servers: DistantServers, file: Path, sha256: str) -> Iterator[CutRun]:
    """Each strategy of ours, and each tool that is installed."""
    link.set(RTT_MS)
    url, size = servers.urls(file.name)["nginx"], file.stat().st_size
    with _relay(link, servers, urlsplit(url).port or 0) as (relay, port):
        cut = f"http://{link.far.address}:{port}/{file.name}"
        of_trace = _trace_sha256(file)
        for strategy in STRATEGIES:
            traced = strategy in ("application", "storage")
            job: dict[str, Any] = {
                "url": cut, "strategy": strategy, "streams": 4, "seconds": LIMIT_S, "size": size,
                "trace": "" if traced else None, "sha256": of_trace if traced else sha256, "digests": traced,
            }  # fmt: skip
            program = (sys.executable, "-m", "include.benchmarks.measure.traces", "read", json.dumps(job))
            done, outcome = _run(relay, (*link.near.prefix, *program), f"ours, {strategy}")
            if not done.code:
                read = json.loads(done.stdout.splitlines()[-1])
                outcome.seconds, outcome.right = read["seconds"], read["right"] and read["ended"]
            yield outcome
        for name, (program_name, words) in TOOLS.items():
            path, to = find_program(program_name), file.parent.parent / "copy"
            if path is None:
                continue
            to.unlink(missing_ok=True)
            _, outcome = _run(relay, (*link.near.prefix, path, *(word.format(url=cut, to=to) for word in words)), name)
            outcome.right = to.exists() and _sha256(to) == sha256
            to.unlink(missing_ok=True)
            yield outcome


def cut_table(runs: list[CutRun]) -> Iterator[str]:
    """The lines of the table."""
    if not runs:
        return
    yield f"{'':22} {'exit':>6} {'s':>6} {'sent MB':>8} {'connections':>11}  bytes"
    for run in runs:
        code = "ended" if run.code is None else str(run.code)
        right = "right" if run.right else "wrong or not all"
        yield f"{run.name:22} {code:>6} {run.seconds:6.1f} {run.sent / MB:8.0f} {run.connections:11}  {right}"


def _run(relay: _Relay, command: tuple[str, ...], name: str) -> tuple[TimedRun, CutRun]:
    relay.begin()
    done = time_program(command, seconds=LIMIT_S)
    relay.end()
    return done, CutRun(name, done.code, done.seconds, relay.sent, relay.connections, right=False)


@contextlib.contextmanager
def _relay(link: DelayedLink, servers: DistantServers, target: int) -> Iterator[tuple[_Relay, int]]:
    port = free_port()
    words = (sys.executable, "-m", __name__, link.far.address, str(port), str(target), str(EVERY))
    command = ("setpriv", "--pdeathsig", "KILL", "--", *link.far.prefix, *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            process.stdout.readline()  # it listens
            yield _Relay(process, servers), port
        finally:
            process.kill()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _trace_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for read in make_trace(path.stat().st_size):
            for offset, length in read.ranges:
                file.seek(offset)
                digest.update(file.read(length))
    return digest.hexdigest()


def _serve(address: str, port: int, target: int, most: int) -> None:
    with socket.create_server((address, port)) as server:
        print("listens", flush=True)
        while True:
            client, _ = server.accept()
            threading.Thread(target=_carry, args=(client, (address, target), most), daemon=True).start()


def _carry(client: socket.socket, target: tuple[str, int], most: int) -> None:
    """Carry requests and replies until one side ends, or so many bytes were sent."""
    sent = 0
    _say(OPENED)
    with client, contextlib.suppress(OSError), socket.create_connection(target) as server:

        def ask() -> None:
            with contextlib.suppress(OSError):
                while block := client.recv(_BLOCK):
                    server.sendall(block)
                server.shutdown(socket.SHUT_WR)

        threading.Thread(target=ask, daemon=True).start()
        while sent < most and (block := server.recv(min(_BLOCK, most - sent))):
            sent += len(block)
            client.sendall(block)
        client.shutdown(socket.SHUT_RDWR)
    _say(f"{sent}\n")


def _say(line: str) -> None:
    with _SAYING:  # print writes a line in two parts, between which another thread may write
        print(line, end="", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], *map(int, sys.argv[2:]))
