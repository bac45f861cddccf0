"""The stores and the gateway that a run publishes through, brought up for it and taken away after it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.publishing.gateway import KEY_ID, SECRET
from bench.publishing.machine import ROOT
from bench.publishing.places import Place
from include.storage.buckets import ensure_bucket
from include.storage.open import Credentials
from lab.servers.s3 import S3Server
from lab.servers.weed import WeedServer

BUCKET = "bench"
_CREDENTIALS = Credentials("benchkey", "benchsecret")


@contextmanager
def store(kind: str, folder: Path, connections: int) -> Iterator[Place]:
    """A place for objects: ``weed``, ``radosgw``, ``file`` (on tmpfs), or any ``file:///`` URL."""
    if kind == "file" or kind.startswith("file:"):
        root = Path("/dev/shm" if kind == "file" else kind.removeprefix("file://")) / f"nightshift-bench-{folder.name}"
        try:
            yield Place(root.as_uri(), connections=connections)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return
    with ExitStack() as stack:
        server = _server(kind, folder)
        stack.enter_context(server)
        place = Place(
            f"s3://{BUCKET}", server.endpoint, server.credentials.access_key, server.credentials.secret_key, connections
        )
        ensure_bucket(place.url, server.credentials, server.options())
        yield place


def _server(kind: str, folder: Path) -> S3Server:
    if kind == "weed":
        return WeedServer(folder / "weed", credentials=_CREDENTIALS)
    if kind == "radosgw":
        try:
            from lab.servers.radosgw import RadosgwServer
        except ImportError:
            sys.exit("STORE=radosgw: there is no radosgw in the lab of this version; use STORE=weed or STORE=file")
        return RadosgwServer(folder / "ceph", credentials=_CREDENTIALS)
    sys.exit(f"STORE={kind}: use weed, radosgw, file, or file:///folder")


@contextmanager
def gateway(place: Place, keys: Path, state: Path, silent: str | None = None) -> Iterator[dict[str, str]]:
    """The gateway service for the repository at a place; gives what its clients need.

    ``silent``: where the store of a second repository never answers.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.publishing.gateway"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        job = {"keys": str(keys), "place": place.as_json(), "state": str(state), "silent": silent}
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        url = process.stdout.readline().decode().strip()
        if not url:
            raise RuntimeError("the gateway did not start")
        yield {"gateway": url, "key_id": KEY_ID, "secret": SECRET}
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
