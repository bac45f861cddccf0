"""A new repository; its keys taken over from the stock tools; its whitelist and manifest signed again."""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.commit.commit import MANIFEST_KEY, Head, first_reflog, read_head
from include.cvmfs.commit.metadata_objects import store_all, store_compressed
from include.cvmfs.errors import FormatError, KeyFileError, RepositoryError, SignatureError, TrustError, WhitelistError
from include.cvmfs.format import whitelist as whitelists
from include.cvmfs.format.catalog import DEFAULT_TTL_S, Catalog
from include.cvmfs.format.database import History, Tag
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, Algorithm, ObjectHash
from include.cvmfs.format.keys import (
    Certificate,
    KeyFile,
    Scheme,
    Signer,
    fingerprint,
    load_gateway_key,
    load_master,
    load_signer,
    parse_certificate,
    parse_public_keys,
    save_key_file,
)
from include.cvmfs.format.layout import Layout, skeleton
from include.cvmfs.format.manifest import Manifest, sign
from include.cvmfs.format.whitelist import (
    DEFAULT_VALIDITY,
    Whitelist,
    lists,
    sign as sign_whitelist,
    verify as verify_whitelist,
)
from include.cvmfs.revision.repository import Repository, load_certificate
from include.storage.errors import Conflict, NotFound, Unsupported
from include.storage.store import Store, Version

SOON = timedelta(hours=12)
LONGEST = timedelta(days=365)


def expiry_warning(whitelist: Whitelist, now: datetime, *, soon: timedelta = SOON) -> str | None:
    """The warning about a whitelist that expires in less than ``soon``, with the hint; None while it lasts longer."""
    left = whitelist.expires - now
    if left >= soon:
        return None
    cure = f"resign it where the master key is: nightshift repo resign {whitelist.fqrn}"
    if left <= timedelta(0):
        return f"the whitelist expired at {whitelist.expires:%Y-%m-%d %H:%M} UTC, clients refuse it; {cure}"
    hours = left.total_seconds() / 3600
    span = f"{hours:.1f} hours" if hours < 72 else f"{hours / 24:.1f} days"
    return f"the whitelist expires in {span}, at {whitelist.expires:%Y-%m-%d %H:%M} UTC; {cure}"


def resign(
    store: Store,
    fqrn: str,
    master: RSAPrivateKey,
    *,
    now: datetime,
    validity: timedelta = DEFAULT_VALIDITY,
    certificates: tuple[Certificate, ...] = (),
    own: Certificate | None = None,
    dry_run: bool = False,
) -> Whitelist:
    """Sign the repository's whitelist again, from ``now`` (aware) on, and store it unless in a dry run.

    ``certificates`` are listed beside those that are listed already; one that signs the current manifest must be among
    them. Of a whitelist that is lost or damaged nothing is taken: the new one lists ``certificates`` and ``own``, the
    one that is kept with the keys. Raises SignatureError if the whitelist was signed with another master key,
    WhitelistError, RepositoryError.
    """
    if not timedelta(0) < validity <= LONGEST:
        raise WhitelistError(fqrn, f"is to last {validity.days} days; choose 1 to {LONGEST.days}")
    manifest = read_head(store, fqrn).manifest
    current, version = _current(store, fqrn, master)
    if current is None:
        current = Whitelist(fqrn, now, now + validity, ())
        certificates = (*certificates, own) if own is not None else certificates
    renewed = _listing(current.renewed(now, validity), certificates, manifest)
    signs_now = load_certificate(store, manifest)
    if not lists(renewed, signs_now):
        mark = fingerprint(signs_now, manifest.root.algorithm)
        raise WhitelistError(
            fqrn, f"does not list {mark}, which signs the current manifest; give it with --certificate"
        )
    signed = whitelists.sign(renewed, master, manifest.root.algorithm)
    if not dry_run:
        _replace(store, fqrn, signed, version)
    return renewed


def _replace(store: Store, fqrn: str, signed: bytes, expected: Version | None) -> None:
    try:
        store.replace(whitelists.KEY, signed, expected=expected)
    except Conflict:
        raise WhitelistError(fqrn, "was replaced by another signer meanwhile; resign it again") from None
    except Unsupported:  # the store keeps no conditions, and only the holder of the master key writes it
        store.put(whitelists.KEY, signed)


