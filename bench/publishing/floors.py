"""What the machine can do without any CernVM-FS work, in processes of their own: the floors to compare with.

``python -m publishing.floors KIND``: a job as JSON on standard input, seconds as JSON on standard output.

put    the very same object bytes, by bare writes, or PUT by plain obstore with as many threads as connections
files  a bare loop over the same files: read, compress, SHA-1, write under the hash; one process per processor
tar    a bare loop over the same tarball: the standard library's tarfile as a stream, and SHA-1 of each member
archive  a bare loop over the members of a tarball, whose places are known: read, compress, SHA-1, write or PUT
dry    a preparation without a store
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.publishing.machine import clocked
from bench.publishing.places import Place
from bench.publishing.repositories import FQRN
from include.cvmfs.format.objects import Compressor, compress
from include.cvmfs.ingest.prepare import PrepareOptions, prepare
from include.cvmfs.sources.tarball import TarSource
from include.storage.errors import Unsupported
from include.storage.file import FileStore
from include.storage.kinds import FILE
from include.storage.store import Counters, Store


class _Recorder(Store):
    """Takes what a preparation stores, for the floor to store again."""

    kind = FILE
    url = "file:///dev/null"

    def __init__(self, folder: Path, without: frozenset[str]) -> None:
        self.counters, self._without = Counters(), without
        self._lock = threading.Lock()
        self._data = (folder / "objects").open("wb", buffering=1 << 20)
        self._index = (folder / "index").open("w")

    def put(self, key: str, data: bytes) -> None:
        if key in self._without:
            return
        with self._lock:
            self._index.write(f"{key} {len(data)}\n")
            self._data.write(data)

    def close(self) -> None:
        self._data.close()
        self._index.close()

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Unsupported("it only records", key="")

    get = get_versioned = get_range = stream = head = put_if_absent = replace = list = delete = child = _refuse


def record(job: dict[str, Any]) -> float:
    """Write down all objects of a publication, but for those of the one in `without`, outside of any clock."""
    folder = Path(job["folder"])
    folder.mkdir(exist_ok=True)
    earlier = Path(job["without"], "index").read_text().split()[::2] if job.get("without") else []
    store = _Recorder(folder, frozenset(earlier))
    with Path(job["tarball"]).open("rb") as stream:
        prepare(
            TarSource(stream, "bench.tar"), store=store, fqrn=FQRN, destination=job["destination"],
            now=datetime.now(UTC), options=PrepareOptions(compressor=Compressor(job["compressor"])),
        )  # fmt: skip
    store.close()
    return 0.0


def put_objects(job: dict[str, Any]) -> float:
    """Seconds for the recorded objects."""
    place, folder = Place(**job["place"]), Path(job["folder"])
    put_object = _put_file(place) if place.is_file else _put_object(place)
    with (folder / "objects").open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    index = (folder / "index").read_text().split()

    def put(task: tuple[str, int, int]) -> None:
        key, start, end = task
        put_object(key.removeprefix("data/").replace("/", ""), data[start:end])

    return clocked(put, _slices(index), 1 if place.is_file else place.connections)


def _slices(index: list[str]) -> Iterator[tuple[str, int, int]]:
    at = 0
    for key, size in zip(index[::2], index[1::2], strict=True):
        yield key, at, at + int(size)
        at += int(size)


def store_files(job: dict[str, Any]) -> float:
    """Seconds for one worker's share of the files; it waits for a line before it begins."""
    target, compressor = job["target"], Compressor(job["compressor"])
    for number in range(256):
        os.makedirs(f"{target}/{number:02x}", exist_ok=True)  # noqa: PTH103
    files = Path(job["list"]).read_text().split("\n")[job["worker"] :: job["workers"]]
    compress(b"first", compressor)  # loads its library
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    for path in files:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            data = file.read()
        packed = compress(data, compressor)
        name = hashlib.sha1(packed).hexdigest()
        with open(f"{target}/{name[:2]}/{name[2:]}", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(packed)
    return time.monotonic() - started


def hash_tarball(job: dict[str, Any]) -> float:
    """Seconds for reading and hashing every member."""
    started = time.monotonic()
    with Path(job["tarball"]).open("rb", buffering=0) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                hashlib.sha1(content.read()).digest()
    return time.monotonic() - started


def store_members(job: dict[str, Any]) -> float:
    """Seconds for one worker's share of the members of an archive; all workers begin at one time."""
    place, compressor = Place(**job["place"]), Compressor(job["compressor"])
    members = json.loads(Path(job["places"]).read_text())[job["worker"] :: job["workers"]]
    put = _put_file(place) if place.is_file else _put_object(place)
    archive = os.open(job["archive"], os.O_RDONLY)

    def store(member: tuple[int, int]) -> None:
        packed = compress(os.pread(archive, member[1], member[0]), compressor)
        put(hashlib.sha1(packed, usedforsecurity=False).hexdigest(), packed)

    compress(b"first", compressor)  # loads its library
    time.sleep(max(0.0, job["begin"] - time.time()))
    return clocked(store, members, 1 if place.is_file else place.connections // job["workers"])


def _put_file(place: Place) -> Callable[[str, bytes], None]:
    root = place.url.removeprefix("file://")
    for number in range(256):
        os.makedirs(f"{root}/{number:02x}", exist_ok=True)  # noqa: PTH103

    def put(name: str, data: bytes) -> None:
        with open(f"{root}/{name[:2]}/{name[2:]}", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(data)

    return put


def _put_object(place: Place) -> Callable[[str, bytes], None]:
    import obstore

    store, prefix = _s3(place)

    def put(name: str, data: bytes) -> None:
        obstore.put(store, f"{prefix}/{name[:2]}/{name[2:]}", data)

    return put


def _s3(place: Place) -> tuple[Any, str]:
    from obstore.store import S3Store

    bucket, _, prefix = place.url.removeprefix("s3://").partition("/")
    store = S3Store(
        bucket, endpoint=place.endpoint, region="us-east-1", access_key_id=place.access_key,
        secret_access_key=place.secret_key, virtual_hosted_style_request=False,
        client_options={"allow_http": True, "pool_max_idle_per_host": str(place.connections)},
    )  # fmt: skip
    return store, prefix


def prepare_dry(job: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of a preparation that stores nothing, in this process, and the bytes that it would store."""
    options = PrepareOptions(compressor=Compressor(job["compressor"]))
    started, before = time.monotonic(), time.process_time()
    with Path(job["tarball"]).open("rb", buffering=0) as stream:
        made = prepare(
            TarSource(stream, "bench.tar"), store=FileStore(Path(os.devnull)), fqrn=FQRN, destination="/bench",
            now=datetime.now(UTC), options=options, dry_run=True,
        )  # fmt: skip
    return {
        "seconds": time.monotonic() - started, "cpu_s": time.process_time() - before, "stored": made.bytes_uploaded
    }  # fmt: skip


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "record": record, "put": put_objects, "files": store_files, "tar": hash_tarball, "archive": store_members,
    "dry": prepare_dry,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](json.loads(sys.stdin.readline()))))
