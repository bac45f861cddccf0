"""Programs of others that campaigns call: found with their Debian package, killed with us, their output bounded.

A program that is started here is killed by the kernel when the thread that waits for it ends, whatever that dies of.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from include.benchmarks.errors import RUNNER_FAILED, RUNNER_MISSING

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
