"""Users' own credentials: which are taken, which are refused, and what is shown of them."""

from __future__ import annotations

import base64
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from include.fts.client.transport import BearerToken, X509Files
from include.fts.errors import CREDENTIAL_UNREADABLE, PROXY_EXPIRED, TOKEN_UNPROTECTED, CredentialNeeded
from include.settings.secrets import ConnectionSecrets
from include.settings.sites import CredentialSource
from include.settings.stageout import StageoutSettings
from include.stageout.errors import CREDENTIAL_MISSING
from include.stageout.opening import TokenIssuer, UserCredentials, credential_source
from tests.fakes.certificates import Authority
from tests.fakes.refused import refused
from tests.fakes.transferloop import mock_site

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
PROXY, TOKEN, SERVICE = CredentialSource.PROXY, CredentialSource.TOKEN, CredentialSource.SERVICE


@pytest.fixture(scope="module")
def authority():
    return Authority(NOW)


@pytest.fixture
def proxies(authority, tmp_path):
    """A folder with a proxy of ann that lasts for a day."""
    made = authority.files(tmp_path, "ann", timedelta(days=1))
    file = Path(made.certificate)
    file.write_bytes(file.read_bytes() + Path(made.key).read_bytes())
    file.chmod(0o600)
    return tmp_path


def users(folder, *, now=NOW, **settings):
    found = StageoutSettings.model_validate({"proxies": str(folder), **settings})
    return UserCredentials(found, lambda: pytest.fail("no token is asked for"), now=lambda: now)


def test_a_job_between_sites_has_the_credential_that_one_of_them_asks_for():
    sites = {source: mock_site(source.value, credential=source.value) for source in CredentialSource}
    assert credential_source([sites[SERVICE], sites[PROXY]]) is PROXY
    assert credential_source([sites[TOKEN], sites[SERVICE]]) is TOKEN
    assert credential_source([]) is SERVICE
    with refused(CREDENTIAL_MISSING):
        credential_source([sites[TOKEN], sites[PROXY]])


def test_a_proxy_is_found_by_the_users_name(proxies):
    opened = users(proxies).of("ann", PROXY)
    assert opened.credential == X509Files(str(proxies / "ann.pem"))
    mapped = users(proxies, identities={"anna": {"name": "anna", "user": "ann"}})
    assert mapped.of("anna", PROXY) == opened


def test_a_renewed_proxy_is_another_one(authority, proxies):
    credentials = users(proxies)
    before = credentials.of("ann", PROXY)
    assert credentials.of("ann", PROXY) == before
    text = (proxies / "ann.pem").read_bytes()
    (proxies / "new").write_bytes(text)
    (proxies / "new").chmod(0o600)
    (proxies / "new").rename(proxies / "ann.pem")
    assert credentials.of("ann", PROXY) != before


@pytest.mark.parametrize("owner", ["bob", "../ann", "", "a/b", "-x"])
def test_a_user_without_a_proxy_or_with_a_name_that_is_no_file_has_no_credential(proxies, owner):
    with refused(CREDENTIAL_MISSING):
        users(proxies).of(owner, PROXY)


def test_a_proxy_that_others_can_read_or_replace_is_refused(proxies):
    (proxies / "ann.pem").chmod(0o640)
    with refused(CREDENTIAL_MISSING):
        users(proxies).of("ann", PROXY)
    (proxies / "bob.pem").symlink_to(proxies / "ann.pem")
    with refused(CREDENTIAL_MISSING):
        users(proxies).of("bob", PROXY)


def test_a_proxy_that_ended_or_is_none_is_refused(proxies):
    with refused(PROXY_EXPIRED):
        users(proxies, now=NOW + timedelta(days=2)).of("ann", PROXY)
    (proxies / "bob.pem").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    (proxies / "bob.pem").chmod(0o600)
    with refused(CREDENTIAL_UNREADABLE) as caught:
        users(proxies).of("bob", PROXY)
    assert "secret" not in str(caught.value)


def test_the_subject_of_a_proxy_is_the_one_in_the_settings(proxies):
    for subject, taken in (("/CN=ann", True), ("/CN=bob", False)):
        credentials = users(proxies, identities={"ann": {"name": "ann", "subject": subject}})
        if taken:
            assert credentials.of("ann", PROXY).credential is not None
        else:
            with refused(CREDENTIAL_MISSING):
                credentials.of("ann", PROXY)


# -- tokens


class Issuer:
    """A token endpoint; ``reply``: status and body, or what makes them from the form."""

    def __init__(self):
        self.forms, self.reply = [], (200, {})
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                issuer.forms.append((parse_qs(body), self.headers["Authorization"]))
                status, value = issuer.reply
                form = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(form)))
                self.end_headers()
                self.wfile.write(form)

            def log_message(self, *_):
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/token"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def jwt(subject):
    payload = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).decode().rstrip("=")
    return f"head.{payload}.signature"


