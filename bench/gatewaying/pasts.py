"""Repositories that have seen many revisions: their number, what the reflog keeps of each, and tags."""

from __future__ import annotations

import random
import time

from bench.publishing.repositories import EMPTY, FQRN, TOP, Templates
from include.cvmfs.commit.commit import REFLOG_KEY, NewTag, read_head, switch
from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import Ref, Reflog, RefType
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import SHA1, ObjectHash
from include.cvmfs.format.keys import load_signer
from include.storage.store import Store

_KINDS = (RefType.CATALOG, RefType.CATALOG, RefType.HISTORY)  # rows that a commit leaves in the reflog
_DIRECTORY = Dirent("", 0o40755, size=4096, mtime=1_780_000_000, linkcount=2)


def age(templates: Templates, store: Store, *, revisions: int, tags: int) -> None:
    """An empty repository that has come as far as revision ``revisions``; one slot stands in it."""
    templates.copy(EMPTY, store)
    signer, now = load_signer(templates.keys, FQRN), int(time.time())
    if revisions:
        draw = random.Random(revisions)
        reflog = Reflog.load(store.get(REFLOG_KEY))
        kinds = [kind for _ in range(revisions) for kind in _KINDS]
        reflog.add_all(
            [Ref(ObjectHash(draw.randbytes(20), SHA1, kind.suffix), kind, now - revisions) for kind in kinds]
        )
        store.put(REFLOG_KEY, reflog.to_bytes())
    head = read_head(store, FQRN)
    edit = Edit(CatalogCache(store), head.manifest.root)
    edit.make_nested(TOP, _DIRECTORY)
    edit.make_nested(f"{TOP}/slot00", _DIRECTORY)
    if revisions:
        edit.root.set_property("revision", revisions - 1)
    made = [NewTag(f"build-{number:05d}", "a build of the past") for number in range(tags)]
    switch(store, head, edit.finish(now), signer=signer, now=now, tags=made)
