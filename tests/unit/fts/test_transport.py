"""The proxy that is delegated: as OpenSSL judges it, and what no proxy is made of."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

from include.fts.errors import CREDENTIAL_UNREADABLE, FTS_REPLY_UNEXPECTED, PROXY_EXPIRED
from include.fts.transport import X509Files, signed_proxy
from tests.fakes.certificates import Authority
from tests.fakes.refused import refused


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority(datetime.now(UTC))


@pytest.fixture
def user(authority: Authority, tmp_path: Path) -> X509Files:
    """A credential that lasts for a day."""
    return authority.files(tmp_path, "user", timedelta(days=1))


def _request(key_size: int = 2048, *, damaged: bool = False) -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=key_size)
    name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Dummy")])
    request = x509.CertificateSigningRequestBuilder(name).sign(key, hashes.SHA256())
    der = bytearray(request.public_bytes(Encoding.DER))
    der[-1] ^= damaged
    return x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)


def test_openssl_accepts_the_proxy_as_one_of_ours(authority: Authority, user: X509Files, tmp_path: Path) -> None:
    request = _request()
    chain = signed_proxy(request, user.read(), lifetime=timedelta(hours=12), now=authority.now)
    proxy, issuer = x509.load_pem_x509_certificates(chain)
    assert proxy.public_key() == x509.load_pem_x509_csr(request).public_key()
    assert proxy.issuer == issuer.subject
    assert list(proxy.subject)[:-1] == list(issuer.subject)
    assert b"PRIVATE" not in chain
    for name, certificate in (("proxy", proxy), ("issuer", issuer)):
        (tmp_path / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    verified = subprocess.run(
        ["openssl", "verify", "-allow_proxy_certs", "-CAfile", authority.bundle(tmp_path), "-untrusted",
         tmp_path / "issuer.pem", tmp_path / "proxy.pem"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr


def test_a_proxy_ends_with_our_credential(authority: Authority, user: X509Files) -> None:
    credential = user.read()
    chain = signed_proxy(_request(), credential, lifetime=timedelta(days=30), now=authority.now)
    assert x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc == credential.expires
    with refused(PROXY_EXPIRED):
        signed_proxy(_request(), credential, lifetime=timedelta(hours=1), now=credential.expires)


@pytest.mark.parametrize(
    "request_pem",
    [b"", b"<html>", _request(1024), _request(damaged=True)],
    ids=["empty", "page", "weak", "its key did not sign it"],
)
def test_no_proxy_is_made_of_a_bad_request(authority: Authority, user: X509Files, request_pem: bytes) -> None:
    with refused(FTS_REPLY_UNEXPECTED):
        signed_proxy(request_pem, user.read(), lifetime=timedelta(hours=1), now=authority.now)


def test_a_proxy_file_has_its_key_beside_its_certificates(user: X509Files, tmp_path: Path) -> None:
    proxy = tmp_path / "proxy"
    proxy.write_bytes(Path(str(user.key)).read_bytes() + Path(user.certificate).read_bytes())
    assert X509Files(str(proxy)).read().chain == user.read().chain


def test_a_credential_that_cannot_be_used_names_its_file(authority: Authority, user: X509Files, tmp_path: Path) -> None:
    other = authority.files(tmp_path, "other", timedelta(days=1))
    for certificate, key, named in (
        ("/not/there", None, "/not/there"),
        (user.certificate, None, user.certificate),
        (user.certificate, "/not/there", "/not/there"),
        (user.certificate, other.key, str(other.key)),
    ):
        with refused(CREDENTIAL_UNREADABLE) as caught:
            X509Files(certificate, key).read()
        assert str(caught.value).startswith(named)
    assert "PRIVATE" not in repr(user.read())
