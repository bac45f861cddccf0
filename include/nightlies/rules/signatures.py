"""Detached signatures of build indices: Ed25519, or RSA with SHA-256 (PKCS #1 v1.5); docs/formats.md, build index."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from include.nightlies.errors import BadIndex, BadIndexKey

MIN_RSA_BITS = 2048
MAX_SIGNATURE_BYTES = 16 << 10
IndexKey = Ed25519PublicKey | RSAPublicKey


def public_key(path: Path) -> IndexKey:
    """The key in a PEM file; raises BadIndexKey if it has no key that can check signatures."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadIndexKey(str(path), f"cannot be read: {type(error).__name__}") from None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise BadIndexKey(str(path), f"is an RSA key of {key.key_size} bits, fewer than {MIN_RSA_BITS}")
    if not isinstance(key, Ed25519PublicKey | RSAPublicKey):
        raise BadIndexKey(str(path), "is neither an Ed25519 nor an RSA key")
    return key


def require_signature(data: bytes, signature: bytes, key: IndexKey, *, file: str) -> None:
    """Raise BadIndex unless `signature`, raw or in base64, is the key's over `data`."""
    if len(signature) > MAX_SIGNATURE_BYTES:
        raise _wrong(file)
    for candidate in (signature, _from_base64(signature)):
        if candidate is None:
            continue
        try:
            if isinstance(key, Ed25519PublicKey):
                key.verify(candidate, data)
            else:
                key.verify(candidate, data, PKCS1v15(), SHA256())
        except InvalidSignature:
            continue
        return
    raise _wrong(file)


def _from_base64(text: bytes) -> bytes | None:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def _wrong(file: str) -> BadIndex:
    cure = (
        "If it stays so, another program wrote the index, or the slot's `index_signature` names another key than the "
        "builder's. Nothing of it is taken."
    )
    return BadIndex(file, "is not what its signature is over", cure)
