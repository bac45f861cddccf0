"""Our driver for object stores: streams are threads, each with one request in flight, through the store of nights.

Each operation is timed by itself; a failed one counts as failed and its bytes do not. obstore's calls release the
interpreter, so that threads do not wait for each other. What takes the client time without loading the server is left
out: bodies are not part of the signature, and large objects are read in pieces, never held as a whole.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import cycle
from pathlib import Path

from include.benchmarks.errors import RUNNER_FAILED, TARGET_UNUSABLE
from include.benchmarks.measure.loads import (
    DataPattern,
    LatencyHistogram,
    LoadAccess,
    LoadStep,
    MeasuredLoad,
    RunnerResult,
    SeriesPoint,
    StreamLoad,
)
from include.benchmarks.measure.programs import StopSignal
from include.benchmarks.measure.targets import FolderArea, ObjectArea, Runner, RunnerAbilities
from include.storage.errors import StoreError
from include.storage.store import Store

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
NOT_DROPPED = "the page cache of this machine was not dropped: only root may; its own part of the files was"


def complete_files(step: LoadStep, area: FolderArea) -> tuple[LoadStep, tuple[str, ...]]:
    """The step, reading no further than the shortest file of each dataset goes; what had to be shortened.

    Raises:
        BenchmarkError: RUNNER_FAILED if a dataset is not there.
    """
    loads, notes = [], []
    for load in step.loads:
        shorter = _shortened(step, load, area) if load.needs_data else load
        if shorter != load:
            notes.append(f"{load.dataset}: only the first {shorter.file_bytes >> 20} MiB of each file were written")
        loads.append(shorter)
    return replace(step, loads=tuple(loads)), tuple(notes)


def drop_caches(step: LoadStep, area: FolderArea) -> tuple[str, ...]:
    """Let what is read come from the target, not from memory; what could not be done."""
    os.sync()
    for load in step.loads:
        for name in load.names() if load.needs_data else ():
            file = os.open(area.folder / name, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
    try:
        DROP_CACHES.write_text("3")
    except OSError:
        return (NOT_DROPPED,)
    return ()


def _shortened(step: LoadStep, load: StreamLoad, area: FolderArea) -> StreamLoad:
    try:
        shortest = min((area.folder / name).lstat().st_size for name in load.names())
    except FileNotFoundError as error:
        raise RUNNER_FAILED(step.name, f"{Path(error.filename).name} was not written before") from None
    except OSError as error:
        raise TARGET_UNUSABLE(step.name, f"{area.where}: {error.strerror}") from error
    return up_to(step, load, shortest)


def up_to(step: LoadStep, load: StreamLoad, shortest: int) -> StreamLoad:
    """The load, reading no further than its shortest file goes. Raises BenchmarkError (RUNNER_FAILED)."""
    usable = min(load.file_bytes, shortest // load.block_bytes * load.block_bytes)
    if not usable:
        what = f"the files of {load.dataset} have less than one block of {load.block_bytes} bytes"
        raise RUNNER_FAILED(step.name, what)
    return replace(load, file_bytes=usable)


NS = 1_000_000_000
START_NS = NS // 10
"""From the start of the threads to the first request."""
STAMP_BYTES = 16
"""Of each object's beginning: they make every object another one."""
LARGE_BYTES = 1 << 20
"""Larger objects of one stream are all the same, and are read in pieces."""
PIECE_BYTES = 256 << 10
"""Small enough to be copied within the caches of a core, while the next piece arrives."""


@dataclass(slots=True)
class OperationLog:
    """The operations of one stream in one direction: when each ended, how long it took, and its bytes."""

    ends: array[int] = field(default_factory=lambda: array("q"))
    durations: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    failures: Counter[str] = field(default_factory=Counter)
    failed_at: array[int] = field(default_factory=lambda: array("q"))
    done: int = 0
    """When the stream had ended."""