@pytest.fixture
def issuer():
    with Issuer() as server:
        yield server


@pytest.fixture
def subjects(tmp_path):
    file = tmp_path / "ann.token"
    file.write_text("subject-token-of-ann\n")
    file.chmod(0o600)
    return tmp_path


def connection(issuer, subjects, **extra):
    more = {"subjects": str(subjects), "audience": "fts", "scope": "storage.read:/", **extra}
    return ConnectionSecrets("tokens", host=issuer.url, login="nightshift", password="client-secret", extra=more)


def token_users(issuer, subjects, now=lambda: NOW, **settings):
    exchanging = TokenIssuer(connection(issuer, subjects))
    found = StageoutSettings.model_validate({"tokens": "tokens", **settings})
    return UserCredentials(found, lambda: exchanging, now=now)


def test_a_users_token_is_exchanged_once_while_it_lasts(issuer, subjects):
    issuer.reply = (200, {"access_token": jwt("ann"), "expires_in": 3600})
    at = [NOW]
    credentials = token_users(issuer, subjects, now=lambda: at[0])
    assert credentials.of("ann", TOKEN).credential == BearerToken(jwt("ann"))
    credentials.of("ann", TOKEN)
    assert len(issuer.forms) == 1
    form, login = issuer.forms[0]
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:token-exchange"]
    assert (form["subject_token"], form["audience"]) == (["subject-token-of-ann"], ["fts"])
    assert login == "Basic " + base64.b64encode(b"nightshift:client-secret").decode()
    at[0] = NOW + timedelta(minutes=56)
    credentials.of("ann", TOKEN)
    assert len(issuer.forms) == 2


@pytest.mark.parametrize(
    "reply",
    [
        (400, {"error": "invalid_grant", "error_description": "subject-token-of-ann client-secret"}),
        (200, b"<html>subject-token-of-ann</html>"),
        (200, [1]),
        (200, {"access_token": "two\nlines", "expires_in": 60}),
        (200, {"access_token": "ok", "expires_in": -1}),
        (200, {"access_token": "ok", "expires_in": "soon"}),
        (302, {}),
    ],
)
def test_an_issuer_that_gives_no_token_shows_no_secret(issuer, subjects, reply):
    issuer.reply = reply
    with refused(CREDENTIAL_MISSING) as caught:
        token_users(issuer, subjects).of("ann", TOKEN)
    assert not any(secret in str(caught.value) for secret in ("subject-token", "client-secret"))


def test_an_issuer_that_is_down_is_a_missing_credential(subjects):
    with Issuer() as server:
        pass
    with pytest.raises(CredentialNeeded):
        token_users(server, subjects).of("ann", TOKEN)


def test_an_issuer_that_gave_no_token_is_not_asked_for_each_file(issuer, subjects):
    at = [NOW]
    credentials = token_users(issuer, subjects, now=lambda: at[0])
    (subjects / "bob.token").write_text("subject-token-of-bob")
    (subjects / "bob.token").chmod(0o600)

    def asked(*owners):
        before = len(issuer.forms)
        for owner in owners:
            with refused(CREDENTIAL_MISSING):
                credentials.of(owner, TOKEN)
        return len(issuer.forms) - before

    issuer.reply = (400, {"error": "invalid_grant"})
    assert (asked("ann", "ann", "bob"), asked("ann", "bob")) == (2, 0)
    # a new token of the user is tried at once
    (subjects / "bob.token").unlink()
    (subjects / "bob.token").write_text("renewed-token-of-bob")
    (subjects / "bob.token").chmod(0o600)
    os.utime(subjects / "bob.token", ns=(1, 1))
    assert asked("bob", "ann") == 1
    at[0] += timedelta(minutes=1)
    issuer.reply = (503, b"overloaded")
    assert asked("ann", "bob", "bob") == 1
    at[0] += timedelta(minutes=1)
    issuer.reply = (200, {"access_token": jwt("ann"), "expires_in": 3600})
    assert credentials.of("ann", TOKEN).credential == BearerToken(jwt("ann"))


def test_the_subject_of_a_token_is_the_one_in_the_settings(issuer, subjects):
    issuer.reply = (200, {"access_token": jwt("someone-else"), "expires_in": 3600})
    with refused(CREDENTIAL_MISSING):
        token_users(issuer, subjects, identities={"ann": {"name": "ann", "subject": "ann-id"}}).of("ann", TOKEN)


def test_nothing_is_sent_to_an_issuer_without_tls(subjects):
    with refused(TOKEN_UNPROTECTED):
        TokenIssuer(ConnectionSecrets("tokens", host="http://issuer.example.org/token"))
