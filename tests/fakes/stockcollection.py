"""What `cvmfs_server gc -f -l` does to a repository and prints: the rules of the stock tools, with what they leave.

The manifest is not signed again, so that it names the reflog of before; objects that no root names are never found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from include.cvmfs.commit.commit import REFLOG_KEY, load_history, read_head
from include.cvmfs.coordination.generation import STATUS_KEY
from include.cvmfs.errors import ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Reflog, RefType
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.revision.revision import Revision
from include.storage.errors import NotFound
from include.storage.store import Store

DAYS_3_S = 3 * 24 * 3600


def collected(store: Store, fqrn: str, revisions: int, *, dry_run: bool) -> str:
    """`revisions` before the current one stay, or those of 3 days; the output."""
    catalogs, manifest = CatalogCache(store), read_head(store, fqrn).manifest
    reflog = Reflog.load(store.get(REFLOG_KEY))
    times = {one.hash.digest: one.timestamp for one in reflog.refs(RefType.CATALOG)}
    said = ["Running Garbage Collection ", "  --> marking unreferenced objects [now]"]
    kept = set[bytes]()
    roots, depth, oldest = [manifest.root], 0, time.time() - DAYS_3_S
    while (previous := Revision(catalogs, roots[-1]).root.previous_revision) is not None:
        too_old = times.get(roots[-1].digest, 0) < oldest
        if (depth >= revisions if revisions else too_old) or not store.exists(previous.key):
            break
        depth += 1
        roots.append(previous)
    roots += [tag.hash.with_suffix(CATALOG) for tag in load_history(store, manifest).tags()]
    for root in roots:
        said.append(f"Preserving Revision {Revision(catalogs, root).root.revision} (then / added @ then)")
        said.append(f"├─ {root} /")
        kept |= {one.digest for one in _named(catalogs, root)}
    said.append("  --> sweeping unreferenced objects [now]")
    asked = set[bytes]()
    condemned = [one.hash for one in reflog.refs(RefType.CATALOG) if one.hash.digest not in kept]
    for number, root in enumerate(condemned, start=1):
        try:
            names = list(_named(catalogs, root))
        except ObjectMissing:
            continue
        said.append(f"Sweeping Revision {Revision(catalogs, root).root.revision} (then)")
        for name in names:
            if name.digest not in kept | asked:
                asked.add(name.digest)
                said.append(f"Sweep: {name.text}")
                if not dry_run:
                    store.delete([name.key])
        done = f"{number * 100 // len(condemned):02}%    {number} / {len(condemned)}"
        said.append(f"      - {done} unreferenced revisions removed [now]")
    if not dry_run:
        reflog.remove_all(condemned)
        store.put(REFLOG_KEY, reflog.to_bytes())
        _note(store)
    return "\n".join([*said, "  --> done garbage collecting [now]", ""])


def _named(catalogs: CatalogCache, root: ObjectHash) -> Iterator[ObjectHash]:
    yield from (name for name, _ in Revision(catalogs, root).objects_below(""))
    yield root


def _note(store: Store) -> None:
    """With the resolution of a second, and never the time of the collection before."""
    try:
        status = json.loads(store.get(STATUS_KEY))
    except NotFound:
        status = {}
    moment = time.time()
    while (text := time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(moment))) == status.get("last_gc"):
        moment += 1
    store.put(STATUS_KEY, json.dumps({**status, "last_gc": text}).encode())
