"""What a run needs to know of the machine: what it is, how idle it was, and what a tree of processes costs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

BENCH = Path(__file__).parent.parent
ROOT = BENCH.parent
_SAMPLE_S = 0.05


def description() -> str:
    """One line: processors, memory, system, Python."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "?")
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, load before {load:.1f}"
    )


def step_back(pid: int) -> None:
    """Set a process, which has a session of its own, to the lowest priority: in production it is on another machine.

    Linux may divide the processors equally among sessions (autogroup). Then `nice` counts only within a session, and
    the session needs a priority of its own.
    """
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text("19")


class Idle:
    """The share of processor time that nobody used between start and :meth:`share`."""

    def __init__(self) -> None:
        self._before = _ticks()

    def share(self) -> float:
        idle, total = (after - before for after, before in zip(_ticks(), self._before, strict=True))
        return idle / total if total else 0.0


def _ticks() -> tuple[int, int]:
    values = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return values[3] + values[4], sum(values)


@dataclass(slots=True)
class Ran:
    """What a process printed as its last line of JSON, the idle share of the machine, and its tree's peak memory."""

    outcome: Any
    idle: float
    rss_mb: float
    samples: list[float] = field(default_factory=list)


def run(module: str, *arguments: str, job: dict[str, Any]) -> Ran:
    """Run a module of the benchmark in a fresh interpreter; raises RuntimeError with what it said when it fails."""
    return start(module, *arguments, job=job).wait()


def start(module: str, *arguments: str, job: dict[str, Any]) -> Running:
    return Running(module, arguments, job)


class Running:
    """A process of the benchmark whose memory is watched."""

    def __init__(self, module: str, arguments: tuple[str, ...], job: dict[str, Any]) -> None:
        self._idle = Idle()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.close()
        self._samples: list[float] = []
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()

    def wait(self) -> Ran:
        assert self._process.stdout is not None
        output = self._process.stdout.read()
        code = self._process.wait()
        idle = self._idle.share()
        self._watch.join()
        if code:
            raise RuntimeError(f"{self._process.args!r} ended with code {code}")
        return Ran(json.loads(output.splitlines()[-1]), idle, max(self._samples, default=0.0), self._samples)

    def _sample(self) -> None:
        while self._process.poll() is None:
            self._samples.append(sum(_rss_mb(pid) for pid in tree(self._process.pid)))
            try:
                self._process.wait(_SAMPLE_S)
            except subprocess.TimeoutExpired:
                continue


def tree(pid: int) -> list[int]:
    """A process and all that it started, at any depth."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += tree(int(child))
    return found


def _rss_mb(pid: int) -> float:
    """Memory of a process in MB, its share of what several map."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def clocked(work: Callable[[T], object], items: Iterable[T], at_once: int) -> float:
    """Return the seconds in which so many threads do a work on all items. Raises the first error of the work."""
    rest, lock, failures = iter(items), threading.Lock(), list[Exception]()

    def run() -> None:
        while not failures:
            with lock:
                item = next(rest, None)
            if item is None:
                return
            try:
                work(item)
            except Exception as fault:  # noqa: BLE001 - shown by the main thread
                failures.append(fault)

    threads = [threading.Thread(target=run) for _ in range(at_once)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - started