def measured_objects(access: LoadAccess, logs: Sequence[OperationLog], begin: int, ramp_s: int) -> MeasuredLoad:
    """Return what streams did after the ramp, in one direction. `begin`: when they began, in nanoseconds of their
    clock."""
    start = begin + ramp_s * NS
    sizes: Counter[int] = Counter()
    by_second: defaultdict[int, list[int]] = defaultdict(list)
    durations: list[int] = []
    total = operations = 0
    for log in logs:
        for end, duration, size in zip(log.ends, log.durations, log.sizes, strict=True):
            if end < start:
                continue
            second = (end - start) // NS
            sizes[second] += size
            by_second[second].append(duration)
            durations.append(duration)
            operations += 1
            total += size
    histogram = LatencyHistogram.of(durations)
    ends = [max(0, log.done - start) / NS for log in logs]
    series = tuple(
        SeriesPoint(second, float(sizes[second]), LatencyHistogram.of(taken).percentile_ms(95))
        for second, taken in sorted(by_second.items())
    )
    failed = sum(1 for log in logs for at in log.failed_at if at >= start)
    return MeasuredLoad(access, total, operations, failed, max(ends), min(ends), histogram, histogram.mean_ms(), series)


class ObjectStream:
    """One stream: does one operation after the other until its objects or its time are at an end."""

    def __init__(self, store: Store, load: StreamLoad, stream: int, body: bytes) -> None:
        """`body`: what objects have after their stamp."""
        self.logs: defaultdict[LoadAccess, OperationLog] = defaultdict(OperationLog)
        self._store = store
        self._load = load
        self._stream = stream
        self._body = body
        # one for all objects of the stream, where making one for each would take the memory and the time of the store
        self._large = self._stamped() if load.writes and load.file_bytes > LARGE_BYTES else None

    def run(
        self, begin: int, deadline: int, stop: StopSignal | None = None, together: threading.Event | None = None
    ) -> None:
        """Work from one moment to another.

        Args:
            begin: Of the monotonic clock, in nanoseconds.
            deadline: As `begin`.
            stop: Ends it earlier.
            together: Of all streams of the step: the first that ends sets it, and the others end with it.
        """
        _sleep_until(begin)
        pause = self._load.file_bytes * NS // self._load.rate if self._load.rate else 0
        due = begin
        for access, operation in self._operations():
            over = together is not None and together.is_set()
            if over or time.monotonic_ns() >= deadline or (stop is not None and stop.stopped):
                break
            if pause:
                _sleep_until(min(due, deadline))
                due += pause
            self._timed(self.logs[access], operation)
        now = time.monotonic_ns()
        if together is not None:
            together.set()
        for access in self._load.directions:
            self.logs[access].done = now

    def _operations(self) -> Iterator[tuple[LoadAccess, Callable[[], int]]]:
        match self._load.access:
            case LoadAccess.WRITE:
                return ((LoadAccess.WRITE, self._put(name)) for name in self._names())
            case LoadAccess.READ:
                return ((LoadAccess.READ, self._get(name)) for name in cycle(self._names()))
            case LoadAccess.MIXED:
                return self._mixed()
            case LoadAccess.LIST:
                return ((LoadAccess.LIST, operation) for operation in cycle([self._list]))
            case LoadAccess.DELETE:
                return ((LoadAccess.DELETE, self._delete(name)) for name in self._names())
            case LoadAccess.PUBLISH:
                raise RUNNER_FAILED(self._load.dataset, "objects are stored, not published")

    def _names(self) -> Iterator[str]:
        return self._load.names_of(self._stream)

    def _mixed(self) -> Iterator[tuple[LoadAccess, Callable[[], int]]]:
        reads = 0
        for number, name in enumerate(self._names(), start=1):
            if reads < self._load.read_share * number:
                reads += 1
                yield LoadAccess.READ, self._get(name)
            else:
                yield LoadAccess.WRITE, self._put(name)

    def _put(self, name: str) -> Callable[[], int]:
        # before the clock runs: making the body is not the store's work
        body = self._large or self._stamped()

        def put() -> int:
            self._store.put(name, body)
            return len(body)

        return put

    def _stamped(self) -> bytes:
        stamp = os.urandom(STAMP_BYTES) if self._load.pattern is DataPattern.RANDOM else bytes(STAMP_BYTES)
        return stamp[: self._load.file_bytes] + self._body

    def _get(self, name: str) -> Callable[[], int]:
        if self._load.file_bytes > LARGE_BYTES:
            return lambda: sum(map(len, self._store.stream(name, block=PIECE_BYTES)))
        return lambda: len(self._store.get(name))

    def _list(self) -> int:
        # all objects of the run, whose bytes are not sent
        deque(self._store.list(), maxlen=0)
        return 0

    def _delete(self, name: str) -> Callable[[], int]:
        def delete() -> int:
            self._store.delete([name])
            return 0

        return delete

    def _timed(self, log: OperationLog, operation: Callable[[], int]) -> None:
        begin = time.perf_counter_ns()
        try:
            size = operation()
        except StoreError as error:
            log.failures[error.code] += 1
            log.failed_at.append(time.monotonic_ns())
            return
        log.durations.append(time.perf_counter_ns() - begin)
        log.ends.append(time.monotonic_ns())
        log.sizes.append(size)


