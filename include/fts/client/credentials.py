"""Who we are to an FTS server: a bearer token, or a proxy or certificate with its key in PEM files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from include.fts.errors import CREDENTIAL_UNREADABLE

_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token (JWT) that goes with every request."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class X509Files:
    """Paths of a certificate and its key; ``key``: None for a proxy, which has its key in the same file."""

    certificate: str
    key: str | None = None

    def read(self) -> X509Credential:
        """The credential itself, for delegation. Raises CREDENTIAL_UNREADABLE, which names the file."""
        path = self.certificate
        try:
            chain = x509.load_pem_x509_certificates(Path(path).read_bytes())
            path = self.key or path
            found = _KEY.search(Path(path).read_bytes())
            key = load_pem_private_key(found[0] if found else b"", password=None)
        except (OSError, ValueError, TypeError):
            # not quoted: the library's message may have bytes of the key
            fault = "cannot be read as PEM"
        else:
            if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
                fault = "has a key that is neither RSA nor EC"
            elif key.public_key() != chain[0].public_key():
                fault = f"is not the key of the first certificate of {self.certificate}"
            else:
                return X509Credential(tuple(chain), key)
        raise CREDENTIAL_UNREADABLE(f"{path} {fault}; {CREDENTIAL_UNREADABLE.hint}")


@dataclass(frozen=True, slots=True)
class X509Credential:
    """A certificate with those that lead to its authority, and its key."""

    chain: tuple[x509.Certificate, ...]
    key: RSAPrivateKey | EllipticCurvePrivateKey = field(repr=False)

    @property
    def expires(self) -> datetime:
        """When the first of the certificates ends, UTC."""
        return min(certificate.not_valid_after_utc for certificate in self.chain)


Credential = BearerToken | X509Files
