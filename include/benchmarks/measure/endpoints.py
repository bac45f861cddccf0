"""Files at a distance: the target, and the programs that read them, each after the round trip was measured."""

from __future__ import annotations

import json
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from include.benchmarks.errors import RESULT_UNREADABLE, ROUND_TRIP_REFUSED, RUNNER_FAILED, TARGET_UNUSABLE, readable
from include.benchmarks.measure.loads import (
    DistantFigures,
    DistantRead,
    DistantStrategy,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    RunnerResult,
    StreamLoad,
)
from include.benchmarks.measure.programs import CURL, DAVIX, XRDCP, BenchmarkProgram, TimedRun, time_program
from include.benchmarks.measure.targets import AREA, AreaRemoval, BenchmarkTarget, RunArea, Runner, RunnerAbilities
from include.benchmarks.measure.traces import data_sha256, write_data
from include.settings.benchmarks import RTT_MS, WINDOW, EndpointServer, EndpointTarget, TargetKind

ROUND_TRIPS, LOOKS = 21, 3
"""Round trips of a look, and the number of looks before a step is refused."""
SHARE, BESIDE_MS = 0.1, 1.0
"""The most by which the median round trip may be off."""
_PORTS = {"http": 80, "https": 443, "root": 1094}
_PROGRAM = "include.benchmarks.measure.traces"
_LIMIT_S = 60.0
_MISSING = "404"


