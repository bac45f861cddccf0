"""A server runs as long as it is needed, with all its children, and never longer."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.servers.process import ServerProcess, ServerStartError
from tests.fakes.refused import refused

ROOT = Path(__file__).parents[4]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until_gone(pid: int, timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def sleeper(tmp_path: Path, script: str = "echo $$ > ready; sleep 600", **settings: object) -> ServerProcess:
    marker = tmp_path / "ready"
    return ServerProcess(
        "sleeper",
        ["/bin/sh", "-c", script],
        log=tmp_path / "log" / "sleeper.log",
        ready=marker.exists,
        cwd=tmp_path,
        **settings,  # type: ignore[arg-type]
    )


def test_a_server_is_ready_inside_and_gone_with_its_children_outside(tmp_path: Path) -> None:
    script = "sleep 600 & echo $! > child; echo > ready; wait"
    with sleeper(tmp_path, script) as server:
        assert server.running
        assert os.getpgid(server.pid) == server.pid
        child = int((tmp_path / "child").read_text())
        assert alive(child)
        first = server.pid
        server.kill()
        assert not server.running
        (tmp_path / "ready").unlink()
        server.start()
        assert server.pid != first
        child = int((tmp_path / "child").read_text())
    assert not server.running
    assert until_gone(child)


def test_a_server_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo > ready; while :; do sleep 0.1; done"
    with sleeper(tmp_path, script, stop_timeout_s=0.2) as server:
        pid = server.pid
    assert not alive(pid)


def test_the_message_about_a_server_that_does_not_start_has_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"sleeper: ended with code 3(.|\n)*cannot bind"):
        sleeper(tmp_path, "echo cannot bind; exit 3").start()
    with refused(ServerStartError, name="ghost"):
        ServerProcess("ghost", ["/no/such/program"], log=tmp_path / "log.txt", ready=lambda: False).start()
    silent = sleeper(tmp_path, "sleep 600", ready_timeout_s=0.2)
    with refused(ServerStartError, name="sleeper"):
        silent.start()
    assert not silent.running


def test_a_server_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from lab.servers.process import ServerProcess\n"
        "folder = Path(sys.argv[1]); ready = (folder / 'ready').exists\n"
        "s = ServerProcess('s', ['/bin/sh', '-c', 'echo > ready; exec sleep 600'],"
        " log=folder / 'log', ready=ready, cwd=folder)\n"
        "s.start(); print(s.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    assert until_gone(pid)
