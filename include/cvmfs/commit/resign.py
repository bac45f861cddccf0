"""Extends the whitelist, which only the holder of the master key can do.

Until it expires a whitelist lists the certificates that may sign manifests (docs/formats.md, whitelist).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.commit.commit import read_head
from include.cvmfs.errors import FormatError, SignatureError, WhitelistError
from include.cvmfs.format import whitelist as whitelists
from include.cvmfs.format.keys import Certificate, fingerprint
from include.cvmfs.format.manifest import Manifest
from include.cvmfs.format.signing import Scheme, SignedLetter
from include.cvmfs.format.whitelist import DEFAULT_VALIDITY, Whitelist, lists
from include.cvmfs.revision.trust import load_certificate
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
    letter = SignedLetter(signed.letter, signed.hash, signed.signature)
    if not letter.is_intact or len(signed.signature) < master.key_size // 8:
        return None, version
    if not letter.is_signed_by([master.public_key()], Scheme.NO_DIGEST_INFO):
        what = "was not signed with this master key, so clients would not believe what it signs"
        raise SignatureError("whitelist", f"{what}; use the key of {fqrn}, or remove {whitelists.KEY} if it is damaged")
    if signed.whitelist.fqrn != fqrn:
        raise WhitelistError(fqrn, f"the one found there is that of {signed.whitelist.fqrn!r}; check the store")
    return signed.whitelist, version


def _listing(whitelist: Whitelist, certificates: tuple[Certificate, ...], manifest: Manifest) -> Whitelist:
    marks = list(whitelist.fingerprints)
    for certificate in certificates:
        mark = fingerprint(certificate, manifest.root.algorithm, whitelist.fqrn)
        if mark.hash not in [known.hash for known in marks]:
            marks.append(mark)
    return replace(whitelist, fingerprints=tuple(marks))
