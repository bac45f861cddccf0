"""The publisher as a process of its own, so that its processor time and memory are its own: prepare, reserve, publish.

A job as JSON on standard input, the outcome as JSON on standard output. The clock runs from the opening of the
repository, the ledger being open, to the confirmed publication; processor time counts from the start of the program.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.publishing.places import Place
from bench.publishing.production import bench_site
from bench.publishing.repositories import FQRN
from include.cvmfs.coordination.generation import look
from include.cvmfs.sources.tarball import TarSource
from include.site.changes import TreeToPrepare, journal_of, prepare_for


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """One publication as the nightly's steps do it. Returns figures."""
    site = bench_site(Place(**job["place"]), job, Path(job["public_key"]), Path(job["var"]))
    store = site.repository_store(FQRN)
    started = time.monotonic()
    seen, head = look(store), site.head(FQRN)
    with Path(job["tarball"]).open("rb", buffering=0) as stream:
        source = TarSource(stream, "bench.tar")
        tree = TreeToPrepare(job["destination"], source, datetime.now(UTC), known_from=tuple(job["earlier"]))
        with journal_of(site, FQRN, seen, tree, source.name) or nullcontext() as journal:
            changeset = prepare_for(site, head, seen, tree, journal)
            if journal is not None:
                journal.remove()
    prepared, peak_prepared = time.monotonic(), _peak_mb()
    heads_of_prepare = store.counters.heads
    publisher = site.publisher(FQRN)
    reserved = publisher.reserve([changeset.destination], nested=(), holder="bench", now=datetime.now(UTC))
    at_reserved = time.monotonic()
    published = publisher.publish(changeset, holder="bench", now=datetime.now(UTC))
    ended = time.monotonic()
    counters = store.counters
    own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": ended - started,
        "phases": {"prepare": prepared - started, "reserve": at_reserved - prepared, "publish": ended - at_reserved},
        "peaks_mb": {"prepare": peak_prepared, "publish": _peak_mb()},
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
