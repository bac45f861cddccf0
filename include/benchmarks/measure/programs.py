"""Programs that benchmarks run, on this machine and on hosts of theirs."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from include.benchmarks.errors import HOST_UNREACHABLE, RUNNER_FAILED, RUNNER_MISSING
from include.errors import NightshiftError
from include.publishers.server.connection import CommandResult, NodeAddress, SshConnection
from include.publishers.server.publisher import address_of
from include.settings.secrets import Secrets
from include.settings.services import SshLogin

MOST_OUTPUT = 64 << 20
_LAST = 400
_PLACES = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class BenchmarkProgram:
    """A program and the Debian package that has it."""

    name: str
    package: str

    def path(self) -> str:
        """Return where it is. Raises BenchmarkError (RUNNER_MISSING)."""
        found = shutil.which(self.name) or shutil.which(self.name, path=_PLACES)
        if found is None:
            what = f"the program is not installed; apt-get install {self.package}"
            raise RUNNER_MISSING(self.name, what)
        return found


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What a program wrote until it ended with `code`."""

    command: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def require_success(self, subject: str) -> ProgramOutput:
        """Itself. Raises BenchmarkError (RUNNER_FAILED) with the end of what it wrote."""
        if self.code:
            last = (self.stderr.strip() or self.stdout.strip())[-_LAST:] or "it wrote nothing"
            ended = f"was killed by signal {-self.code}" if self.code < 0 else f"ended with {self.code}"
            raise RUNNER_FAILED(subject, f"{self.command[0]} {ended}: {last}")
        return self


FIO = BenchmarkProgram("fio", "fio")
DD = BenchmarkProgram("dd", "coreutils")
RADOS = BenchmarkProgram("rados", "ceph-common")
CEPH = BenchmarkProgram("ceph", "ceph-common")
SHELL = BenchmarkProgram("sh", "dash")
CURL = BenchmarkProgram("curl", "curl")
DAVIX = BenchmarkProgram("davix-get", "davix")
XRDCP = BenchmarkProgram("xrdcp", "xrootd-client")
_SETPRIV = BenchmarkProgram("setpriv", "util-linux")


class StopSignal:
    """Ends what runs, when a step has to end early: once, from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []
        self.stopped = False

    def stop(self) -> None:
        """End what runs now, and what is begun later."""
        with self._lock:
            self.stopped = True
            for end in self._ends:
                end()

    @contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Something runs that `end` ends."""
        with self._lock:
            self._ends.append(end)
            if self.stopped:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


def run_program(
    program: BenchmarkProgram,
    arguments: Sequence[str],
    *,
    subject: str,
    limit_s: float,
    folder: str | None = None,
    stop: StopSignal | None = None,
) -> ProgramOutput:
    """Run a program to its end.

    Args:
        program: Which.
        arguments: Its command line, without its own name.
        subject: What the errors are about.
        limit_s: After so many seconds it is killed.
        folder: Where it runs.
        stop: Kills it.

    Raises:
        BenchmarkError: RUNNER_MISSING, or RUNNER_FAILED if it takes too long or writes too much. Its exit code is
            the caller's to judge.
    """
    command = (program.path(), *arguments)
    guarded = (_SETPRIV.path(), "--pdeathsig", "KILL", "--", *command)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(  # noqa: S603 - an argument list, and no shell
                guarded, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env=_environment()
            )
        except OSError as error:
            raise RUNNER_FAILED(subject, f"{program.name} cannot be started: {error.strerror}") from error
        with process, (stop or StopSignal()).ending(process.kill):
            try:
                process.wait(limit_s)
            except BaseException as error:
                process.kill()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                what = f"{program.name} did not end within {limit_s:.0f} s and was killed"
                raise RUNNER_FAILED(subject, what) from None
        texts = []
        for file in (out, err):
            if file.seek(0, os.SEEK_END) > MOST_OUTPUT:
                raise RUNNER_FAILED(subject, f"{program.name} wrote more than {MOST_OUTPUT >> 20} MiB")
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return ProgramOutput(command, process.returncode, texts[0], texts[1])


def _environment() -> dict[str, str]:
    """Return what programs need of ours, and no secret: their messages are in English."""
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class TimedRun:
    """Outcome of a program that ended with `code`, or was ended (None) when its time was over."""

    command: tuple[str, ...]
    code: int | None
    seconds: float
    cpu_s: float
    written: int
    """Bytes, to files and connections, of one that was ended."""
    stdout: str
    stderr: str

    def require_success(self, subject: str) -> TimedRun:
        """Itself, if it ended well or was ended. Raises BenchmarkError (RUNNER_FAILED)."""
        ProgramOutput(self.command, self.code or 0, self.stdout, self.stderr).require_success(subject)
        return self


