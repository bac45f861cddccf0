"""Load comes from processes of its own that begin at the same moment: each says that it is ready and waits for a line.

A module of the benchmark takes its job as JSON in the first line of its standard input, and tells its outcome as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from bench.publishing.machine import ROOT


class Crew:
    """Processes that are ready, one for each job; the clock of a measurement starts at :meth:`go`."""

    def __init__(self, module: str, jobs: Sequence[dict[str, Any]]) -> None:
        command = [sys.executable, "-m", f"bench.gatewaying.{module}"]
        self._processes = [
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in jobs
        ]
        for process, job in zip(self._processes, jobs, strict=True):
            _tell(process, json.dumps(job))
        for process in self._processes:
            if _line(process) != "ready":
                raise RuntimeError(f"{module} did not become ready")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def go(self) -> None:
        for process in self._processes:
            _tell(process, "go")

    def outcomes(self) -> list[Any]:
        """What each of them found. Raises RuntimeError if one of them failed."""
        found = []
        for process in self._processes:
            output, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"{process.args!r} ended with code {process.returncode}")
            found.append(json.loads(output.splitlines()[-1]))
        return found


def serve(prepare: Callable[[dict[str, Any]], Callable[[], Any]]) -> None:
    """The other side: get ready with the job, wait, run, tell."""
    run = prepare(json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    if sys.stdin.readline():
        print(json.dumps(run()), flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of them do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
