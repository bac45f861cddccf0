"""Certificates: the server's, ours, and the proxy that the server is handed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from include.fts.client import FtsClient
from include.fts.errors import CREDENTIAL_UNREADABLE, DELEGATION_MISSING, FTS_TLS_FAILED
from include.fts.jobs import FtsFile, FtsJob
from include.fts.transport import BearerToken, X509Files
from tests.fakes.certificates import Authority
from tests.fakes.ftsserver import FtsServer
from tests.fakes.refused import refused

NOW = datetime.now(UTC)
JOB = FtsJob((FtsFile("https://a.example.org/f", "https://b.example.org/f"),))


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(NOW)


@pytest.fixture
def authorities(authority: Authority, tmp_path: Path) -> str:
    return str(authority.bundle(tmp_path))


@pytest.fixture
def server(authority: Authority, authorities: str, tmp_path: Path) -> Iterator[FtsServer]:
    """It asks for a certificate of the authority."""
    files = authority.files(tmp_path, "server", timedelta(days=1))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authorities)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    with FtsServer(tls=context, delegated=None) as running:
        yield running


@pytest.fixture
def user(authority: Authority, tmp_path: Path) -> X509Files:
    return authority.files(tmp_path, "user", timedelta(days=4))


def test_a_proxy_is_delegated_once_and_renewed_when_it_ends_soon(
    server: FtsServer, user: X509Files, authorities: str
) -> None:
    with FtsClient(server.url, user, authorities=authorities) as client:
        with refused(DELEGATION_MISSING, status=419):
            client.submit(JOB)
        ends = client.delegate(now=NOW)
        assert ends == NOW + timedelta(hours=48)
        assert client.submit(JOB) in server.jobs
        proxy, issuer = x509.load_pem_x509_certificates(server.proxy)
        assert proxy.public_key() == server.key.public_key()
        assert issuer == user.read().chain[0]
        assert b"PRIVATE" not in server.proxy
        assert client.delegate(now=NOW) == ends.replace(microsecond=0)
        assert server.count("PUT", "/credential") == 1
        client.delegate(now=NOW + timedelta(hours=30))
        assert server.count("PUT", "/credential") == 2


def test_a_client_with_a_token_has_nothing_to_delegate(server: FtsServer, authorities: str) -> None:
    with FtsClient(server.url, BearerToken("t"), authorities=authorities) as client, refused(CREDENTIAL_UNREADABLE):
        client.delegate(now=NOW)


def test_a_server_that_we_do_not_trust_gets_no_request(server: FtsServer, user: X509Files) -> None:
    with FtsClient(server.url, user, retries=0) as client, refused(FTS_TLS_FAILED):
        client.submit(JOB)
    assert server.asked == []


def test_a_missing_certificate_file_is_named(server: FtsServer, authorities: str) -> None:
    client = FtsClient(server.url, X509Files("/not/there"), authorities=authorities)
    with client, refused(CREDENTIAL_UNREADABLE) as caught:
        client.whoami()
    assert "/not/there" in str(caught.value)