class ObjectRunner(Runner[ObjectArea]):
    """Whole objects: put, get, a mix of both, single deletes and listings."""

    abilities = RunnerAbilities(frozenset(LoadAccess) - {LoadAccess.PUBLISH}, limits_rates=True, takes_ramp=True)

    def run(self, step: LoadStep, area: ObjectArea, scratch: Path) -> RunnerResult:
        streams = sum(load.streams for load in step.loads)
        store = area.store(streams, sign_payload=False)
        running = [
            (load, [ObjectStream(store, load, number, body) for number in range(load.streams)])
            for load in step.loads
            for body in [_body(load)]
        ]
        # bodies take time to make: the clock starts after them. Connections are opened by the first requests of the
        # streams: the ramp is for that
        begin = time.monotonic_ns() + START_NS
        deadline = begin + (step.ramp_s + step.seconds) * NS
        together = threading.Event() if step.together else None
        with ThreadPoolExecutor(streams) as pool:
            works = [
                pool.submit(stream.run, begin, deadline, area.stop, together)
                for _, theirs in running
                for stream in theirs
            ]
        for work in works:
            work.result()
        loads = tuple(
            measured_objects(access, [stream.logs[access] for stream in theirs], begin, step.ramp_s)
            for load, theirs in running
            for access in load.directions
        )
        failures: Counter[str] = Counter()
        for _, theirs in running:
            for stream in theirs:
                for log in stream.logs.values():
                    failures.update(log.failures)
        if not any(load.operations for load in loads):
            code = next(iter(failures), None)
            why = (
                f"every request failed, most with {code}"
                if code
                else "no request ended after the ramp and within its time"
            )
            raise RUNNER_FAILED(step.name, why)
        notes = tuple(f"{count} requests failed with {code}" for code, count in sorted(failures.items()))
        (scratch / "failures.txt").write_text("\n".join(notes))
        what = f"objects {','.join(load.access.value for load in step.loads)} {store.url}"
        return RunnerResult(f"obstore {version('obstore')}", ((what,),), loads, notes)


def _body(load: StreamLoad) -> bytes:
    """Return what objects have after their stamp: the same for all, so that making it costs nothing while it is
    measured."""
    size = max(0, load.file_bytes - STAMP_BYTES)
    return os.urandom(size) if load.writes and load.pattern is DataPattern.RANDOM else bytes(size)


def _sleep_until(moment: int) -> None:
    left = moment - time.monotonic_ns()
    if left > 0:
        time.sleep(left / NS)
