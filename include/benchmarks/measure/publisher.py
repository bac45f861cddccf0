"""The publisher of nights as a runner: directories of small files go to a new repository, under a gateway of the run.

Each directory has a catalog of its own. What is timed is one publication: prepare, reserve, publish.
"""

from __future__ import annotations

import io
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from include.benchmarks.errors import RUNNER_FAILED, BenchmarkError
from include.benchmarks.measure.loads import LoadAccess, LoadStep, MeasuredLoad, RunnerResult, SeriesPoint, StreamLoad
from include.benchmarks.measure.targets import FolderArea, ObjectArea, Runner, RunnerAbilities, longest_s
from include.cvmfs.commit.create import create_repository
from include.cvmfs.coordination.generation import look
from include.cvmfs.format import keys
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.ingest.prepare import Base, PrepareProgress, prepare
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.source import Content, Entry, EntryKind, Opener
from include.errors import NightshiftError
from include.gateway.client.client import GatewayClient
from include.gateway.service.config import AcceptedKey, RepositoryConfig, ServiceConfig
from include.gateway.service.http.server import serve
from include.publishers.base import tree_options
from include.publishers.gateway import NightshiftGateway, WriterSide
from include.publishers.native import NativePublisher
from include.settings.prepare import Prepare
from include.storage.kinds import StoreOptions
from include.storage.open import open_store
from include.storage.store import Store

FQRN = "benchmark.nightshift.test"
DESTINATION = "/benchmark"
HOLDER = KEY_ID = "storage-benchmark"
FLUSHED_AT_SWITCH = "a repository in a folder is flushed before its manifest is replaced, not after each object"
STAMP_BYTES = 16
START_S = 120.0  # of a gateway and the process in which it commits, on a busy machine
_MTIME = 1_790_000_000


