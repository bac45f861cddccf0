"""A repository: opened with full verification, read at its revisions; and trust in manifests (docs/formats.md).

A manifest is fetched and verified in the order of the stock client. With what we sign, readers believe what went
before: so a writer verifies that first.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Self

from include.cvmfs import errors
from include.cvmfs.format import database as reflogs, manifest as manifests, whitelist as whitelists
from include.cvmfs.format.catalogs import CatalogCache
from include.cvmfs.format.database import History, Reflog, Tag
from include.cvmfs.format.hashes import CERTIFICATE, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.keys import (
    Certificate,
    ManifestSigner,
    as_certificate,
    fingerprint,
    parse_certificate,
    parse_public_keys,
)
from include.cvmfs.format.layout import MetaInfo
from include.cvmfs.format.manifest import Manifest, SignedManifest
from include.cvmfs.format.objects import compress, load
from include.cvmfs.format.whitelist import SignedWhitelist, Whitelist
from include.cvmfs.revision.revision import Revision
from include.errors import NightshiftError
from include.storage.errors import NotFound, StoreError
from include.storage.open import open_store
from include.storage.store import Store

_CERTIFICATE_BYTES = 1 << 20
_ROOT_PATH_LINE = re.compile(rb"\nR([0-9a-f]{32})\n")


class OpenFailure(Enum):
    """Reason why a repository cannot be opened: number and words of the stock client's manifest fetch."""

    DOWNLOAD = (1, "failed to download")
    INCOMPLETE = (2, "incomplete manifest")
    NAME_MISMATCH = (3, "name mismatch")
    ROOT_PATH_MISMATCH = (4, "root path mismatch")
    OUTDATED = (5, "outdated manifest")
    BAD_CERTIFICATE = (6, "bad certificate")
    BAD_SIGNATURE = (7, "bad signature")
    BAD_WHITELIST = (8, "bad whitelist")
    INVALID_CERTIFICATE = (9, "invalid certificate")
    UNKNOWN = (10, "unknown")

    @property
    def number(self) -> int:
        return self.value[0]

    def __str__(self) -> str:
        return f"{self.value[0]} - {self.value[1]}"


@dataclass(frozen=True, slots=True)
class Trusted:
    """A manifest that was read. ``verified``: signed by whom the whitelist lists, which a given master key signed."""

    signed: SignedManifest
    verified: bool
    certificate: Certificate | None = None
    whitelist: Whitelist | None = None

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest


def failure_of(error: Exception) -> OpenFailure:
    """The failure class of an error that :func:`fetch_trusted` raised."""
    stage = error.stage if isinstance(error, NightshiftError) else None
    return stage if isinstance(stage, OpenFailure) else OpenFailure.UNKNOWN


def fetch_trusted(
    store: Store,
    *,
    fqrn: str | None,
    public_keys: Sequence[bytes] | None,
    now: datetime,
    min_revision: int = 0,
    min_timestamp: int = 0,
) -> Trusted:
    """Read the manifest and all that authenticates it. ``now`` is aware; ``public_keys`` are PEM texts of master keys.

    Without public keys a local store is read unverified, any other is refused. ``min_revision`` and ``min_timestamp``
    (Unix s) are what the caller has seen before: nothing older is accepted. Raises RepositoryError, FormatError,
    SignatureError, WhitelistError, ObjectMissing, ObjectDamaged, StoreError; :func:`failure_of` gives the class.
    """
    name = fqrn or store.url.rstrip("/").rpartition("/")[2] or store.url
    if not public_keys and not store.is_local:
        raise errors.SignatureError(
            "manifest", f"{store.url} is not local: give the repository's public key to verify it"
        )
    with _failing(OpenFailure.DOWNLOAD):
        data = _fetch_manifest(store, name)
    with _failing(OpenFailure.ROOT_PATH_MISMATCH if _of_other_root(data) else OpenFailure.INCOMPLETE):
        signed = Manifest.parse(data)
    manifest = signed.manifest
    with _failing(OpenFailure.NAME_MISMATCH):
        if not manifest.fqrn or (fqrn is not None and manifest.fqrn != fqrn):
            raise errors.RepositoryError(name, f"the manifest found there is that of {manifest.fqrn!r}; check the URL")
    with _failing(OpenFailure.OUTDATED):
        if manifest.revision < min_revision or manifest.timestamp < min_timestamp:
            last = f"revision {min_revision} of time {min_timestamp} was seen before"
            raise errors.RepositoryError(
                manifest.fqrn, f"the manifest is of revision {manifest.revision}, time {manifest.timestamp}, but {last}"
            )
    if not public_keys:
        return Trusted(signed, verified=False)
    with _failing(OpenFailure.BAD_CERTIFICATE):
        certificate = load_certificate(store, manifest)
    with _failing(OpenFailure.BAD_SIGNATURE):
        manifests.verify(signed, certificate)
    with _failing(OpenFailure.BAD_WHITELIST):
        keys = [key for pem in public_keys for key in parse_public_keys(pem)]
        whitelist = _fetch_whitelist(store, manifest.fqrn)
        whitelists.verify(whitelist, keys, fqrn=manifest.fqrn, now=now)
    with _failing(OpenFailure.INVALID_CERTIFICATE):
        whitelists.verify(whitelist, keys, fqrn=manifest.fqrn, now=now, certificate=certificate)
    return Trusted(signed, True, certificate, whitelist.whitelist)


