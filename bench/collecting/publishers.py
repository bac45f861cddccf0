"""Publishers who go on while a collection runs: some that swap small trees in a closed loop, and one of whose tree all
objects have just been condemned.

``python -m collecting.publishers``: a job as JSON in the first line of standard input; they publish until it ends. The
one with the condemned tree begins when a list is out. Figures as JSON; moments are Unix seconds.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.collecting import objects
from bench.gatewaying.changes import Work, prepared, reserve
from bench.publishing.places import Place
from bench.publishing.production import bench_site
from bench.publishing.repositories import FQRN, TOP
from include.cvmfs.commit.commit import read_head
from include.cvmfs.commit.edit import Edit
from include.cvmfs.coordination.generation import CollectionPhase, look
from include.cvmfs.errors import CollectionRunning, PrepareAgain
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.ingest.changeset import Changeset
from include.cvmfs.sources.tarball import TarSource
from include.gateway.client.client import GatewayClient
from include.gateway.errors import CollectionMoved
from include.site.changes import TreeToPrepare, prepare_for
from include.site.site import Site

CONDEMNED = f"{TOP}/bench/condemned"
_LOOK_S, _AGAIN_S = 0.02, 0.1


class Loops:
    """Publishers in a closed loop, each with its own destination."""

    def __init__(self, job: dict[str, Any], stop: threading.Event) -> None:
        self._job = job
        self._stop = stop
        self._place = Place(**job["place"])
        self._catalogs = CatalogCache(self._place.open())
        self.works = prepared(self._place, job["loops"], job["loops"])
        self.committed: list[float] = []
        self.lost: list[tuple[float, float]] = []
        """Attempts that were in vain since a collection went on: from the lease asked for to the refusal."""

    def run(self, work: Work) -> None:
        """Publish until it is to stop; a commit that a collector came before is made again."""
        with GatewayClient(self._job["gateway"], self._job["key_id"], self._job["secret"]) as gateway:
            turn = 0
            while not self._stop.is_set():
                began = time.time()
                try:
                    self._publish(work, work.changesets[turn % len(work.changesets)], gateway)
                except CollectionMoved:
                    self.lost.append((began, time.time()))
                    continue
                self.committed.append(time.time())
                turn += 1

    def _publish(self, work: Work, changeset: Changeset, gateway: GatewayClient) -> None:
        store = self._place.open()
        with gateway.lease(FQRN, work.destination, hostname=work.name) as lease:
            seen, manifest = look(store), read_head(store, FQRN).manifest
            edit = Edit(self._catalogs, manifest.root)
            edit.hang(changeset.reference, changeset.root_entry, changeset.statistics.total)
            new = edit.finish(int(time.time()))
            edit.close()
            for packed in new.catalogs:
                store.put(packed.hash.key, packed.data)
            gateway.commit(lease, manifest.root, new.hash, generation=seen.token)


class Condemned:
    """One publisher as nights have it; its tree is prepared before the collection, and again as often as it must be."""

    def __init__(self, job: dict[str, Any], site: Site, stop: threading.Event) -> None:
        self._site = site
        self._stop = stop
        self._tarball = _tarball(range(*job["numbers"]))
        self._changeset = self._prepared()
        self.outcome: dict[str, Any] = {}

    def run(self) -> None:
        """Wait for a list, publish, and say how long that took from the first try on."""
        store, publisher = self._site.repository_store(FQRN), self._site.publisher(FQRN)
        while not _is_out(store):
            if self._stop.wait(_LOOK_S):
                return
        began, refused, again = time.time(), 0, 0
        while True:
            try:
                publisher.publish(self._changeset, holder="condemned", now=datetime.now(UTC))
            except CollectionRunning:
                refused += 1
                time.sleep(_AGAIN_S)
            except PrepareAgain:
                again += 1
                self._changeset = self._prepared()
            else:
                break
        self.outcome = {"wait_s": time.time() - began, "began": began, "refused": refused, "prepared_again": again}

    def _prepared(self) -> Changeset:
        head, seen = self._site.head(FQRN), look(self._site.repository_store(FQRN))
        source = TarSource(io.BytesIO(self._tarball), "bench.tar")
        return prepare_for(self._site, head, seen, TreeToPrepare(CONDEMNED, source, datetime.now(UTC)))


def _is_out(store: Any) -> bool:
    generation = look(store).generation
    return generation is not None and generation.phase in (CollectionPhase.CONDEMNED, CollectionPhase.SWEEPING)


def _tarball(numbers: Iterable[int]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in numbers:
            content = objects.content(number)
            member = tarfile.TarInfo(f"file{number:09d}")
            member.size, member.mtime = len(content), 1_780_000_000
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def main() -> None:
    job, stop = json.loads(sys.stdin.readline()), threading.Event()
    with tempfile.TemporaryDirectory() as var:
        site = bench_site(Place(**job["place"]), job, Path(job["public_key"]), Path(var))
        loops, condemned = Loops(job, stop), Condemned(job, site, stop)
        reserve(
            Place(**job["place"]), Path(job["public_key"]), job, [*(one.destination for one in loops.works), CONDEMNED]
        )
        threads = [threading.Thread(target=loops.run, args=(work,)) for work in loops.works]
        threads.append(threading.Thread(target=condemned.run))
        print("ready", flush=True)
        for thread in threads:
            thread.start()
        with suppress(EOFError):
            sys.stdin.read()
        stop.set()
        for thread in threads:
            thread.join()
    print(json.dumps({"committed": sorted(loops.committed), "lost": loops.lost, "condemned": condemned.outcome}))


if __name__ == "__main__":
    main()