def time_program(
    command: Sequence[str], *, seconds: float, stop: StopSignal | None = None, **environment: str
) -> TimedRun:
    """Run a program and measure it; when its time is over it is ended, and what it has done counts."""
    guarded = (_SETPRIV.path(), "--pdeathsig", "KILL", "--", *command)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        process = subprocess.Popen(  # noqa: S603 - an argument list, and no shell
            guarded, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=_environment() | environment
        )
        ended = os.pidfd_open(process.pid)

        def kill() -> None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(ended, signal.SIGKILL)  # Popen's own would take the exit status from us

        try:
            with (stop or StopSignal()).ending(kill):
                in_time = bool(select.select([ended], [], [], seconds)[0])
            taken, written = time.monotonic() - began, 0 if in_time else _bytes_written(process.pid)
        finally:
            kill()
            _, status, usage = os.wait4(process.pid, 0)
            os.close(ended)
            process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(MOST_OUTPUT).decode(errors="replace"))
    code = process.returncode if in_time else None
    return TimedRun(tuple(command), code, taken, usage.ru_utime + usage.ru_stime, written, texts[0], texts[1])


def _bytes_written(process: int) -> int:
    lines = Path(f"/proc/{process}/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar:")))


MOST_LINES = 1_000_000
CLOCK_TRIES = 7
SCRIPT_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock of a host beside ours: what to add to our time of day to have that of the host."""

    offset_s: float
    error_s: float
    """By how much the offset may be wrong: half the shortest round trip."""

    @classmethod
    def nearest(cls, looks: Iterable[tuple[float, float, float]]) -> HostClock:
        """Return the look with the shortest round trip; each has our time before, the host's, and ours after."""
        before, theirs, after = min(looks, key=lambda look: look[2] - look[0])
        return cls(theirs - (before + after) / 2, (after - before) / 2)


class BenchmarkHost:
    """A host by its name in the configuration. Connections last for one call."""

    def __init__(self, name: str, address: NodeAddress) -> None:
        self.name = name
        self._address = address

    def script(self, text: str, *arguments: str, limit_s: float = SCRIPT_LIMIT_S) -> CommandResult:
        """Run a script with its arguments in the host's shell. Raises BenchmarkError (HOST_UNREACHABLE)."""
        with self._reached(), SshConnection(self._address) as connection:
            return connection.run(
                ["sh", "-c", text, "nightshift", *arguments], limit_s=limit_s, quiet=True, keep=MOST_LINES
            )

    def require(self, text: str, *arguments: str, limit_s: float = SCRIPT_LIMIT_S) -> tuple[str, ...]:
        """The output of a script that has to succeed. Raises BenchmarkError (HOST_UNREACHABLE)."""
        done = self.script(text, *arguments, limit_s=limit_s)
        if done.code:
            last = " | ".join(done.lines[-3:])[-300:] or "it wrote nothing"
            raise HOST_UNREACHABLE(self.name, f"the host ended a command with {done.code}: {last}")
        return done.lines

    def repeated(self, text: str, moments: Iterable[None]) -> Iterator[tuple[str, ...]]:
        """The output of a script at each moment, over one connection. Raises BenchmarkError (HOST_UNREACHABLE)."""
        with self._reached(), SshConnection(self._address) as connection:
            for _ in moments:
                yield connection.run(["sh", "-c", text], limit_s=SCRIPT_LIMIT_S, quiet=True, keep=MOST_LINES).lines

    def clock(self) -> HostClock:
        """Its clock, over one connection. Raises BenchmarkError (HOST_UNREACHABLE)."""
        with self._reached(), SshConnection(self._address) as connection:
            return HostClock.nearest(self._looks(connection))

    def _looks(self, connection: SshConnection) -> Iterator[tuple[float, float, float]]:
        for _ in range(CLOCK_TRIES):
            before = time.time()
            lines = connection.run(["date", "+%s.%N"], limit_s=SCRIPT_LIMIT_S, quiet=True).lines
            after = time.time()
            try:
                yield before, float(lines[-1]), after
            except (IndexError, ValueError):
                raise HOST_UNREACHABLE(self.name, "the host does not report its time") from None

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except NightshiftError as error:
            if error.code == HOST_UNREACHABLE.code:
                raise
            raise HOST_UNREACHABLE(self.name, f"{error.code}: {error}") from error


def hosts_of(logins: Mapping[str, SshLogin], secrets: Secrets) -> tuple[BenchmarkHost, ...]:
    """The hosts of a block of the configuration, by name."""
    return tuple(BenchmarkHost(name, address_of(name, login, secrets)) for name, login in sorted(logins.items()))


class LocalHost(BenchmarkHost):
    """This machine."""

    def __init__(self, name: str) -> None:
        self.name = name

    def script(self, text: str, *arguments: str, limit_s: float = SCRIPT_LIMIT_S) -> CommandResult:
        """Do as on any host. Raises BenchmarkError (RUNNER_FAILED)."""
        done = run_program(SHELL, ("-c", text, "nightshift", *arguments), subject=self.name, limit_s=limit_s)
        return CommandResult(done.code, tuple((done.stdout + done.stderr).splitlines()))
