"""The manifest ``.cvmfspublished``: which revision a repository is at (docs/formats.md, manifest)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from include.cvmfs.errors import FormatError, RepositoryError, SignatureError
from include.cvmfs.format.hashes import CATALOG, CERTIFICATE, HISTORY, META, PLAIN, ObjectHash
from include.cvmfs.format.keys import Certificate, Scheme, SignedLetter, as_certificate, public_key_of, sign_letter

KEY = ".cvmfspublished"
ROOT_PATH_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
DEFAULT_TTL_S = 240
_WHAT = "manifest"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A revision. ``root_size`` is that of the root catalog's SQLite file in bytes, ``ttl`` in seconds, ``timestamp``
    in Unix seconds (0: not stated); ``reflog`` is the hash of the raw reflog file."""

    root: ObjectHash
    root_size: int
    revision: int
    fqrn: str
    ttl: int = DEFAULT_TTL_S
    garbage_collectable: bool = False
    alt_paths: bool = False
    certificate: ObjectHash | None = None
    history: ObjectHash | None = None
    timestamp: int = 0
    meta: ObjectHash | None = None
    reflog: ObjectHash | None = None
    root_path_md5: str = ROOT_PATH_MD5

    @property
    def named(self) -> tuple[ObjectHash, ...]:
        """The objects that it names: root catalog, certificate, history and meta info."""
        names = [
            (self.root, CATALOG), (self.certificate, CERTIFICATE), (self.history, HISTORY), (self.meta, META)
        ]  # fmt: skip
        return tuple(name.with_suffix(suffix) for name, suffix in names if name is not None)

    def letter(self) -> bytes:
        """The lines that are signed, in the order of the stock tools. Raises FormatError for what no line can hold."""
        if not self.fqrn.isprintable():
            raise FormatError(_WHAT, f"repository name {self.fqrn!r} cannot be in a line")
        lines = [
            f"C{self.root}",
            f"B{self.root_size}",
            f"R{self.root_path_md5}",
            f"D{self.ttl}",
            f"S{self.revision}",
            f"G{_yes(self.garbage_collectable)}",
            f"A{_yes(self.alt_paths)}",
            f"N{self.fqrn}" if self.fqrn else "",
            f"X{self.certificate}" if self.certificate else "",
            f"H{self.history}" if self.history else "",
            f"T{self.timestamp}" if self.timestamp else "",
            f"M{self.meta}" if self.meta else "",
            f"Y{self.reflog}" if self.reflog else "",
        ]
        return "".join(f"{line}\n" for line in lines if line).encode()

    @classmethod
    def from_letter(cls, letter: bytes) -> Manifest:
        """Read the lines before the signature. Fields with unknown letters are passed over. Raises FormatError."""
        fields = _Fields(letter)
        root_path = fields.text("R")
        if root_path != ROOT_PATH_MD5:
            raise FormatError(_WHAT, f"its root path hash R is {root_path[:40]!r}: it is not of a whole repository")
        return cls(
            root=fields.required_hash("C", CATALOG),
            root_size=fields.number("B", 0),
            revision=fields.number("S"),
            fqrn=fields.text("N", ""),
            ttl=fields.number("D"),
            garbage_collectable=fields.flag("G"),
            alt_paths=fields.flag("A"),
            certificate=fields.hash("X", CERTIFICATE),
            history=fields.hash("H", HISTORY),
            timestamp=fields.number("T", 0),
            meta=fields.hash("M", META),
            reflog=fields.hash("Y", PLAIN),
        )

    @staticmethod
    def parse(data: bytes) -> SignedManifest:
        """Read a whole file, checking its shape but not its signature (:func:`verify`). Raises FormatError."""
        signed = SignedLetter.parse(data, _WHAT)
        return SignedManifest(signed.letter, signed.hash, signed.signature, Manifest.from_letter(signed.letter))


@dataclass(frozen=True, slots=True)
class SignedManifest(SignedLetter):
    """A manifest as it was read."""

    manifest: Manifest


def sign(manifest: Manifest, private_key: RSAPrivateKey) -> bytes:
    """The whole file, signed with the repository's key. The letter's hash has the root catalog's algorithm."""
    return sign_letter(manifest.letter(), private_key, Scheme.SHA1_DIGEST_INFO, manifest.root.algorithm)


def verify(signed: SignedManifest, certificate: Certificate | bytes, *, fqrn: str | None = None) -> None:
    """Check hash and signature against the repository's certificate (PEM text or parsed), and the name if one is given.

    Whether that certificate is to be trusted is decided by the whitelist. Raises SignatureError, RepositoryError.
    """
    if not signed.is_intact:
        raise SignatureError(_WHAT, "its lines do not have the hash it states; it was damaged or changed")
    if not signed.is_signed_by([public_key_of(as_certificate(certificate))], Scheme.SHA1_DIGEST_INFO):
        raise SignatureError(_WHAT, "bad signature: not made with the key of this certificate")
    if fqrn is not None and signed.manifest.fqrn != fqrn:
        raise RepositoryError(fqrn, f"the manifest found there is that of {signed.manifest.fqrn!r}; check the URL")


class _Fields:
    """The lines of a letter by their first character."""

    def __init__(self, letter: bytes) -> None:
        try:
            lines = letter.decode().split("\n")
        except UnicodeDecodeError:
            raise FormatError(_WHAT, "its lines are not text") from None
        if lines.pop():
            raise FormatError(_WHAT, "its last line has no end")
        self._values: dict[str, str] = {}
        for line in lines:
            if not line or line[0] in self._values:
                raise FormatError(_WHAT, f"line {line[:80]!r} is empty or comes twice")
            self._values[line[0]] = line[1:]

    def text(self, letter: str, default: str | None = None) -> str:
        value = self._values.get(letter, default)
        if value is None:
            raise FormatError(_WHAT, f"has no line {letter}")
        return value

    def number(self, letter: str, default: int | None = None) -> int:
        text = self.text(letter, None if default is None else str(default))
        if not _NUMBER.fullmatch(text):
            raise FormatError(_WHAT, f"line {letter} is {text[:40]!r}, not a number")
        return int(text)

    def flag(self, letter: str) -> bool:
        text = self.text(letter, "no")
        if text not in {"yes", "no"}:
            raise FormatError(_WHAT, f"line {letter} is {text[:40]!r}, neither yes nor no")
        return text == "yes"

    def hash(self, letter: str, suffix: str) -> ObjectHash | None:
        return self.required_hash(letter, suffix) if letter in self._values else None

    def required_hash(self, letter: str, suffix: str) -> ObjectHash:
        text = self.text(letter)
        name = ObjectHash.parse(text, suffix=suffix)
        if str(name) != text:
            raise FormatError(_WHAT, f"line {letter} is {text[:60]!r}: a hash without its suffix letter belongs there")
        return name


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def alternative_key(name: ObjectHash) -> str:
    """Return where the object is found in a repository whose manifest has ``A yes``: beside the manifest."""
    return f".cvmfsalt-{name.text}"
