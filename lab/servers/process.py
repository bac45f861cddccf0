"""Runs a server program while needed: its own process group, output to a file, ready when it answers as itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self

from include.errors import NightshiftError


class ServerStartError(NightshiftError):
    """A server that did not start, or did not stay. The message ends with what it said last."""

    code = "lab-server-failed"

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


@dataclass(eq=False)
class ServerProcess:
    """One server program. A context manager: ready inside, gone with all its children outside.

    ``ready`` is called until it returns True; it must see that *this* server answers, not some other one on the port.
    Should the thread that called ``start`` end without stopping it, the kernel sends the program SIGTERM.
    """

    name: str
    command: Sequence[str]
    _: KW_ONLY
    log: Path
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # keys are handed over in it
    cwd: Path | None = None
    ready_timeout_s: float = 60
    stop_timeout_s: float = 10
    stop_signal: signal.Signals = signal.SIGTERM
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """Of the program, which is also its process group."""
        if self._process is None:
            raise ServerStartError(self.name, "is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Tell whether the program itself is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until ready; ServerStartError, with nothing left running, if that does not happen in time."""
        if self.running:
            raise ServerStartError(self.name, "runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                cwd=self.cwd,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask it to end, then end it; harmless if it has ended."""
        if self._process is None:
            return
        self._signal_group(self.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.stop_timeout_s)
        self.kill()

    def kill(self) -> None:
        """End it and its children at once, as a crash would."""
        if self._process is None:
            return
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program alone, such as SIGSTOP and SIGCONT."""
        if self.running:
            os.kill(self.pid, number)

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        assert self._process is not None  # noqa: S101 - for the type checker
        deadline = time.monotonic() + self.ready_timeout_s
        pause_s = 0.02
        while not self.ready():
            if time.monotonic() > deadline:
                raise ServerStartError(
                    self.name, f"not ready after {self.ready_timeout_s:g} s; {self.log} ends:\n{self.last_words()}"
                )
            try:
                code = self._process.wait(pause_s)
            except subprocess.TimeoutExpired:
                pause_s = min(pause_s * 1.5, 0.25)
            else:
                raise ServerStartError(self.name, f"ended with code {code}; {self.log} ends:\n{self.last_words()}")

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class OwnServer(ABC):
    """A server that may run as a process of the one that made it, while a context lasts."""

    _process: ServerProcess | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it here and wait until it is ready; ServerStartError if it is not."""

    def stop(self) -> None:
        """Stop it; its files stay."""
        if self._process is not None:
            self._process.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_program(name: str) -> str | None:
    """The path of a program, also of one that is for root; None where it is not installed."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


# Run by a fresh interpreter, which then becomes the program: running Python between fork and exec is not safe in a
# process with threads. The parent may be gone before the leash is on, hence the check of getppid.
_LEASH = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("parent is gone")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""
