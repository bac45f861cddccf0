"""The publisher as a process of its own, so that its processor time and memory are its own: prepare, reserve, publish.

A job as JSON on standard input, the outcome as JSON on standard output. The clock runs from the opening of the
repository to the confirmed publication; processor time counts from the start of the interpreter.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from publishing.places import Place
from publishing.production import production_publisher
from publishing.repositories import FQRN

from include.cvmfs.format.digests import DigestSet
from include.cvmfs.ingest.prepare import Base, PrepareOptions, prepare
from include.cvmfs.revision.needed_objects import known_objects
from include.cvmfs.revision.repository import Repository
from include.cvmfs.sources.tarball import TarSource
from include.gateway.client.client import GatewayClient


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """One publication as the nightly's steps do it. Returns figures."""
    store = Place(**job["place"]).open()
    public_key = Path(job["public_key"])
    started = time.monotonic()
    repository = Repository.open(store, fqrn=FQRN, public_keys=[public_key.read_bytes()], now=datetime.now(UTC))
    known = known_objects(repository.revision, tuple(job["earlier"])) if job["earlier"] else DigestSet()
    at_known, peak_known = time.monotonic(), _peak_mb()
    with Path(job["tarball"]).open("rb", buffering=0) as stream:
        changeset = prepare(
            TarSource(stream, "bench.tar"),
            store=store,
            fqrn=FQRN,
            destination=job["destination"],
            now=datetime.now(UTC),
            options=PrepareOptions(
                connections=job["place"]["connections"], index=Path(job["index"]) if job["index"] else None
            ),
            known=known,
            base=Base(repository.manifest.root, repository.manifest.revision),
        )
    prepared, peak_prepared = time.monotonic(), _peak_mb()
    heads_of_prepare = store.counters.heads
    with GatewayClient(job["gateway"], job["key_id"], job["secret"]) as gateway:
        publisher = production_publisher(store, gateway, public_key)
        destination = changeset.destination
        reserved = publisher.reserve([destination], nested=(), holder="bench", now=datetime.now(UTC))
        at_reserved = time.monotonic()
        published = publisher.publish(changeset, holder="bench", now=datetime.now(UTC))
    ended = time.monotonic()
    counters = store.counters
    own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": ended - started,
        "phases": {
            "known": at_known - started,
            "prepare": prepared - at_known,
            "reserve": at_reserved - prepared,
            "publish": ended - at_reserved,
        },
        "peaks_mb": {"known": peak_known, "prepare": peak_prepared, "publish": _peak_mb()},
        "heads_of_prepare": heads_of_prepare,
        "files": changeset.files,
        "catalogs": changeset.catalogs,
        "objects_new": changeset.objects_new,
        "objects_reused": changeset.objects_reused,
        "puts": counters.puts,
        "heads": counters.heads,
        "retries": dict(counters.retries),
        "lease_held_s": published.lease_held_s,
        "reserve_lease_held_s": reserved.lease_held_s,
        "publish_phases": dict(published.phases),
        "cpu_s": own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime,
        "root": str(changeset.root),
    }


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    print(json.dumps(publish(json.loads(sys.stdin.read()))))
