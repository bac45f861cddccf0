"""Repairs of what a crash or an accident leaves behind and a commit cannot heal by itself."""

from __future__ import annotations

from include.cvmfs.catalogs import CatalogCache
from include.cvmfs.commit import REFLOG_KEY, Head, load_history, named_by, publish, read_head
from include.cvmfs.errors import FormatError, ObjectMissing
from include.cvmfs.hashes import CATALOG, ObjectHash
from include.cvmfs.history import History
from include.cvmfs.keys import Signer
from include.cvmfs.manifest import Manifest
from include.cvmfs.objects import load
from include.cvmfs.records import Records
from include.cvmfs.reflog import Reflog, RefType
from include.cvmfs.vouching import Voucher
from include.storage.errors import NotFound
from include.storage.store import Store


def repair_reflog(
    store: Store, fqrn: str, *, signer: Signer, now: int, voucher: Voucher | None = None
) -> tuple[Head, int]:
    """Write the reflog anew from what the manifest leads to, and sign a manifest that names it; no revision is made.

    What a readable reflog holds already is kept, with its times; new rows get ``now`` (Unix s). Returns the new head
    and how many references were added. Raises ManifestConflict when a commit came in between.
    """
    head = read_head(store, fqrn, voucher or Voucher(signer))
    reflog, known = _what_is_left(store, fqrn)
    for name, kind in _reachable(store, head.manifest):
        if not reflog.contains(name):
            reflog.add(name, kind, now)
    store.put(REFLOG_KEY, reflog.to_bytes())
    added = len(reflog) - known
    return publish(store, head, head.manifest, signer=signer, now=now), added


def adopt_reflog(store: Store, fqrn: str, *, signer: Signer, now: int, voucher: Voucher | None = None) -> bool:
    """Sign a manifest that names the reflog which a crash left ahead of it; whether there was one. No revision is made.

    ``now``: Unix s. Raises ReflogError for one that lacks what the manifest names, ManifestConflict, StoreError.
    """
    head = read_head(store, fqrn, voucher or Voucher(signer))
    if Records().take_reflog(store, head.manifest).is_of(head.manifest):
        return False
    publish(store, head, head.manifest, signer=signer, now=now)
    return True


def _what_is_left(store: Store, fqrn: str) -> tuple[Reflog, int]:
    try:
        reflog = Reflog.load(store.get(REFLOG_KEY))
        reflog.refs()
    except (NotFound, FormatError):
        return Reflog.create(fqrn), 0
    return reflog, len(reflog)


def _reachable(store: Store, manifest: Manifest) -> list[tuple[ObjectHash, RefType]]:
    """The manifest's own references, its line of earlier revisions and histories, and every tag."""
    found = dict(named_by(manifest))
    catalogs = CatalogCache(store)
    roots = [manifest.root, *(tag.hash for tag in load_history(store, manifest).tags())]
    while roots:
        root: ObjectHash | None = roots.pop().with_suffix(CATALOG)
        while root is not None and (root not in found or root == manifest.root):
            try:
                previous = catalogs.open_nested("", root).previous_revision
            except ObjectMissing:
                break  # collected before
            found[root] = RefType.CATALOG
            root = previous if previous != manifest.root else None
    history = manifest.history
    while history is not None:
        try:
            earlier = History.load(load(store, history)).previous_revision
        except ObjectMissing:
            break
        found[history] = RefType.HISTORY
        history = earlier if earlier not in found else None
    return list(found.items())
