"""An authority that issues certificates to users and servers of a test."""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from include.fts.transport import X509Files


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class Authority:
    """Certificates of it begin an hour before ``now``."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.certificate = self._signed("Test CA", self._key.public_key(), timedelta(days=10), authority=True)

    def files(self, folder: Path, name: str, lifetime: timedelta) -> X509Files:
        """A certificate and its key in ``folder``; for a server, it is good for 127.0.0.1."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        certificate, secret = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self._signed(name, key.public_key(), lifetime).public_bytes(Encoding.PEM))
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return X509Files(str(certificate), str(secret))

    def bundle(self, folder: Path) -> Path:
        """The file that clients check against."""
        path = folder / "ca.pem"
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return path

    def _signed(
        self, name: str, key: rsa.RSAPublicKey, lifetime: timedelta, *, authority: bool = False
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder(_name("Test CA"), _name(name), key, x509.random_serial_number())
            .not_valid_before(self.now - timedelta(hours=1))
            .not_valid_after(self.now + lifetime)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(self._key, hashes.SHA256())