def load_certificate(store: Store, manifest: Manifest) -> Certificate:
    """The certificate that the manifest names, its hash verified."""
    if manifest.certificate is None:
        raise errors.RepositoryError(manifest.fqrn, "the manifest names no certificate (field X)")
    return parse_certificate(load(store, manifest.certificate, limit=_CERTIFICATE_BYTES))


def _fetch_whitelist(store: Store, fqrn: str) -> SignedWhitelist:
    cure = f"make it again where the master key is: nightshift repo resign {fqrn}"
    try:
        return Whitelist.parse(store.get(whitelists.KEY))
    except NotFound:
        raise errors.RepositoryError(fqrn, f"no {whitelists.KEY} in {store.url}; {cure}") from None
    except errors.FormatError as fault:
        raise errors.FormatError(fault.what, f"{fault.detail}; {cure}") from None


def _fetch_manifest(store: Store, name: str) -> bytes:
    try:
        return store.get(manifests.KEY)
    except NotFound:
        cure = "check the URL; if the file is lost, run where the keys are: nightshift repo repair --manifest"
        raise errors.RepositoryError(name, f"no {manifests.KEY} at {store.url}; {cure}") from None


def _of_other_root(data: bytes) -> bool:
    line = _ROOT_PATH_LINE.search(data)
    return line is not None and line[1] != manifests.ROOT_PATH_MD5.encode()


@contextlib.contextmanager
def _failing(failure: OpenFailure) -> Iterator[None]:
    """Errors from within are of this class."""
    try:
        yield
    except (errors.CvmfsError, StoreError) as fault:
        fault.stage = fault.stage or failure
        raise


_REMEMBERED = timedelta(hours=1)  # a certificate may be taken off the whitelist


class ManifestVerifier:
    """Verifies the manifests of one repository. Certificates are examined once; safe to share between threads.

    ``signer``: our own key; what it signed is ours. ``public_keys``: PEM texts of master keys, asked for only when a
    manifest was signed by another certificate; a whitelist that one of them signed may then list that.
    """

    def __init__(self, signer: ManifestSigner, public_keys: Callable[[], Sequence[bytes]] = lambda: ()) -> None:
        self._own = as_certificate(signer.certificate_pem)
        self._own_packed = compress(signer.certificate_pem)
        self._public_keys = public_keys
        self._accepted: dict[ObjectHash, tuple[Certificate, datetime]] = {}

    def require(self, store: Store, signed: SignedManifest, *, now: datetime | None = None) -> None:
        """Raises SignatureError for a manifest signed neither by us nor by a whitelisted certificate; StoreError.

        ``now`` (aware; default: this moment) decides whether that whitelist is in force.
        """
        name = signed.manifest.certificate
        if name is None:
            raise self._foreign(store, signed, "names no certificate")
        now = now or datetime.now(UTC)
        certificate, until = self._accepted.get(name, (self._own, now))
        if not now < until <= now + _REMEMBERED:
            certificate = self._looked_into(store, signed, name, now)
            self._accepted[name] = certificate, now + _REMEMBERED
        manifests.verify(signed, certificate)

    def _looked_into(self, store: Store, signed: SignedManifest, name: ObjectHash, now: datetime) -> Certificate:
        if name == hash_bytes(self._own_packed, name.algorithm, CERTIFICATE):
            return self._own
        try:
            certificate = load_certificate(store, signed.manifest)
            if _same(certificate, self._own):
                return certificate
            keys = [key for pem in self._public_keys() for key in parse_public_keys(pem)]
            if not keys:
                raise self._foreign(
                    store, signed, f"is signed with certificate {name}, not ours, and no master key is here"
                )
            whitelist = Whitelist.parse(store.get(whitelists.KEY))
            whitelists.verify(whitelist, keys, fqrn=signed.manifest.fqrn, now=now, certificate=certificate)
        except errors.SignatureError:
            raise
        except (errors.CvmfsError, NotFound) as fault:
            raise self._foreign(
                store, signed, f"is signed with certificate {name}, which cannot be verified: {fault}"
            ) from None
        return certificate

    @staticmethod
    def _foreign(store: Store, signed: SignedManifest, what: str) -> errors.SignatureError:
        fqrn = signed.manifest.fqrn
        return errors.SignatureError(
            "manifest",
            f"the one of {fqrn} in {store.url} {what}; if its signing key was replaced, put the master key's "
            f"{fqrn}.pub into the keys folder, else find out who wrote it and restore .cvmfspublished",
        )


