"""A link with a delay: its round trip, its bytes and windows, and that nothing of it stays."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bench.distance.link import DelayedLink, impossible, remove_left
from lab.errors import LINK_IMPOSSIBLE, LabError
from lab.servers.process import ServerProcess
from tests.fakes.refused import refused

pytestmark = [pytest.mark.server("ip"), pytest.mark.skipif(bool(impossible()), reason=f"no link: {impossible()}")]
ROOT = Path(__file__).parents[3]
PORT = 9000
ECHO = """
import socket, sys, threading
def serve(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := peer.recv(1 << 20):
        peer.sendall(data)
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
ROUND_TRIPS = """
import json, socket, sys, time
times = []
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as peer:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(int(sys.argv[3])):
        began = time.monotonic()
        peer.sendall(b"x")
        peer.recv(1)
        times.append(1000 * (time.monotonic() - began))
print(json.dumps(sorted(times)))
"""
THROUGH = """
import hashlib, os, socket, sys, threading
data, digest = os.urandom(int(sys.argv[3])), hashlib.sha256()
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as peer:
    threading.Thread(target=peer.sendall, args=(data,)).start()
    left = len(data)
    while left and (block := peer.recv(1 << 20)):
        digest.update(block)
        left -= len(block)
print(hashlib.sha256(data).hexdigest(), digest.hexdigest())
"""

OWNER = """
from bench.distance.link import DelayedLink
with DelayedLink() as link:
    print(link._program.pid, flush=True)
    input()
"""


def namespaces(pid: int) -> set[str]:
    """The namespaces of a process's links: other tests have some of their own meanwhile."""
    return {place.name for place in Path("/run/netns").glob(f"nightshift-link-{pid}-*")}


def echo(link: DelayedLink, folder: Path) -> ServerProcess:
    log = folder / "echo"
    command = [sys.executable, "-c", ECHO, link.far.address, str(PORT)]
    return link.far.server(ServerProcess("echo", command, log=log, ready=lambda: "up" in log.read_text()))


def near(link: DelayedLink, program: str, *words: object) -> str:
    command = [*link.near.prefix, sys.executable, "-c", program, link.far.address, str(PORT), *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_round_trip_is_that_which_was_asked_for_and_the_bytes_are_right(tmp_path: Path) -> None:
    with DelayedLink() as link, echo(link, tmp_path):
        for asked in (0, 25, 0):
            link.set(asked)
            times = json.loads(near(link, ROUND_TRIPS, 40))
            assert abs(times[20] - asked) <= 0.1 * asked + 1, times
            assert times[0] >= asked
        link.set(10)
        sent, received = near(link, THROUGH, 32 << 20).split()
        assert sent == received
        assert sent != hashlib.sha256(b"").hexdigest()
        assert namespaces(os.getpid()) == {link.near.namespace, link.far.namespace}
    assert not namespaces(os.getpid())


def test_windows_are_those_of_a_new_namespace_or_of_64_mb() -> None:
    def window(prefix: tuple[str, ...]) -> list[str]:
        command = [*prefix, "cat", "/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/ipv4/tcp_rmem"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    with DelayedLink() as link:
        ends = (link.near.prefix, link.far.prefix)
        stock = [window(end) for end in ends]
        link.set(0, "tuned")
        assert [window(end)[2::3] for end in ends] == [[str(64 << 20)] * 2] * 2
        done = subprocess.run([*link.command, "5", "stock"], check=True, capture_output=True, text=True, cwd=ROOT)
        assert done.stdout == "done\n"
        assert [window(end) for end in ends] == stock
        with refused(LabError) as error:
            link.set(0, "huge")
        assert "KeyError" in str(error.value)


def test_what_a_killed_process_left_is_removed_with_the_next_link() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=-1, stdout=-1, text=True, cwd=ROOT) as owner:
        assert owner.stdout
        program = int(owner.stdout.readline())
        watched = os.pidfd_open(program)
        owner.kill()
    assert -owner.returncode == signal.SIGKILL
    assert select.select([watched], [], [], 10)[0], "the program between the ends dies with its parent"
    os.close(watched)
    left = namespaces(owner.pid)
    assert len(left) == 2
    (folder,) = {name.rpartition("-")[0] for name in left}
    assert set(remove_left()) >= left | {folder}
    assert not namespaces(owner.pid)
    assert not (Path(tempfile.gettempdir()) / folder).exists()


def test_it_is_for_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with refused(LINK_IMPOSSIBLE) as error:
        DelayedLink()
    assert "only root" in str(error.value)