@dataclass(frozen=True, slots=True)
class GeneratedTree:
    """A tree whose files are made as they are read: no two are the same, and none can be compressed."""

    load: StreamLoad
    name: str = "benchmark"
    sha256: str | None = None
    _body: bytes = field(default_factory=lambda: os.urandom(1 << 16), repr=False)

    def entries(self) -> Iterator[tuple[Entry, Opener | None]]:
        yield Entry("", EntryKind.DIRECTORY, 0o755, _MTIME), None
        for stream in range(self.load.streams):
            folder = f"directory{stream:04}"
            yield Entry(folder, EntryKind.DIRECTORY, 0o755, _MTIME), None
            yield Entry(f"{folder}/.cvmfscatalog", EntryKind.FILE, 0o644, _MTIME), io.BytesIO
            for file in range(self.load.files):
                name = f"{folder}/file{file:05}.dat"
                yield Entry(name, EntryKind.FILE, 0o644, _MTIME, size=self.load.file_bytes), self._content

    def xattrs(self, entry: Entry, namespaces: tuple[bytes, ...]) -> Mapping[bytes, bytes]:  # noqa: ARG002 - none
        return {}

    def _content(self) -> Content:
        size = self.load.file_bytes
        stamped = os.urandom(STAMP_BYTES) + self._body * (size // len(self._body) + 1)
        return io.BytesIO(stamped[:size])


class PublisherRunner(Runner[ObjectArea | FolderArea]):
    """One publication of all directories; operations are files."""

    abilities = RunnerAbilities(frozenset({LoadAccess.PUBLISH}), limits_rates=False, takes_ramp=False)

    def run(self, step: LoadStep, area: ObjectArea | FolderArea, scratch: Path) -> RunnerResult:
        (load,) = step.loads
        store = _store_of(area, load)
        try:
            measured, phases = _publish(step, load, store)
        except BenchmarkError:
            raise
        except NightshiftError as error:
            raise RUNNER_FAILED(step.name, f"{error.code}: {error}") from error
        (scratch / "phases.txt").write_text("\n".join(f"{name} {seconds:.3f} s" for name, seconds in phases.items()))
        what = f"{load.streams} directories of {load.files} files of {load.file_bytes} B"
        command = ("publish", what, f"{load.connections} connections", store.url)
        return RunnerResult("native publisher", (command,), (measured,), (FLUSHED_AT_SWITCH,) if store.is_local else ())


def _store_of(area: ObjectArea | FolderArea, load: StreamLoad) -> Store:
    connections = load.connections or 1
    if isinstance(area, ObjectArea):
        return area.store(connections).child(load.dataset)
    return open_store((area.folder / load.dataset).as_uri(), options=StoreOptions(connections=connections))


def _publish(step: LoadStep, load: StreamLoad, store: Store) -> tuple[MeasuredLoad, Mapping[str, float]]:
    now = datetime.now(UTC)
    master, signer = keys.generate_master(), keys.generate_repository_key(FQRN, now)
    public_keys = [keys.format_public_key(master.public_key())]
    create_repository(store, FQRN, master=master, signer=signer, now=now)

    def head() -> Repository:
        return Repository.open(store, fqrn=FQRN, public_keys=public_keys, now=datetime.now(UTC))

    with _gateway(step.name, store, signer) as client:
        repository = WriterSide(FQRN, store, CatalogCache(store), lambda: head().manifest)
        usual = Prepare()
        publisher = NativePublisher(
            repository, client, lambda: NightshiftGateway(repository, client),
            catalog_entries=usual.catalog_entries, root_entries=usual.root_entries,
        )  # fmt: skip
        began = time.monotonic()
        over_time = _OverTime(step.name, began, longest_s(step))
        seen, newest = look(store), head()
        changeset = prepare(
            GeneratedTree(load), store=store, fqrn=FQRN, destination=DESTINATION, now=now, progress=over_time,
            options=replace(tree_options(usual, newest), connections=load.connections or 1),
            base=Base(newest.manifest.root, newest.manifest.revision, seen.moment),
        )  # fmt: skip
        prepared = time.monotonic()
        publisher.reserve([changeset.destination], nested=(), holder=HOLDER, now=now)
        reserved = time.monotonic()
        publisher.publish(changeset, holder=HOLDER, now=now)
        ended = time.monotonic()
    files = load.streams * load.files
    taken = ended - began
    measured = MeasuredLoad(load.access, load.bytes, files, 0, taken, taken, series=over_time.series())
    return measured, {"prepare": prepared - began, "reserve": reserved - prepared, "publish": ended - reserved}


@dataclass(slots=True)
class _OverTime:
    """How many bytes were read in each second; ends a publication that takes too long."""

    step: str
    began: float
    limit_s: float
    _read: dict[int, int] = field(default_factory=dict)

    def __call__(self, progress: PrepareProgress) -> None:
        second = int(time.monotonic() - self.began)
        if second > self.limit_s:
            raise RUNNER_FAILED(self.step, f"the publication did not end within {self.limit_s:.0f} s")
        self._read[second] = progress.bytes

    def series(self) -> tuple[SeriesPoint, ...]:
        found, before = [], 0
        for second, total in sorted(self._read.items()):
            found.append(SeriesPoint(second, float(total - before)))
            before = total
        return tuple(found)


@contextmanager
def _gateway(subject: str, store: Store, signer: keys.Signer) -> Iterator[GatewayClient]:
    """Our gateway on a free port of this machine, for one repository; it ends with the publication, or with us."""
    key = AcceptedKey(KEY_ID, secrets.token_hex())
    answers: SimpleQueue[str | BaseException] = SimpleQueue()
    stop = threading.Event()
    interval = sys.getswitchinterval()
    with tempfile.TemporaryDirectory() as state:
        keys.save_signer(Path(state), FQRN, signer)

        def work() -> None:
            try:
                serve(partial(_served, Path(state), store, key), ready=answers.put, stop=stop)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                answers.put(error)

        thread = threading.Thread(target=work, daemon=True, name="benchmark-gateway")
        thread.start()
        try:
            url = answers.get(timeout=START_S)
            if isinstance(url, BaseException):
                raise RUNNER_FAILED(subject, f"the gateway of the run does not start ({type(url).__name__}: {url})")
            yield GatewayClient(url, key.id, key.secret)
        finally:
            stop.set()
            thread.join(START_S)
            sys.setswitchinterval(interval)


def _served(folder: Path, store: Store, key: AcceptedKey) -> ServiceConfig:
    served = RepositoryConfig(lambda: store, partial(keys.load_signer, folder, FQRN), (key,))
    return ServiceConfig(folder / "gateway.db", {FQRN: served}, port=0)
