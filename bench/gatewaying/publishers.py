"""Publishers in a closed loop, many to a process, each with its own connection to the gateway and its own destination.

A turn is the protocol of the native publisher: lease, collection generation, manifest (verified), new root computed on
it (the destination's catalog swapped for the next prepared one), new catalogs stored, commit, acknowledged. Left out is
what a publisher does for itself before and after: preparing the tree, and looking once more at what it published.
Publishers of one process share the catalogs that they have read, and verify a manifest once for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gatewaying.changes import Work
from bench.gatewaying.processes import serve
from bench.publishing.places import Place
from bench.publishing.repositories import FQRN
from include.cvmfs.commit.commit import MANIFEST_KEY
from include.cvmfs.commit.edit import Edit
from include.cvmfs.coordination.generation import look
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.revision.repository import Repository
from include.gateway.client.client import GatewayClient
from include.gateway.errors import GatewayError


class Publishers:
    """All publishers of a process. ``turns``: how often each publishes at most; 0: until the time is over."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._store = Place(**job["place"]).open()
        self._catalogs = CatalogCache(self._store)
        self._public_key = Path(job["public_key"]).read_bytes()
        self._seen: tuple[bytes, Manifest] | None = None
        self._reading = threading.Lock()
        self._acknowledged: list[dict[str, Any]] = []
        self._failures: list[str] = []
        self._works = [Work.from_json(one) for one in job["works"]]
        self._manifest()

    def run(self) -> dict[str, Any]:
        """Publish; every acknowledged commit with its times, in seconds since the beginning."""
        self._began, cpu = time.monotonic(), time.process_time()
        threads = [threading.Thread(target=self._loop, args=(work,)) for work in self._works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cpu = time.process_time() - cpu
        return {"acknowledged": self._acknowledged, "failures": self._failures, "cpu_s": cpu}

    def _loop(self, work: Work) -> None:
        turn, most = 0, self._job["turns"]
        with GatewayClient(self._job["gateway"], self._job["key_id"], self._job["secret"]) as gateway:
            while time.monotonic() - self._began < self._job["seconds"] and not (most and turn >= most):
                try:
                    self._acknowledged.append(self._turn(work, work.turn + turn, gateway))
                except GatewayError as error:
                    self._failures.append(f"{work.name}: {type(error).__name__}: {error}")
                    return
                turn += 1

    def _turn(self, work: Work, turn: int, gateway: GatewayClient) -> dict[str, Any]:
        changeset = work.changesets[turn % len(work.changesets)]
        started = time.monotonic()
        lease = gateway.acquire(FQRN, work.destination, hostname=work.name)
        leased = time.monotonic()
        seen, manifest = look(self._store), self._manifest()
        edit = Edit(self._catalogs, manifest.root)
        edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)
        new = edit.finish(int(time.time()))
        edit.close()
        for packed in new.catalogs:
            self._store.put(packed.hash.key, packed.data)
        sent = time.monotonic()
        revision = gateway.commit(lease, manifest.root, new.hash, generation=seen.token)
        done = time.monotonic()
        return {
            "destination": work.destination,
            "root": changeset.root.text,
            "revision": revision,
            "at": done - self._began,
            "publish_ms": 1000 * (done - started),
            "lease_ms": 1000 * (leased - started),
            "own_ms": 1000 * (sent - leased),
            "commit_ms": 1000 * (done - sent),
        }

    def _manifest(self) -> Manifest:
        """The current manifest, verified with the public key alone; the same bytes are verified once."""
        data = self._store.get(MANIFEST_KEY)
        with self._reading:
            if self._seen is None or self._seen[0] != data:
                repository = Repository.open(self._store, fqrn=FQRN, public_keys=[self._public_key])
                self._seen = data, repository.manifest
            return self._seen[1]


def _prepare(job: dict[str, Any]) -> Callable[[], Any]:
    return Publishers(job).run


if __name__ == "__main__":
    serve(_prepare)
