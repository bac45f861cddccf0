"""A proxy certificate (RFC 3820) for the key of an FTS server: it acts as we do until the proxy ends."""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from include.fts.client.credentials import X509Credential
from include.fts.errors import FTS_REPLY_UNEXPECTED, PROXY_EXPIRED

_CLOCK_SKEW = timedelta(minutes=5)
_SMALLEST_RSA = 2048
_PROXY_CERT_INFO = x509.UnrecognizedExtension(
    # ProxyCertInfo { ProxyPolicy { policyLanguage id-ppl-inheritAll } }
    x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14"), bytes.fromhex("300c300a06082b06010505071501")
)  # fmt: skip


def signed_proxy(request_pem: bytes, credential: X509Credential, *, lifetime: timedelta, now: datetime) -> bytes:
    """The chain that is sent to the server: the proxy, then our certificates; no key.

    Args:
        request_pem: The server's certificate request.
        credential: Our proxy or certificate.
        lifetime: How long the proxy lasts; never longer than the credential.
        now: The time, UTC.

    Returns:
        The chain in PEM.

    Raises:
        FtsError: `FTS_REPLY_UNEXPECTED`: the request is malformed, not signed by its own key, or of a weak key;
            `PROXY_EXPIRED`: the credential has ended.
    """
    key = _key_of(request_pem)
    if credential.expires <= now:
        raise PROXY_EXPIRED(f"our credential ended at {credential.expires:%Y-%m-%dT%H:%M:%SZ}; {PROXY_EXPIRED.hint}")
    issuer = credential.chain[0].subject
    serial = x509.random_serial_number()
    name = x509.Name(
        [*issuer.rdns, x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.COMMON_NAME, f"{serial}")])]
    )
    usage = x509.KeyUsage(
        digital_signature=True, key_encipherment=True, content_commitment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    proxy = (
        x509.CertificateBuilder(issuer_name=issuer, subject_name=name, public_key=key, serial_number=serial)
        .not_valid_before(
            max(now - _CLOCK_SKEW, *(certificate.not_valid_before_utc for certificate in credential.chain))
        )
        .not_valid_after(min(now + lifetime, credential.expires))
        .add_extension(usage, critical=True)
        .add_extension(_PROXY_CERT_INFO, critical=True)
        .sign(credential.key, hashes.SHA256())
    )
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in (proxy, *credential.chain))


def _key_of(request_pem: bytes) -> rsa.RSAPublicKey:
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key = request.public_key()
        fits = request.is_signature_valid and isinstance(key, rsa.RSAPublicKey) and key.key_size >= _SMALLEST_RSA
    except Exception as error:  # noqa: BLE001 - the parser has no error of its own for all that can be wrong
        raise FTS_REPLY_UNEXPECTED(
            f"the request for a proxy cannot be read ({type(error).__name__}); {FTS_REPLY_UNEXPECTED.hint}"
        ) from None
    if not fits or not isinstance(key, rsa.RSAPublicKey):
        raise FTS_REPLY_UNEXPECTED(
            f"the request for a proxy is not signed by an RSA key of at least {_SMALLEST_RSA} bits; "
            f"{FTS_REPLY_UNEXPECTED.hint}"
        )
    return key
