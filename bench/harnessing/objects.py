"""The driver of campaigns and a bare loop of obstore: the same objects, streams and seconds on the same server."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count, cycle
from pathlib import Path
from typing import Any

import obstore
from harnessing.servers import TimedServer
from obstore.store import S3Store

from include.benchmarks.loads import LoadAccess, LoadStep, RunnerKind, StreamLoad
from include.benchmarks.results import MeasuredLoad
from include.benchmarks.runners.objects import ObjectRunner
from include.benchmarks.targets.bucket import BucketBenchmarkTarget, ObjectArea
from include.settings.storage_benchmark.blocks import BucketTarget
from include.storage.buckets import ensure_bucket
from include.storage.open import open_store
from include.storage.store import Store

BUCKET = "bench"
FILES = 100_000
"""Of a stream that writes: more than it has time for."""
READ_FILES = 50
LATENCY_FILES = 20
LATENCY_BYTES = 8 << 20
"""Large enough for the server's part to be most of it."""
METHODS = {LoadAccess.WRITE: "PUT", LoadAccess.READ: "GET"}


@dataclass(frozen=True, slots=True)
class LatencyPair:
    """Mean latencies in milliseconds of the same requests."""

    driver_ms: float
    server_ms: float

    @property
    def ratio(self) -> float:
        """The driver's beside the server's."""
        return self.driver_ms / self.server_ms if self.server_ms else 0.0


class ObjectArms:
    """Both ways to load a server that runs."""

    def __init__(self, timed: TimedServer, scratch: Path, *, size: int, seconds: int) -> None:
        self._timed = timed
        self._scratch = scratch
        self._size, self._seconds = size, seconds
        self._numbers = count()
        server = timed.server
        ensure_bucket(f"s3://{BUCKET}", server.credentials, server.options())
        settings = BucketTarget.model_validate({"kind": "bucket", "name": "bench", "store": "s"})
        self._area: ObjectArea = BucketBenchmarkTarget(settings, self._open).area("harness")
        self._area.create()

    def prepare(self, streams: int) -> None:
        """Write what both will read."""
        self._run(self._load(LoadAccess.WRITE, "read", streams, READ_FILES), seconds=300)

    def driver(self, access: LoadAccess, streams: int) -> float:
        """Operations per second of the driver."""
        if access is LoadAccess.READ:
            return self._run(self._load(access, "read", streams, READ_FILES)).rate
        return self._run(self._load(access, f"driver-{next(self._numbers)}", streams, FILES)).rate

    def bare(self, access: LoadAccess, streams: int) -> float:
        """Operations per second of threads that do nothing but call obstore."""
        client = self._client(streams)
        prefix = f"benchmarks/nightshift-benchmark-harness/bare-{next(self._numbers)}"
        body = os.urandom(self._size)
        load = self._load(access, "read", streams, READ_FILES)
        reads = [
            [f"benchmarks/nightshift-benchmark-harness/{name}" for name in load.names_of(stream)]
            for stream in range(streams)
        ]
        begin = time.monotonic() + 0.1
        deadline = begin + self._seconds

        def put(stream: int) -> int:
            time.sleep(max(0.0, begin - time.monotonic()))
            done = 0
            while time.monotonic() < deadline:
                obstore.put(client, f"{prefix}.{stream}.{done}", body, use_multipart=False)
                done += 1
            return done

        def get(stream: int) -> int:
            time.sleep(max(0.0, begin - time.monotonic()))
            done = 0
            for name in cycle(reads[stream]):
                if time.monotonic() >= deadline:
                    break
                obstore.get(client, name).bytes()
                done += 1
            return done

        with ThreadPoolExecutor(streams) as pool:
            done = sum(pool.map(put if access is LoadAccess.WRITE else get, range(streams)))
        return done / (time.monotonic() - begin)

    def latencies(self, streams: int) -> dict[LoadAccess, LatencyPair]:
        """Of large objects that the driver writes and reads, as it and as the server measured them."""
        written = StreamLoad(
            LoadAccess.WRITE, f"latencies-{next(self._numbers)}", streams, LATENCY_BYTES, LATENCY_BYTES,
            files=LATENCY_FILES,
        )  # fmt: skip
        found = {}
        for access, method in METHODS.items():
            before = self._timed.times(method)
            all_of_it = 300 if access is LoadAccess.WRITE else None
            measured = self._run(replace(written, access=access), seconds=all_of_it)
            times = self._timed.times_after(method, before.requests + measured.operations)
            found[access] = LatencyPair(measured.mean_ms or 0.0, times.since(before))
        self._area.remove_files(written.names())
        return found

    def _run(self, load: StreamLoad, *, seconds: int | None = None) -> MeasuredLoad:
        step = LoadStep("harness", RunnerKind.OBJECTS, (load,), seconds or self._seconds)
        measured = ObjectRunner().run(step, self._area, self._scratch).loads[0]
        if measured.failed:
            raise RuntimeError(f"{measured.failed} requests failed")
        return measured

    def _load(self, access: LoadAccess, dataset: str, streams: int, files: int) -> StreamLoad:
        return StreamLoad(access, dataset, streams, self._size, self._size, files=files)

    def _open(self, connections: int, *, sign_payload: bool = True) -> Store:
        server = self._timed.server
        options = server.options(retries=0, connections=connections, sign_payload=sign_payload)
        return open_store(f"s3://{BUCKET}", credentials=server.credentials, options=options)

    def _client(self, connections: int) -> Any:
        server = self._timed.server
        return S3Store(
            BUCKET, endpoint=server.endpoint, region="us-east-1", virtual_hosted_style_request=False,
            access_key_id=server.credentials.access_key, secret_access_key=server.credentials.secret_key,
            unsigned_payload=True,
            client_options={
                "allow_http": True, "pool_max_idle_per_host": str(connections), "timeout": timedelta(seconds=60),
            },
            retry_config={"max_retries": 0},
        )  # fmt: skip
