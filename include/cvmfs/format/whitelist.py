"""The whitelist ``.cvmfswhitelist``: which certificates may sign, and until when (docs/formats.md, whitelist)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from include.cvmfs.errors import FormatError, SignatureError, WhitelistError, WhitelistExpired
from include.cvmfs.format.hashes import SHA1, Algorithm
from include.cvmfs.format.keys import Certificate, Fingerprint, Scheme, SignedLetter, fingerprint, sign_letter

KEY = ".cvmfswhitelist"
DEFAULT_VALIDITY = timedelta(days=30)
_WHAT = "whitelist"
_TIME = "%Y%m%d%H%M%S"
_DIGITS = re.compile(r"[0-9]{14}")
_RESIGN = "resign the whitelist with the master key"


@dataclass(frozen=True, slots=True)
class Whitelist:
    """List of those who may sign the repository's manifests. Times are aware; expiry counts to the hour, in UTC."""

    fqrn: str
    issued: datetime
    expires: datetime
    fingerprints: tuple[Fingerprint, ...]

    def letter(self) -> bytes:
        """The lines that are signed. Raises FormatError for what they cannot hold."""
        if not self.fqrn.isprintable() or not self.fqrn:
            raise FormatError(_WHAT, f"repository name {self.fqrn!r} cannot be in a line")
        if not self.fingerprints:
            raise FormatError(_WHAT, "lists no certificate; give at least one fingerprint")
        lines = [_time_text(self.issued), f"E{_time_text(self.expires)}", f"N{self.fqrn}"]
        for listed in self.fingerprints:
            if listed.comment and not listed.comment.isprintable():
                raise FormatError(_WHAT, f"comment {listed.comment!r} cannot be in a line")
            lines.append(f"{listed} # {listed.comment}" if listed.comment else str(listed))
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def from_letter(cls, letter: bytes) -> Whitelist:
        """Read the lines before the signature. Raises FormatError."""
        try:
            lines = letter.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            raise FormatError(_WHAT, "its lines are not text") from None
        if len(lines) < 4:
            raise FormatError(_WHAT, "truncated: issue time, expiry, name and a fingerprint make four lines")
        issued, expires, name, *listed = lines
        if not expires.startswith("E") or not name.startswith("N") or len(name) < 2:
            raise FormatError(_WHAT, "its second line is not the expiry (E…) or its third not the name (N…)")
        if listed[0].startswith(("V", "W")):
            wish = "by PKCS#7" if listed[0].startswith("V") else "along a chain of certificates"
            raise FormatError(_WHAT, f"asks to be verified {wish} ({listed[0][:40]!r}), which we do not do; {_RESIGN}")
        fingerprints = tuple(Fingerprint.parse(line) for line in listed if line.partition("#")[0].strip())
        if not fingerprints:
            raise FormatError(_WHAT, "lists no certificate")
        return cls(name[1:], _time(issued), _time(expires[1:]), fingerprints)

    @staticmethod
    def parse(data: bytes) -> SignedWhitelist:
        """Read a whole file, checking its shape but not its signature (:func:`verify`). Raises FormatError."""
        signed = SignedLetter.parse(data, _WHAT)
        return SignedWhitelist(signed.letter, signed.hash, signed.signature, Whitelist.from_letter(signed.letter))

    def renewed(self, now: datetime, validity: timedelta = DEFAULT_VALIDITY) -> Whitelist:
        """The same certificates for another while."""
        return replace(self, issued=now, expires=now + validity)


@dataclass(frozen=True, slots=True)
class SignedWhitelist(SignedLetter):
    """A whitelist as it was read."""

    whitelist: Whitelist


def sign(whitelist: Whitelist, master: RSAPrivateKey, algorithm: Algorithm = SHA1) -> bytes:
    """The whole file, signed with the master key. ``algorithm`` is that of the hash over the letter."""
    return sign_letter(whitelist.letter(), master, Scheme.NO_DIGEST_INFO, algorithm)


def verify(
    signed: SignedWhitelist,
    public_keys: Iterable[RSAPublicKey],
    *,
    fqrn: str,
    now: datetime,
    certificate: Certificate | bytes | None = None,
) -> None:
    """Check that one of the master keys signed it, that it is of this repository and in force at ``now``, and that it
    lists the certificate (PEM text or parsed) if one is given.

    Raises SignatureError, WhitelistError, WhitelistExpired.
    """
    if not signed.is_intact:
        raise SignatureError(_WHAT, f"its lines do not have the hash it states; it was damaged or changed; {_RESIGN}")
    if not signed.is_signed_by(public_keys, Scheme.NO_DIGEST_INFO):
        raise SignatureError(_WHAT, "bad signature: not made with one of the given master keys; check the public key")
    whitelist = signed.whitelist
    if whitelist.fqrn != fqrn:
        raise WhitelistError(fqrn, f"the one found there is that of {whitelist.fqrn!r}; check the URL")
    if _hour(now) >= _hour(whitelist.expires):
        raise WhitelistExpired(fqrn, _hour(whitelist.expires))
    if certificate is not None and not lists(whitelist, certificate):
        raise WhitelistError(fqrn, f"does not list certificate {fingerprint(certificate)}; add it and {_RESIGN}")


def lists(whitelist: Whitelist, certificate: Certificate | bytes) -> bool:
    """Tell whether the certificate is among the listed ones, whatever algorithm its fingerprint was made with."""
    algorithms = {listed.hash.algorithm for listed in whitelist.fingerprints}
    own = {fingerprint(certificate, algorithm).hash for algorithm in algorithms}
    return any(listed.hash in own for listed in whitelist.fingerprints)


def _hour(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time without a zone: whether a whitelist is in force depends on it")
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _time_text(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError("a time without a zone cannot be in a whitelist")
    utc = moment.astimezone(UTC)
    return f"{utc.year:04}{utc:%m%d%H%M%S}"


def _time(text: str) -> datetime:
    try:
        if not _DIGITS.fullmatch(text):
            raise ValueError(text)
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        raise FormatError(_WHAT, f"{text[:40]!r} is not a time YYYYMMDDHHMMSS") from None
