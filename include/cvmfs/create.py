"""A new repository: whitelist, certificate, meta info, root catalog, tags, reflog and manifest."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.catalog import DEFAULT_TTL_S, Catalog
from include.cvmfs.commit import MANIFEST_KEY, Head, first_reflog, store_all, store_compressed, store_meta
from include.cvmfs.dirent import Dirent
from include.cvmfs.errors import RepositoryError
from include.cvmfs.hashes import CATALOG, CERTIFICATE, HISTORY, Algorithm, ObjectHash
from include.cvmfs.history import History, Tag
from include.cvmfs.keys import Signer, fingerprint
from include.cvmfs.manifest import Manifest, sign
from include.cvmfs.metainfo import skeleton
from include.cvmfs.whitelist import DEFAULT_VALIDITY, Whitelist
from include.cvmfs.whitelist import sign as sign_whitelist
from include.storage.errors import Conflict
from include.storage.store import Store

WHITELIST_KEY = ".cvmfswhitelist"
REPLICATION_KEY = ".cvmfs_master_replica"
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
    ttl: int = DEFAULT_TTL_S,
    validity: timedelta = DEFAULT_VALIDITY,
) -> Head:
    """Create an empty repository at revision 0 in an empty store.

    The master key signs the whitelist and is not needed again until that expires. Raises RepositoryError if a
    repository is there already. A creation that died half way may be repeated: the manifest is written last.
    """
    if store.exists(MANIFEST_KEY):
        raise RepositoryError(fqrn, f"{store.url} holds a repository already; choose another store or remove it")
    seconds = int(now.timestamp())
    whitelist = Whitelist(fqrn, now, now + validity, (fingerprint(signer.certificate_pem, algorithm, fqrn),))
    store.put(WHITELIST_KEY, sign_whitelist(whitelist, master, algorithm))
    store.put(REPLICATION_KEY, b"")
    catalog = Catalog.create("", _ROOT.changed(mtime=seconds))
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
        certificate=store_compressed(store, signer.certificate_pem, like, CERTIFICATE),
        history=store_compressed(store, history.to_bytes(), like, HISTORY),
        meta=store_meta(store, skeleton(), like),
    )
    manifest = replace(manifest, reflog=first_reflog(store, manifest, seconds))
    try:
        version = store.replace(MANIFEST_KEY, sign(manifest, signer.private_key), expected=None)
    except Conflict:
        raise RepositoryError(fqrn, "somebody else created it at the same time") from None
    return Head(manifest, version)
