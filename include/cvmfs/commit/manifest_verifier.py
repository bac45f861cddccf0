"""Whether a manifest is one that we may sign a successor of: with what we sign, readers believe what went before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from include.cvmfs.errors import CvmfsError, SignatureError
from include.cvmfs.format import manifest as manifests
from include.cvmfs.format import whitelist as whitelists
from include.cvmfs.format.hashes import CERTIFICATE, Algorithm, ObjectHash, hash_bytes
from include.cvmfs.format.keys import (
    Certificate,
    ManifestSigner,
    as_certificate,
    fingerprint,
    parse_public_keys,
)
from include.cvmfs.format.manifest import SignedManifest
from include.cvmfs.format.objects import compress
from include.cvmfs.format.whitelist import Whitelist
from include.cvmfs.revision.trust import load_certificate
from include.storage.errors import NotFound
from include.storage.store import Store

_REMEMBERED = timedelta(hours=1)  # a certificate may be taken off the whitelist


def _no_keys() -> Sequence[bytes]:
    return ()


class Voucher:
    """Verifies the manifests of one repository. Certificates are examined once; safe to share between threads.

    ``signer``: our own key; what it signed is ours. ``public_keys``: PEM texts of master keys, asked for only when a
    manifest was signed by another certificate; a whitelist that one of them signed may then list that.
    """

    def __init__(self, signer: ManifestSigner, public_keys: Callable[[], Sequence[bytes]] = _no_keys) -> None:
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
            found = Whitelist.parse(store.get(whitelists.KEY))
            whitelists.verify(found, keys, fqrn=signed.manifest.fqrn, now=now, certificate=certificate)
        except SignatureError:
            raise
        except (CvmfsError, NotFound) as fault:
            raise self._foreign(
                store, signed, f"is signed with certificate {name}, which cannot be verified: {fault}"
            ) from None
        return certificate

    @staticmethod
    def _foreign(store: Store, signed: SignedManifest, what: str) -> SignatureError:
        fqrn = signed.manifest.fqrn
        return SignatureError(
            "manifest",
            f"the one of {fqrn} in {store.url} {what}; if its signing key was replaced, put the master key's "
            f"{fqrn}.pub into the keys folder, else find out who wrote it and restore .cvmfspublished",
        )


def _same(certificate: Certificate, other: Certificate) -> bool:
    return fingerprint(certificate, Algorithm.SHA1).hash == fingerprint(other, Algorithm.SHA1).hash
