"""Repairs of what a crash or an accident leaves behind and a commit cannot heal by itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from include.cvmfs.commit.commit import ATTEMPTS, REFLOG_KEY, Head, load_history, named_by, publish, read_head
from include.cvmfs.commit.manifest_verifier import Voucher
from include.cvmfs.commit.metadata_cache import Records
from include.cvmfs.commit.metadata_objects import store_compressed
from include.cvmfs.commit.stock_checksum import keep_checksum
from include.cvmfs.errors import FormatError, ManifestConflict, ObjectDamaged, ObjectMissing
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, META, ObjectHash
from include.cvmfs.format.history import History
from include.cvmfs.format.keys import ManifestSigner
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.metainfo import skeleton
from include.cvmfs.format.objects import load
from include.cvmfs.format.reflog import Reflog, RefType
from include.storage.errors import Conflict, NotFound
from include.storage.store import Store, Version

T = TypeVar("T")


def repair_reflog(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: Voucher | None = None
) -> tuple[Head, int]:
    """Rebuild the reflog from what the manifest leads to, and sign a manifest that names it; no revision is made.

    What a readable reflog holds already is kept, with its times; new rows get ``now`` (Unix s). Returns the new head
    and how many references were added. A commit beside it loses nothing: the repair then begins again on its result.
    Raises ManifestConflict when others keep being faster.
    """

    def rebuild(head: Head) -> tuple[Head, int]:
        reflog, known, version = _what_is_left(store, fqrn)
        for name, kind in _reachable(store, head.manifest):
            if not reflog.contains(name):
                reflog.add(name, kind, now)
        try:
            store.replace(REFLOG_KEY, reflog.to_bytes(), expected=version)
        except Conflict:
            raise ManifestConflict(fqrn, "another writer is replacing the reflog; read it again") from None
        added = len(reflog) - known
        return publish(store, head, head.manifest, signer=signer, now=now), added

    return _until_first(store, fqrn, signer, voucher, rebuild)


def repair_metadata(
    store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: Voucher | None = None
) -> tuple[Head, bool]:
    """Store the certificate again, and an empty meta info where the repository's is lost; no revision is made.

    Returns the new head and whether the meta info was lost. ``now``: Unix s. Raises ManifestConflict, StoreError.
    """

    def mend(head: Head) -> tuple[Head, bool]:
        draft, lost = head.manifest, False
        store_compressed(store, signer.certificate_pem, draft.root, CERTIFICATE, again=True)
        if draft.meta is not None:
            try:
                load(store, draft.meta)
            except (ObjectMissing, ObjectDamaged):
                empty = store_compressed(store, skeleton(), draft.root, META, again=True)
                draft, lost = replace(draft, meta=empty.hash), True
        return publish(store, head, draft, signer=signer, now=now), lost

    return _until_first(store, fqrn, signer, voucher, mend)


def adopt_reflog(store: Store, fqrn: str, *, signer: ManifestSigner, now: int, voucher: Voucher | None = None) -> bool:
    """Sign a manifest that names the reflog which a crash left ahead of it; whether there was one. No revision is made.

    ``now``: Unix s. Raises ReflogError for one that lacks what the manifest names, ManifestConflict, StoreError.
    """

    def adopt(head: Head) -> bool:
        reflog = Records().take_reflog(store, head.manifest)
        if reflog.is_of(head.manifest):
            if signer.reflog_checksum is not None:  # a crash may have come between the manifest and this file
                keep_checksum(signer.reflog_checksum, reflog.hash)
            return False
        publish(store, head, head.manifest, signer=signer, now=now)
        return True

    return _until_first(store, fqrn, signer, voucher, adopt)


def _until_first(
    store: Store, fqrn: str, signer: ManifestSigner, voucher: Voucher | None, attempt: Callable[[Head], T]
) -> T:
    """Try on the current head until no other writer comes first: one who lost has left a reflog ahead of the manifest.

    Raises the last ManifestConflict when others keep being faster.
    """
    voucher = voucher or Voucher(signer)
    for _ in range(ATTEMPTS - 1):
        with suppress(ManifestConflict):
            return attempt(read_head(store, fqrn, voucher))
    return attempt(read_head(store, fqrn, voucher))


def _what_is_left(store: Store, fqrn: str) -> tuple[Reflog, int, Version | None]:
    """The reflog to go on from, how many references it has, and the version that it replaces."""
    try:
        data, version = store.get_versioned(REFLOG_KEY)
    except NotFound:
        return Reflog.create(fqrn), 0, None
    try:
        reflog = Reflog.load(data)
        reflog.refs()
    except FormatError:
        return Reflog.create(fqrn), 0, version
    return reflog, len(reflog), version


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
