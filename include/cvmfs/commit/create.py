"""A new repository: whitelist, certificate, meta info, root catalog, tags, reflog and manifest."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.commit.commit import MANIFEST_KEY, Head, first_reflog, store_meta
from include.cvmfs.commit.metadata_objects import store_all, store_compressed
from include.cvmfs.errors import FormatError, RepositoryError, TrustError
from include.cvmfs.format.catalog import DEFAULT_TTL_S, Catalog
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, Algorithm, ObjectHash
from include.cvmfs.format.history import History, Tag
from include.cvmfs.format.keys import Signer, fingerprint
from include.cvmfs.format.layout import Layout
from include.cvmfs.format.manifest import Manifest, sign
from include.cvmfs.format.metainfo import skeleton
from include.cvmfs.format.whitelist import DEFAULT_VALIDITY, Whitelist
from include.cvmfs.format.whitelist import sign as sign_whitelist
from include.cvmfs.format.whitelist import verify as verify_whitelist
from include.storage.errors import Conflict
from include.storage.store import Store

WHITELIST_KEY = ".cvmfswhitelist"
REPLICATION_KEY = ".cvmfs_master_replica"
_MAY_BE_ALIVE = timedelta(days=1)
_ROOT = Dirent("", stat.S_IFDIR | 0o755, size=4096, linkcount=2)


def create_repository(
    store: Store,
    fqrn: str,
    *,
    master: RSAPrivateKey,
    signer: Signer,
    now: datetime,
    algorithm: Algorithm = Algorithm.SHA1,
    garbage_collectable: bool = True,
    mtime_ns: bool = False,
    ttl: int = DEFAULT_TTL_S,
    validity: timedelta = DEFAULT_VALIDITY,
) -> Head:
    """Create an empty repository at revision 0 in an empty store.

    ``mtime_ns``: its catalogs have a column for nanoseconds, which stock publishers up to 2.11 do not write.
    The master key signs the whitelist and is not needed again until that expires. Raises RepositoryError if a
    repository is there already, or another creation with other keys came first. The whitelist is written first: its
    time is the repository's, so that a creation that died may be repeated with its keys, even beside itself, and makes
    the same bytes. The manifest is written last.
    """
    if store.exists(MANIFEST_KEY):
        raise RepositoryError(fqrn, f"{store.url} holds a repository already; choose another store or remove it")
    whitelist = Whitelist(fqrn, now, now + validity, (fingerprint(signer.certificate_pem, algorithm, fqrn),))
    seconds = int(_claimed(store, whitelist, master, signer).timestamp())
    store.put(REPLICATION_KEY, b"")
    catalog = Catalog.create("", _ROOT.changed(mtime=seconds), Layout.MTIME_NS if mtime_ns else Layout.PLAIN)
    catalog.set_property("TTL", ttl)
    catalog.set_property("last_modified", seconds)
    packed = catalog.pack(algorithm)
    store_all(store, [(packed.hash.key, packed.data)])
    history = History.create(fqrn)
    history.rotate_trunk(Tag("", packed.hash, 0, seconds, packed.size, ""))
    like = ObjectHash(bytes(20), algorithm, CATALOG)
    manifest = Manifest(
        root=packed.hash,
        root_size=packed.size,
        ttl=ttl,
        revision=0,
        garbage_collectable=garbage_collectable,
        fqrn=fqrn,
        timestamp=seconds,
        certificate=store_compressed(store, signer.certificate_pem, like, CERTIFICATE).hash,
        history=store_compressed(store, history.to_bytes(), like, HISTORY).hash,
        meta=store_meta(store, skeleton(), like),
    )
    manifest = replace(manifest, reflog=first_reflog(store, manifest, seconds))
    try:
        version = store.replace(MANIFEST_KEY, sign(manifest, signer.private_key), expected=None)
    except Conflict:
        raise RepositoryError(fqrn, f"was created in {store.url} by another process at the same time") from None
    return Head(manifest, version)


def _claimed(store: Store, whitelist: Whitelist, master: RSAPrivateKey, signer: Signer) -> datetime:
    """Write the whitelist unless it is there; when the creation with these keys began. Raises RepositoryError."""
    fqrn, signed = whitelist.fqrn, sign_whitelist(whitelist, master, whitelist.fingerprints[0].hash.algorithm)
    try:
        store.replace(WHITELIST_KEY, signed, expected=None)
    except Conflict:
        data, version = store.get_versioned(WHITELIST_KEY)
    else:
        return whitelist.issued
    try:
        found = Whitelist.parse(data)
        verify_whitelist(
            found, [master.public_key()], fqrn=fqrn, now=found.whitelist.issued, certificate=signer.certificate_pem
        )
    except (FormatError, TrustError):
        raise RepositoryError(
            fqrn,
            f"{store.url} holds a whitelist that was not signed with these keys: it is being created with others; if "
            f"that creation died, repeat it with its keys, or remove {WHITELIST_KEY} and create it again",
        ) from None
    if abs(whitelist.issued - found.whitelist.issued) < _MAY_BE_ALIVE:
        return found.whitelist.issued
    try:
        store.replace(WHITELIST_KEY, signed, expected=version)
    except Conflict:
        raise RepositoryError(fqrn, f"is being created in {store.url} by another process; run again") from None
    return whitelist.issued
