"""Signed letters: the common shape of manifest and whitelist, and the two RSA schemes over a letter's hash text.

Format: docs/formats.md, signed letters.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.utils import NoDigestInfo

from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import SHA1, Algorithm, ObjectHash, hash_bytes

_END = b"\n--\n"
_PADDING_BYTES = 11  # the least that PKCS#1 allows
_SHA1_DIGEST_INFO = bytes.fromhex("3021300906052b0e03021a05000414")


class Scheme(Enum):
    """How the ASCII text of a letter's hash is signed."""

    SHA1_DIGEST_INFO = "manifest"  # PKCS#1 v1.5 with SHA-1
    NO_DIGEST_INFO = "whitelist"  # PKCS#1 v1.5 padding of the text itself

    def payload(self, text: bytes) -> bytes:
        """What goes into the padding. SHA-1 is done here, so that no policy of the machine's OpenSSL can forbid it."""
        if self is Scheme.NO_DIGEST_INFO:
            return text
        return _SHA1_DIGEST_INFO + hashlib.sha1(text, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class SignedLetter:
    """The letter with its last newline, the hash that its file states, and the signature over that hash's text."""

    letter: bytes
    hash: ObjectHash
    signature: bytes

    @classmethod
    def parse(cls, data: bytes, what: str) -> SignedLetter:
        """Take a whole file apart, checking nothing but its shape. Raises FormatError."""
        letter, end, rest = data.partition(_END)
        text, newline, signature = rest.partition(b"\n")
        if not end or not newline or not signature:
            raise FormatError(what, "truncated: it has no line '--' followed by a hash and a signature")
        try:
            stated = ObjectHash.parse(text.decode("ascii"))
        except UnicodeDecodeError:
            raise FormatError(what, "its hash line is not text") from None
        if stated.suffix:
            raise FormatError(what, f"its hash line ends in the letter {stated.suffix}")
        return cls(letter + b"\n", stated, signature)

    @property
    def is_intact(self) -> bool:
        """Whether the letter has the hash that its file states."""
        return hash_bytes(self.letter, self.hash.algorithm).digest == self.hash.digest

    def is_signed_by(self, keys: Iterable[RSAPublicKey], scheme: Scheme) -> bool:
        payload = scheme.payload(str(self.hash).encode())
        return any(_holds(key, self.signature, payload) for key in keys)


def sign_letter(letter: bytes, key: RSAPrivateKey, scheme: Scheme, algorithm: Algorithm = SHA1) -> bytes:
    """The whole file: letter, separator, hash text, signature. ``algorithm`` is that of the hash over the letter."""
    text = str(hash_bytes(letter, algorithm)).encode()
    signature = key.sign(scheme.payload(text), PKCS1v15(), NoDigestInfo())
    return letter + _END[1:] + text + b"\n" + signature


def _holds(key: RSAPublicKey, signature: bytes, payload: bytes) -> bool:
    # The padding is built and compared as a whole: nothing of it is read, so nothing of it can be forged.
    numbers = key.public_numbers()
    length = (key.key_size + 7) // 8
    if len(signature) != length or len(payload) > length - _PADDING_BYTES:
        return False
    expected = b"\x00\x01" + b"\xff" * (length - len(payload) - 3) + b"\x00" + payload
    opened = pow(int.from_bytes(signature), numbers.e, numbers.n).to_bytes(length)
    return hmac.compare_digest(opened, expected)
