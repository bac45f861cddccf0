"""The process manager of the lab: supervisord with one program per service, controlled over a private unix socket.

Its XML is that of supervisord, which listens to the user of the lab alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import xmlrpc.client  # nosec B411
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

from lab.environment import LONGEST_SOCKET, MARK, LabFolders
from lab.errors import SUPERVISOR_FAILED, LabError, ServiceFailed

START_S = 60.0
POLL_S = 0.1
_WITH_CREDENTIALS = 'set -a; . "$0"; set +a; exec "$@"'


class ProcessState(Enum):
    """The states of supervisord, with its own numbers."""

    STOPPED = 0
    STARTING = 10
    RUNNING = 20
    BACKOFF = 30
    STOPPING = 40
    EXITED = 100
    FATAL = 200
    UNKNOWN = 1000

    @property
    def alive(self) -> bool:
        return self in {ProcessState.STARTING, ProcessState.RUNNING, ProcessState.BACKOFF, ProcessState.STOPPING}


@dataclass(frozen=True, slots=True)
class Program:
    """One service as supervisord runs it, in a process group of its own.

    Values of `environment` are no secrets. `credentials`: a file of those that it has beside supervisord's environment.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_signal: str = "TERM"
    stop_as_group: bool = True
    stop_wait_s: int = 20
    credentials: Path | None = None

    def launched(self) -> tuple[str, ...]:
        """The command line with which supervisord starts it; the process keeps its number."""
        return (
            ("sh", "-c", _WITH_CREDENTIALS, str(self.credentials), *self.command) if self.credentials else self.command
        )


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What supervisord knows about a program."""

    name: str
    state: ProcessState
    pid: int
    seconds: int
    detail: str


class Supervisor:
    """The supervisord of one lab."""

    def __init__(self, place: LabFolders) -> None:
        self.place = place
        self.socket = place.sockets / LONGEST_SOCKET
        self.configuration = place.run / "supervisord.conf"
        self.pid_file = place.run / "supervisord.pid"

    def running(self) -> bool:
        """Tell whether it answers; a socket or pid file that was left behind does not count."""
        try:
            self._call("getState")
        except (OSError, xmlrpc.client.Error, xmlrpc.client.ProtocolError):
            return False
        return True

    def runs(self, programs: Iterable[Program]) -> bool:
        """Tell whether it was started with these programs."""
        return self.configuration.exists() and self.configuration.read_text() == configuration(self, programs)

    def environment(self) -> dict[str, str]:
        """The environment that it was started with, which every program has."""
        found: dict[str, str] = psutil.Process(self._call("getPID")).environ()
        return found

    def start(self, programs: Iterable[Program], environment: Mapping[str, str]) -> None:
        """Starts supervisord with its programs stopped; the environment reaches every one of them.

        Raises LabError: it does not answer within 15 s.
        """
        self.configuration.write_text(configuration(self, programs))
        self.socket.unlink(missing_ok=True)
        self.pid_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.configuration)]
        result = subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/"
        )
        deadline = time.monotonic() + START_S
        while result.returncode == 0 and time.monotonic() < deadline:
            if self.running():
                return
            time.sleep(POLL_S / 2)
        log = self.place.log / "supervisord.log"
        raise SUPERVISOR_FAILED(
            f"the process manager does not start: {result.stderr.strip()[-300:] or 'no answer'}; its log: {log}"
        )

    def processes(self) -> dict[str, ProcessInfo]:
        """All programs by name."""
        infos = [_info(raw) for raw in self._call("getAllProcessInfo")]
        return {info.name: info for info in infos}

    def alive(self) -> list[str]:
        """The programs that run, start, or are about to end."""
        return [info.name for info in self.processes().values() if info.state.alive]

    def process(self, name: str) -> ProcessInfo:
        return _info(self._call("getProcessInfo", name))

    def start_program(self, name: str) -> None:
        """Starts a program unless it lives; does not wait. Raises ServiceFailed: its command cannot be run."""
        if not self.process(name).state.alive:
            try:
                self._call("startProcess", name, False)
            except xmlrpc.client.Fault as fault:
                if fault.faultCode == _client().Faults.ALREADY_STARTED:  # started again by itself meanwhile
                    return
                raise ServiceFailed(name, fault.faultString, str(self.place.log / "supervisord.log")) from fault

    def stop_programs(self, names: Collection[str], *, timeout_s: float) -> None:
        """Stops programs at the same time and waits until none lives."""
        for name in names:
            if self.process(name).state.alive:
                with contextlib.suppress(xmlrpc.client.Fault):  # ended in between
                    self._call("stopProcess", name, False)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            states = self.processes()
            if not any(states[name].state.alive for name in names):
                return
            time.sleep(POLL_S)

    def shutdown(self, *, timeout_s: float) -> None:
        """Ends supervisord and what it still runs."""
        pid = self._call("getPID")
        with contextlib.suppress(OSError, xmlrpc.client.Error):
            self._call("shutdown")
        wait_for_end(pid, timeout_s=timeout_s)

    def _call(self, method: str, *arguments: Any) -> Any:
        # A connection per call: threads do not share one.
        with contextlib.closing(_client().SupervisorTransport(None, None, f"unix://{self.socket}")) as transport:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
            return getattr(proxy.supervisor, method)(*arguments)


def _client() -> Any:
    # imported here: commands that start no service run where only the production lock is installed
    try:
        import supervisor.xmlrpc
    except ModuleNotFoundError as error:
        raise LabError("the package supervisor is not installed: run make venv") from error
    return supervisor.xmlrpc


def configuration(supervisor: Supervisor, programs: Iterable[Program]) -> str:
    """The text of supervisord.conf; it holds no secret."""
    log = supervisor.place.log
    lines = [
        "; Written by `nightshift lab up`.",
        "[unix_http_server]",
        f"file={_escaped(supervisor.socket)}",
        "chmod=0700",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface",
        "[supervisorctl]",
        f"serverurl=unix://{_escaped(supervisor.socket)}",
        "[supervisord]",
        f"logfile={_escaped(log / 'supervisord.log')}",
        f"pidfile={_escaped(supervisor.pid_file)}",
        "minfds=4096",
        "nocleanup=true",
        *(["user=root"] if os.geteuid() == 0 else []),
    ]
    for program in programs:
        lines += [
            f"[program:{program.name}]",
            f"command={' '.join(_quoted(word) for word in program.launched())}",
            "autostart=false",
            "autorestart=true",
            "startsecs=2",
            "startretries=3",
            f"stopsignal={program.stop_signal}",
            f"stopasgroup={str(program.stop_as_group).lower()}",
            "killasgroup=true",
            f"stopwaitsecs={program.stop_wait_s}",
            "redirect_stderr=true",
            f"stdout_logfile={_escaped(log / (program.name + '.log'))}",
            "stdout_logfile_maxbytes=20MB",
            "stdout_logfile_backups=2",
        ]
        if program.environment:
            pairs = ",".join(f'{key}="{value}"' for key, value in program.environment.items())
            lines.append(f"environment={pairs}")
    return "\n".join(lines) + "\n"


def wait_for_end(pid: int, *, timeout_s: float) -> bool:
    """Wait until a process has ended; whether it has."""
    try:
        psutil.Process(pid).wait(timeout_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def marked_processes(place: LabFolders) -> list[int]:
    """All processes that carry the mark of this lab, whatever their parent is, but for the caller and its ancestors."""
    me = psutil.Process()
    own = {me.pid, *(parent.pid for parent in me.parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended, or another user's
            if process.pid not in own and process.environ().get(MARK) == str(place.var):
                found.append(process.pid)
    return sorted(found)


def end_marked(place: LabFolders, *, patience_s: float = 5.0) -> None:
    """Ends what a lab left running, first kindly.

    Raises LabError: processes survived SIGKILL, or belong to another user.
    """
    for how, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        deadline = time.monotonic() + patience
        sent: set[int] = set()
        while (pids := marked_processes(place)) and time.monotonic() < deadline:
            for pid in set(pids) - sent:
                with contextlib.suppress(OSError):
                    os.kill(pid, how)
            sent |= set(pids)
            time.sleep(POLL_S)
        if not pids:
            return
    left = ", ".join(map(str, marked_processes(place)))
    raise LabError(f"still running: {left}: end them with kill -9")


def _info(raw: Any) -> ProcessInfo:
    state = ProcessState(raw["state"])
    seconds = max(0, raw["now"] - raw["start"]) if state is ProcessState.RUNNING else 0
    return ProcessInfo(raw["name"], state, raw["pid"], seconds, raw["spawnerr"] or raw["description"])


def _escaped(text: Path | str) -> str:
    return str(text).replace("%", "%%")


def _quoted(word: str) -> str:
    escaped = _escaped(word)
    if not any(letter in escaped for letter in " ;\"'"):
        return escaped
    inside = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inside}"'
