"""One collection as a process of its own, so that its memory is its own: a job on standard input, figures at the end.

It is made as the site makes it, with the keys of its roles. ``dry_run`` deletes nothing. Moments are Unix seconds.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.publishing.places import Place
from bench.publishing.production import bench_site
from bench.publishing.repositories import FQRN
from include.cvmfs.collect.report import CollectionOptions, CollectionReport, CollectionRules
from include.settings.traits import record_traits, recorded_traits
from include.site.collecting import collect
from include.site.site import Site, try_store
from include.storage.buckets import Role

_NO_GATEWAY = {"gateway": "http://127.0.0.1:1", "key_id": "none", "secret": "none"}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Collect, or look what would go; the report, when it began and ended, and the memory."""
    roles = {role: Place(**job[role.value]) for role in (Role.GATEWAY, Role.COLLECTOR)}
    site = bench_site(
        Place(**job["publisher"]), _NO_GATEWAY, Path(job["public_key"]), Path(job["var"]), roles, Path(job["keys"])
    )
    _try_once(site)
    rules = CollectionRules(
        grace=timedelta(hours=job["grace_h"]), careful=False, largest_loss=1.0, all_orphans=job["orphans"]
    )
    began = time.time()
    report = collect(site, FQRN, CollectionOptions("bench", rules, dry_run=job["dry_run"]))
    if not isinstance(report, CollectionReport):
        raise RuntimeError(f"nothing to collect: {report.reason}")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # it may be over before it is sampled
    return {"report": report.as_dict(), "began": began, "ended": time.time(), "rss_mb": peak_mb}


def _try_once(site: Site) -> None:
    """What `settings check` does: the conditions that a store keeps are known before anything is collected."""
    store = site.settings.store("bench")
    if recorded_traits(site.ledger, store) is None and (seen := try_store(site.settings, site.secrets, store.name)):
        record_traits(site.ledger, store, seen, now=datetime.now(UTC))


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.stdin.readline()))))