class EndpointArea(RunArea):
    """A file that is read only, or one whose name has the id of the run in it."""

    def __init__(self, settings: EndpointTarget, run: str) -> None:
        self.settings, self.where = settings, settings.name
        self._own = f"{AREA}{run}" if settings.sha256 is None else ""

    def create(self) -> None:
        """Nothing."""

    def remove_files(self, names: Iterable[str]) -> AreaRemoval:
        if not self._own or not any(True for _ in names):
            return AreaRemoval(0)
        url = self.url(next(server for server in self.settings.urls if server is not EndpointServer.XROOT))
        words = ("-sS", "-X", "DELETE", "-o", "/dev/null", "-w", "%{http_code}", url)
        status = self.near(CURL.path(), *words).stdout
        if not status.strip("0"):
            raise TARGET_UNUSABLE(self.where, "no server answers that could remove the file of the campaign")
        if status == _MISSING:
            return AreaRemoval(0)
        return AreaRemoval(1) if status.startswith("2") else AreaRemoval(0, (self._own,))

    def remove(self) -> AreaRemoval:
        return AreaRemoval(0)

    def url(self, server: EndpointServer) -> str:
        """The file at a server."""
        return self.settings.urls[server] + self._own

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file."""
        return self.settings.sha256 or data_sha256(self.settings.size)

    def near(self, *command: str, seconds: float = _LIMIT_S, **environment: str) -> TimedRun:
        """Run a command where the link ends."""
        prefix = self.settings.link.read if self.settings.link else ()
        return time_program((*prefix, *command), seconds=seconds, stop=self.stop, **environment)

    def program(self, what: str, job: Mapping[str, object], *, seconds: float = _LIMIT_S) -> TimedRun:
        """Run our own program there."""
        return self.near(sys.executable, "-m", _PROGRAM, what, json.dumps(job), seconds=seconds)

    def round_trip(self, server: EndpointServer, count: int) -> float:
        """The median round trip to a server in milliseconds. Raises BenchmarkError (RUNNER_FAILED)."""
        parts = urlsplit(self.url(server))
        job = {"host": parts.hostname, "port": parts.port or _PORTS[parts.scheme], "count": count}
        done = self.program("rtt", job).require_success(f"{self.where} ({server.value})")
        times: list[float] = json.loads(done.stdout or "[]")
        return median(times) if times else float("inf")

    def reach(self, step: str, read: DistantRead) -> float:
        """Set the link for a step; the median round trip then. Raises BenchmarkError (ROUND_TRIP_REFUSED)."""
        if read.rtt_ms is None or self.settings.link is None:
            return self.round_trip(read.server, ROUND_TRIPS)
        words = {RTT_MS: f"{read.rtt_ms:g}", WINDOW: read.window.value}
        command = tuple(words.get(word, word) for word in self.settings.link.set)
        time_program(command, seconds=_LIMIT_S, stop=self.stop).require_success(step)
        for _ in range(LOOKS):
            measured = self.round_trip(read.server, ROUND_TRIPS)
            if abs(measured - read.rtt_ms) <= SHARE * read.rtt_ms + BESIDE_MS:
                return measured
        what = f"the round trip is {measured:.1f} ms, and {read.rtt_ms:g} ms was asked for"
        raise ROUND_TRIP_REFUSED(step, what)


class EndpointBenchmarkTarget(BenchmarkTarget):
    """The file that the settings name."""

    kind = TargetKind.ENDPOINT

    def __init__(self, settings: EndpointTarget) -> None:
        self.settings: EndpointTarget = settings
        self._answered = False

    def check(self) -> None:
        """Refuse an endpoint of which no server answers; it is asked once."""
        if self._answered:
            return
        area, silent = self.area(""), []
        for server in self.settings.urls:
            try:
                area.round_trip(server, 1)
            except RUNNER_FAILED.raised:
                silent.append(server.value)
        if len(silent) == len(self.settings.urls):
            raise TARGET_UNUSABLE(self.name, f"no server answers: {', '.join(silent)}")
        self._answered = True

    def space(self) -> None:
        return None

    def area(self, run: str) -> EndpointArea:
        return EndpointArea(self.settings, run)


class EndpointRunner(Runner[EndpointArea]):
    """Reads the file once, or for the seconds of the step; a read is one operation."""

    abilities = RunnerAbilities(frozenset({LoadAccess.READ}), limits_rates=False, takes_ramp=False, ends_together=False)
    name: str

    def run(self, step: LoadStep, area: EndpointArea, scratch: Path) -> RunnerResult:  # noqa: ARG002 - of the interface
        (load,) = step.loads
        if load.distant is None:
            raise RUNNER_FAILED(step.name, "it names no server of the endpoint")
        rtt_ms = area.reach(step.name, load.distant)
        measured, command = self.read(step, area, load, rtt_ms)
        return RunnerResult(self.name, (command,), (measured,))

    @abstractmethod
    def read(
        self, step: LoadStep, area: EndpointArea, load: StreamLoad, rtt_ms: float
    ) -> tuple[MeasuredLoad, tuple[str, ...]]:
        """The figures of the read, and its command line. Raises BenchmarkError (RUNNER_FAILED, RESULT_UNREADABLE)."""


class CopyRunner(EndpointRunner):
    """A program that copies the file to /dev/null."""

    program: BenchmarkProgram
    ends_itself_s = 0.0
    """Seconds that it has beyond those of the step, if it ends by itself then."""
    environment: dict[str, str] = {}  # noqa: RUF012 - of the class, and not changed

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.program.name

    def read(
        self, step: LoadStep, area: EndpointArea, load: StreamLoad, rtt_ms: float
    ) -> tuple[MeasuredLoad, tuple[str, ...]]:
        size = area.settings.size
        url = area.url(load.distant.server) if load.distant else ""
        command = (self.program.path(), *self.words(url, size, load.streams, step.seconds))
        done = area.near(*command, seconds=step.seconds + self.ends_itself_s, **self.environment)
        seconds, copied = self.figures(done, step.name, size)
        figures = DistantFigures(rtt_ms, done.cpu_s)
        return MeasuredLoad(load.access, copied, 1, 0, seconds, seconds, distant=figures), done.command

    @abstractmethod
    def words(self, url: str, size: int, streams: int, seconds: float) -> Sequence[str]:
        """Its arguments."""

    def figures(self, done: TimedRun, step: str, size: int) -> tuple[float, int]:
        """Seconds and bytes. What it has written counts where its time was over."""
        done.require_success(step)
        return done.seconds, min(size, done.written) if done.code is None else size


class CurlRunner(CopyRunner):
    """curl, which writes the file, too; with several streams each reads a range of the file, at the same time."""

    abilities = replace(EndpointRunner.abilities, accesses=frozenset({LoadAccess.READ, LoadAccess.WRITE}))
    program = CURL
    ends_itself_s = 5.0

    def read(
        self, step: LoadStep, area: EndpointArea, load: StreamLoad, rtt_ms: float
    ) -> tuple[MeasuredLoad, tuple[str, ...]]:
        if load.access is LoadAccess.READ or load.distant is None:
            return super().read(step, area, load, rtt_ms)
        with tempfile.NamedTemporaryFile(prefix="nightshift-") as file:
            write_data(Path(file.name), load.file_bytes)
            words = ("-sSf", "-T", file.name, area.url(load.distant.server))
            done = area.near(self.program.path(), *words, seconds=step.seconds)
        if done.code != 0:
            done.require_success(step.name)
            raise RUNNER_FAILED(step.name, f"the file was not written in {step.seconds} s")
        figures = DistantFigures(rtt_ms, done.cpu_s)
        return MeasuredLoad(load.access, load.bytes, 1, 0, done.seconds, done.seconds, distant=figures), done.command

    def words(self, url: str, size: int, streams: int, seconds: float) -> Sequence[str]:
        write = "%{time_total} %{size_download}\\n"
        usual = ("-sSf", "--max-time", f"{seconds:g}", "-o", "/dev/null", "-w", write)
        if streams == 1:
            return (*usual, url)
        share, words = -(-size // streams), ["-Z", "--parallel-immediate"]
        for number in range(streams):
            bounds = f"{number * share}-{min(size, (number + 1) * share) - 1}"
            words += [*(["--next"] if number else []), *usual, "-r", bounds, url]
        return words

    def figures(self, done: TimedRun, step: str, size: int) -> tuple[float, int]:
        if done.code not in (0, _CURL_OVER_TIME, None):
            done.require_success(step)
        if not done.stdout:
            return super().figures(done, step, size)
        with readable(RESULT_UNREADABLE, step, "the output of curl"):
            lines = [line.split() for line in done.stdout.splitlines()]
            return max(float(seconds) for seconds, _ in lines), min(size, sum(int(count) for _, count in lines))


_CURL_OVER_TIME = 28


class DavixRunner(CopyRunner):
    """davix-get."""

    program = DAVIX

    def words(self, url: str, size: int, streams: int, seconds: float) -> Sequence[str]:  # noqa: ARG002 - of the interface
        return (url, "/dev/null")


class XrdcpRunner(CopyRunner):
    """xrdcp, without its checksums of pages: they take most of the processor, and HTTP has nothing like them."""

    program = XRDCP
    environment = {"XRD_CPUSEPGWRTRD": "0"}  # noqa: RUF012 - of the class, and not changed

    def words(self, url: str, size: int, streams: int, seconds: float) -> Sequence[str]:  # noqa: ARG002 - of the interface
        several = ("-S", str(streams)) if streams > 1 else ()
        return ("-f", "-s", "-N", *several, url, "/dev/null")


class ReaderRunner(EndpointRunner):
    """Our own reader; operations are the reads of the trace."""

    name = "reader"

    def read(
        self, step: LoadStep, area: EndpointArea, load: StreamLoad, rtt_ms: float
    ) -> tuple[MeasuredLoad, tuple[str, ...]]:
        settings, distant = area.settings, load.distant or DistantRead(EndpointServer.NGINX, None)
        job = {
            "url": area.url(distant.server), "strategy": (distant.strategy or DistantStrategy.WHOLE).value,
            "streams": load.streams, "seconds": step.seconds, "size": settings.size, "sha256": area.sha256,
            "trace": str(settings.trace or "") if distant.trace else None,
        }  # fmt: skip
        done = area.program("read", job, seconds=step.seconds + _LIMIT_S)
        done.require_success(step.name)
        with readable(RESULT_UNREADABLE, step.name, "the output of the reader"):
            read = json.loads(done.stdout.splitlines()[-1])
            measured = MeasuredLoad(
                load.access, read["bytes"], read["operations"], 0 if read["right"] else 1, read["seconds"],
                read["seconds"], distant=DistantFigures(rtt_ms, read["cpu_s"], read["requests"]),
            )  # fmt: skip
        return measured, done.command