def _same(certificate: Certificate, other: Certificate) -> bool:
    return fingerprint(certificate, Algorithm.SHA1).hash == fingerprint(other, Algorithm.SHA1).hash


class Repository:
    """A repository at the revision of the manifest that was read when it was opened; open it again for a newer one.

    ``revision``: reads the tree of that revision.
    """

    def __init__(self, store: Store, trusted: Trusted, catalogs: CatalogCache | None = None) -> None:
        self.store = store
        self.trusted = trusted
        self.catalogs = catalogs or CatalogCache(store)
        self.revision = Revision(self.catalogs, trusted.manifest.root)

    @classmethod
    def open(
        cls,
        store: Store | str,
        *,
        fqrn: str | None = None,
        public_keys: Sequence[bytes] | None = None,
        now: datetime | None = None,
        min_revision: int = 0,
        min_timestamp: int = 0,
        catalogs: CatalogCache | None = None,
    ) -> Self:
        """Read and verify the manifest at a store or URL: name, certificate, signature, whitelist, expiry, fingerprint.

        ``public_keys``: PEM texts of master keys; without any, only a local store is opened, and ``verified`` is false.
        ``fqrn``: the name that is expected; None takes the manifest's. ``now`` (aware; default: this moment) decides
        whether the whitelist is in force. ``min_revision``, ``min_timestamp`` (Unix s): what was seen before; older is
        refused. ``catalogs``: a cache to share with other openings. Raises what :func:`fetch_trusted` raises.
        """
        where = open_store(store) if isinstance(store, str) else store
        trusted = fetch_trusted(
            where, fqrn=fqrn, public_keys=public_keys, now=now or datetime.now(UTC),
            min_revision=min_revision, min_timestamp=min_timestamp,
        )  # fmt: skip
        return cls(where, trusted, catalogs)

    @property
    def manifest(self) -> Manifest:
        return self.trusted.manifest

    @property
    def fqrn(self) -> str:
        return self.manifest.fqrn

    @property
    def verified(self) -> bool:
        """Tell whether signatures were checked against a given master key."""
        return self.trusted.verified

    def history(self) -> History | None:
        """The tags; None for a repository without any. Raises ObjectMissing, ObjectDamaged, FormatError, StoreError."""
        name = self.manifest.history
        return None if name is None else History.load(load(self.store, name))

    def tags(self) -> list[Tag]:
        """All tags, latest revision first."""
        history = self.history()
        return [] if history is None else history.tags()

    def tag(self, name: str) -> Tag:
        """Raises TagError for an unknown name."""
        history = self.history()
        tag = None if history is None else history.tag(name)
        if tag is None:
            raise errors.TagError(name, f"no such tag in {self.fqrn}; list them with: nightshift repo tags")
        return tag

    def reflog(self, *, named: bool = True) -> Reflog:
        """The reflog, which has to be the one that the manifest names unless that is asked for with ``named=False``.

        Raises ReflogError if it is absent or another one, FormatError.
        """
        try:
            data = self.store.get(reflogs.KEY)
        except NotFound:
            raise errors.ReflogError(self.fqrn, f"no {reflogs.KEY} in {self.store.url}") from None
        name = self.manifest.reflog
        if named and (name is None or hash_bytes(data, name.algorithm).digest != name.digest):
            raise errors.ReflogError(self.fqrn, f"{reflogs.KEY} is not the one that the manifest names ({name})")
        return Reflog.load(data)

    def superseded_after(self, cutoff: int) -> int:
        """Return how many revisions before the current one were superseded after ``cutoff`` (Unix s).

        The reflog of a stock collection counts, too, which is not the one that the manifest names.
        """
        published = {ref.hash.digest: ref.timestamp for ref in self.reflog(named=False).refs()}
        root, count = self.manifest.root, 0
        while published.get(root.digest, cutoff) >= cutoff:
            try:
                before = self.at(root).root.previous_revision
            except errors.ObjectMissing:  # collected
                if not count:
                    raise
                break
            if before is None:
                break
            root, count = before, count + 1
        return count

    def meta(self) -> MetaInfo | None:
        """The meta info; None if there is none. Raises ObjectMissing, ObjectDamaged, FormatError, StoreError."""
        name = self.manifest.meta
        return None if name is None else MetaInfo.parse(load(self.store, name))

    def at(self, revision: ObjectHash | str) -> Revision:
        """Another revision, by the hash of its root catalog (also as text) or by the name of a tag. Raises TagError."""
        root = revision if isinstance(revision, ObjectHash) else self._root_of(revision)
        return Revision(self.catalogs, root)

    def _root_of(self, text: str) -> ObjectHash:
        try:
            return ObjectHash.parse(text)
        except errors.FormatError:
            return self.tag(text).hash