def _current(store: Store, fqrn: str, master: RSAPrivateKey) -> tuple[Whitelist | None, Version | None]:
    """The whitelist that is there, expired or not, provided that this very key signed it; None if none can be read."""
    try:
        data, version = store.get_versioned(whitelists.KEY)
    except NotFound:
        return None, None
    try:
        signed = Whitelist.parse(data)
    except FormatError:
        return None, version
    if not signed.is_intact or len(signed.signature) < master.key_size // 8:
        return None, version
    if not signed.is_signed_by([master.public_key()], Scheme.NO_DIGEST_INFO):
        what = "was not signed with this master key, so clients would not believe what it signs"
        raise SignatureError("whitelist", f"{what}; use the key of {fqrn}, or remove {whitelists.KEY} if it is damaged")
    if signed.whitelist.fqrn != fqrn:
        raise WhitelistError(fqrn, f"the one found there is that of {signed.whitelist.fqrn!r}; check the store")
    return signed.whitelist, version


def _listing(whitelist: Whitelist, certificates: tuple[Certificate, ...], manifest: Manifest) -> Whitelist:
    marks = list(whitelist.fingerprints)
    for certificate in certificates:
        mark = fingerprint(certificate, manifest.root.algorithm, whitelist.fqrn)
        if mark.hash not in [listed.hash for listed in marks]:
            marks.append(mark)
    return replace(whitelist, fingerprints=tuple(marks))


@dataclass(frozen=True, slots=True)
class Imported:
    """Outcome: the files that were copied, those that were there already, and those that the folder does not have."""

    copied: tuple[KeyFile, ...]
    present: tuple[KeyFile, ...]
    absent: tuple[KeyFile, ...]
    revision: int


def import_keys(
    store: Store | str, fqrn: str, source: Path, target: Path, *, now: datetime, dry_run: bool = False
) -> Imported:
    """Copy ``<fqrn>.*`` from ``source`` to ``target`` once they are seen to be those of the repository in ``store``.

    The public key must verify the repository as clients do, the certificate must be the one that the manifest names,
    the private keys must belong to them. Raises KeyFileError, and what opening a repository raises.
    """
    files = {kind: kind.path(source, fqrn) for kind in KeyFile if kind.path(source, fqrn).exists()}
    if KeyFile.PUBLIC not in files:
        path = KeyFile.PUBLIC.path(source, fqrn)
        raise KeyFileError(str(path), "does not exist; without it nothing can be verified: name the folder that has it")
    public = files[KeyFile.PUBLIC].read_bytes()
    repository = Repository.open(store, fqrn=fqrn, public_keys=[public], now=now)
    _require_match(files, repository, source)
    copied, present = [], []
    for kind, path in files.items():
        data, place = path.read_bytes(), kind.path(target, fqrn)
        if place.exists() and place.read_bytes() == data:
            present.append(kind)
            continue
        if place.exists():
            raise KeyFileError(str(place), f"exists and is another than {path}; move it away if it is no longer used")
        copied.append(kind)
    if not dry_run:
        for kind in copied:
            save_key_file(target, fqrn, kind, files[kind].read_bytes())
    absent = tuple(kind for kind in KeyFile if kind not in files)
    return Imported(tuple(copied), tuple(present), absent, repository.manifest.revision)


def _require_match(files: dict[KeyFile, Path], repository: Repository, source: Path) -> None:
    fqrn = repository.fqrn
    if KeyFile.CERTIFICATE in files:
        path = files[KeyFile.CERTIFICATE]
        if parse_certificate(path.read_bytes()) != repository.trusted.certificate:
            raise KeyFileError(
                str(path), f"is not the certificate that the manifest of {fqrn} names; get the right one"
            )
    if KeyFile.REPOSITORY in files:
        load_signer(source, fqrn)
    if KeyFile.MASTER in files:
        path = files[KeyFile.MASTER]
        public = load_master(source, fqrn).public_key().public_numbers()
        masters = parse_public_keys(files[KeyFile.PUBLIC].read_bytes())
        if public not in [key.public_numbers() for key in masters]:
            raise KeyFileError(str(path), f"does not belong to {files[KeyFile.PUBLIC].name}; get the right pair")
    if KeyFile.GATEWAY in files:
        load_gateway_key(files[KeyFile.GATEWAY])


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
        meta=store_compressed(store, skeleton(), like, META).hash,
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
        stored = Whitelist.parse(data)
        verify_whitelist(
            stored, [master.public_key()], fqrn=fqrn, now=stored.whitelist.issued, certificate=signer.certificate_pem
        )
    except (FormatError, TrustError):
        raise RepositoryError(
            fqrn,
            f"{store.url} holds a whitelist that was not signed with these keys: it is being created with others; if "
            f"that creation died, repeat it with its keys, or remove {WHITELIST_KEY} and create it again",
        ) from None
    if abs(whitelist.issued - stored.whitelist.issued) < _MAY_BE_ALIVE:
        return stored.whitelist.issued
    try:
        store.replace(WHITELIST_KEY, signed, expected=version)
    except Conflict:
        raise RepositoryError(fqrn, f"is being created in {store.url} by another process; run again") from None
    return whitelist.issued
