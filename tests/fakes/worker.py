"""A publisher or a gateway as a process of its own, that can be killed: it gets an order and answers over a pipe.

It shares nothing with its test but servers and files. The processes are forked from one that has imported all that they
need, so they start in an instant.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from include.cvmfs.commit.commit import NewTag
from include.cvmfs.format.hashes import Algorithm
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.ingest.prepare import Base, PrepareOptions, prepare
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.artifact import DirectorySource
from include.errors import code_of
from include.gateway.client.client import GatewayClient
from include.gateway.errors import PathBusy
from include.gateway.service.clock import SystemClock
from include.gateway.service.commits import committer
from include.gateway.service.commits.queue import OnPoint, Point, pass_by
from include.gateway.service.http.server import serve
from include.gateway.service.telemetry import log_to
from include.publishers.native import NativePublisher
from include.settings.model import RepositorySettings
from include.site.site import native_publisher
from include.storage import remote, s3
from include.storage.store import Store
from tests.fakes.orders import KEY_ID, SECRET, Order, gateway_config, store_of

LATE = ["anyio._backends._asyncio", "uvicorn.lifespan.on", "uvicorn.loops.uvloop"]
PRELOADED = ["tests.fakes.worker", committer.__name__, s3.__name__, "obstore.store", "pytest", *LATE]
Say = Callable[..., None]


def run(order: Order, answers: Connection) -> None:
    """The process: does what its order says."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing outlives its test
    remote.FIRST_PAUSE_S /= 10  # the tests make trouble that passes at once

    def say(**fields: object) -> None:
        answers.send(fields)

    try:
        VERBS[order["verb"]](order, say)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to know
        say(
            error=code_of(error),
            message=str(error),
            retryable=getattr(error, "retryable", None),
            key=getattr(error, "key", None),
        )


class ShiftedClock(SystemClock):
    """The machine's clocks, ahead by the seconds that stand in a file: time passes when a test says so."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = os.open(file, os.O_RDONLY)

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self._ahead_ns()

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ns() // 1_000_000

    def _ahead_ns(self) -> int:
        return round(struct.unpack("<d", os.pread(self._file, 8, 0))[0] * 1e9)


def gateway(order: Order, say: Say) -> None:
    """Serve until killed, or until a commit comes by the point ``die_at``; says its URL when it listens."""
    with Path(order["log"]).open("a") as log:
        log_to(log)
        serve(
            partial(gateway_config, order), clock=ShiftedClock(Path(order["clock"])),
            on_point=dying(order.get("die_at", "")), ready=lambda url: say(url=url),
        )  # fmt: skip


def dying(text: str) -> OnPoint:
    """Kills this process when a commit comes by a point, as ``<point>`` or ``<point>:<n>`` for the n-th time."""
    if not text:
        return pass_by
    name, _, times = text.partition(":")
    point, last = Point(name), int(times or 1)
    reached = itertools.count(1)

    def die(at: Point) -> None:
        if at is point and next(reached) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def publish(order: Order, say: Say) -> None:
    """Prepare a folder and publish it, as one task does; a busy path is waited for, as the triggerer would."""
    store = store_of(order)
    changeset = prepared(order, say, store, Path(order["tree"]))
    if not order.get("prepare_only"):
        report(order, say, changeset, store)


def publish_prepared(order: Order, say: Say) -> None:
    """Publish a changeset that another task prepared."""
    report(order, say, Changeset.parse(Path(order["changeset"]).read_bytes()), store_of(order))


def reserve(order: Order, say: Say) -> None:
    store = store_of(order)
    worker = publisher(order, store)

    def work() -> None:
        done = worker.reserve(
            order["destinations"], nested=order["nested"], holder=order["owner"], now=datetime.now(UTC)
        )
        say(revision=done.revision, created=list(done.created))

    when_free(order, say, work)


def prepared(order: Order, say: Say, store: Store, tree: Path) -> Changeset:

    manifest = read_manifest(order, store)
    changeset = prepare(
        DirectorySource(tree),
        store=store,
        fqrn=order["fqrn"],
        destination=order["destination"],
        now=datetime.now(UTC),
        base=Base(manifest.root, manifest.revision),
        options=PrepareOptions(mtime=1, owner=(0, 0), algorithm=Algorithm.named(order.get("algorithm", "sha1"))),
    )
    if order.get("changeset"):
        Path(order["changeset"]).write_bytes(changeset.format())
    say(prepared=str(changeset.root), retries=dict(store.counters.retries))
    return changeset


def report(order: Order, say: Say, changeset: Changeset, store: Store, **more: object) -> None:

    worker = publisher(order, store)
    tag = NewTag(order["tag"]) if order.get("tag") else None

    def work() -> None:
        done = worker.publish(changeset, holder=order["owner"], now=datetime.now(UTC), tag=tag)
        say(revision=done.revision, unchanged=done.unchanged, retries=dict(store.counters.retries), **more)

    when_free(order, say, work)


def when_free(order: Order, say: Say, work: Callable[[], None]) -> None:
    """Do it, waiting for a busy path as long as the order's patience lasts."""

    until = time.monotonic() + order.get("patience_s", 0)
    while True:
        try:
            return work()
        except PathBusy as busy:
            if time.monotonic() > until:
                raise
            say(busy=busy.time_remaining_s)
            threading.Event().wait(min(busy.time_remaining_s, 0.1))


def publisher(order: Order, store: Store) -> NativePublisher:
    client = GatewayClient(order["gateway"], KEY_ID, SECRET, timeout_s=60, commit_timeout_s=60)
    return native(order["fqrn"], store, client, lambda: read_manifest(order, store))


def native(
    fqrn: str, store: Store, client: GatewayClient, read_manifest: Callable[[], Manifest], **settings: Any
) -> NativePublisher:
    """The publisher that production makes for a repository with these ``settings``, all others at their defaults."""
    plain = {"store": "store", "public_url": "http://127.0.0.1", "public_key": "public", "gateway": "gateway"}
    repository = RepositorySettings.model_validate({"name": fqrn, **plain, **settings})
    return native_publisher(repository, store, client, read_manifest)


def read_manifest(order: Order, store: Store) -> Manifest:
    return Repository.open(store, fqrn=order["fqrn"], public_keys=[Path(order["public_key"]).read_bytes()]).manifest


VERBS: dict[str, Callable[[Order, Say], None]] = {
    "gateway": gateway,
    "publish": publish,
    "publish_prepared": publish_prepared,
    "reserve": reserve,
}
