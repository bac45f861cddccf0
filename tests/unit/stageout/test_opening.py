"""Users' own credentials: which are taken, which are refused, and what is shown of them."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from include.fts.errors import CREDENTIAL_UNREADABLE, PROXY_EXPIRED, TOKEN_UNPROTECTED, CredentialNeeded
from include.fts.transport import BearerToken, X509Files
from include.settings.model import SiteSettings
from include.settings.secrets import ConnectionSecrets, EnvSecrets
from include.settings.sites import CredentialSource
from include.settings.stageout import StageoutSettings
from include.site.site import Site
from include.stageout.errors import CREDENTIAL_MISSING
from include.stageout.opening import TokenIssuer, UserCredentials, credential_source, open_stageout
from include.stageout.retry import fixed
from tests.fakes.certificates import Authority
from tests.fakes.loopback import LoopbackServer, respond
from tests.fakes.places import MemoryPlace
from tests.fakes.refused import refused
from tests.fakes.transferloop import mock_site

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
PROXY, TOKEN, SERVICE = CredentialSource.PROXY, CredentialSource.TOKEN, CredentialSource.SERVICE


@pytest.fixture(scope="module")
def authority():
    return Authority(NOW)


def proxy_of_ann(authority, folder):
    """The folder, with a proxy of ann that lasts for a day."""
    made = authority.files(folder, "ann", timedelta(days=1))
    file = Path(made.certificate)
    file.write_bytes(file.read_bytes() + Path(made.key).read_bytes())
    file.chmod(0o600)
    return folder


@pytest.fixture
def proxies(authority, tmp_path):
    return proxy_of_ann(authority, tmp_path)


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


def test_a_proxy_that_is_absent_or_that_others_can_read_or_replace_is_refused(proxies):
    (proxies / "bob.pem").symlink_to(proxies / "ann.pem")
    (proxies / "cleo.pem").write_bytes((proxies / "ann.pem").read_bytes())
    (proxies / "cleo.pem").chmod(0o640)
    for owner in ("bob", "cleo", "dan", "../ann", "", "a/b", "-x"):
        with refused(CREDENTIAL_MISSING):
            users(proxies).of(owner, PROXY)


def test_a_proxy_that_ended_or_is_none_is_refused(proxies):
    with refused(PROXY_EXPIRED):
        users(proxies, now=NOW + timedelta(days=2)).of("ann", PROXY)
    keep(proxies / "bob.pem", "-----BEGIN PRIVATE KEY-----\nsecret\n")
    with refused(CREDENTIAL_UNREADABLE) as caught:
        users(proxies).of("bob", PROXY)
    assert "secret" not in str(caught.value)


def test_the_subject_of_a_proxy_is_the_one_in_the_settings(proxies):
    own, other = (
        users(proxies, identities={"ann": {"name": "ann", "subject": f"/CN={who}"}}) for who in ("ann", "bob")
    )
    assert own.of("ann", PROXY).credential is not None
    with refused(CREDENTIAL_MISSING):
        other.of("ann", PROXY)


# -- tokens


class Issuer(LoopbackServer):
    """A token endpoint; ``reply``: status and body."""

    METHODS = ("POST",)

    def __init__(self):
        super().__init__()
        self.forms, self.reply = [], (200, {})
        self.url = f"http://{self.address}/token"

    def serve(self, handler, request):
        self.forms.append((parse_qs(request.body.decode()), request.headers["Authorization"]))
        status, value = self.reply
        respond(handler, status, value if isinstance(value, bytes) else json.dumps(value).encode())


def jwt(subject):
    payload = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).decode().rstrip("=")
    return f"head.{payload}.signature"


def keep(file, text):
    """Write a file for its owner only."""
    file.write_text(text)
    file.chmod(0o600)


@pytest.fixture
def issuer():
    with Issuer() as server:
        yield server


@pytest.fixture
def subjects(tmp_path):
    keep(tmp_path / "ann.token", "subject-token-of-ann\n")
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


def test_an_issuer_that_is_down_or_without_tls_gives_no_token(subjects):
    with Issuer() as server:
        pass
    with pytest.raises(CredentialNeeded):
        token_users(server, subjects).of("ann", TOKEN)
    with refused(TOKEN_UNPROTECTED):
        TokenIssuer(ConnectionSecrets("tokens", host="http://issuer.example.org/token"))


def test_an_issuer_that_gave_no_token_is_not_asked_for_each_file(issuer, subjects):
    at = [NOW]
    credentials = token_users(issuer, subjects, now=lambda: at[0])
    keep(subjects / "bob.token", "subject-token-of-bob")

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
    keep(subjects / "bob.token", "renewed-token-of-bob")
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


# -- stage-out opened from settings


def opened(folder, extra=None, password=None):
    def rules(name, scheme="mock"):
        rule = [{"prefix": "/", "url": f"{scheme}://{name}.example.org"}]
        return {"read": rule, "write": rule, "third_party": rule}

    strict, web = {**rules("strict"), "credential": "proxy"}, rules("web", "davs")
    document = {
        "paths": {"var": str(folder / "var")}, "ledger": f"sqlite:///{folder}/ledger.db",
        "sites": {"open": rules("open"), "strict": strict, "web": web},
        "stageout": {"fts": ["fts_default"], "proxies": str(folder), "retry": "fixed"},
    }  # fmt: skip
    extra = {"certificate": "/etc/service.pem"} if extra is None else extra
    fts = {"conn_type": "fts", "host": "https://fts.example.org:8446", "password": password, "extra": extra}
    site = Site(SiteSettings.model_validate(document), EnvSecrets({"AIRFLOW_CONN_FTS_DEFAULT": json.dumps(fts)}))
    return open_stageout(site, "worker-1")


@pytest.fixture
def now_proxies(tmp_path):
    return proxy_of_ann(Authority(datetime.now(UTC)), tmp_path)


def test_all_users_share_the_service_identity_where_sites_ask_for_no_other(tmp_path):
    stageout = opened(tmp_path)
    client = stageout.fts("fts_default", "ann", "open", "open")
    assert client is stageout.fts("fts_default", "bob", "open", "open") is stageout.fts("fts_default", "")
    assert (client.url, "/etc/service.pem" in repr(client)) == ("https://fts.example.org:8446", True)
    assert (stageout.retry, stageout.worker.name) == (fixed, "worker-1")


def test_a_link_or_storage_that_asks_for_a_proxy_has_the_users_own_and_is_opened_once(now_proxies):
    stageout = opened(now_proxies)
    client = stageout.fts("fts_default", "ann", "open", "strict")
    assert "ann.pem" in repr(client)
    assert client is stageout.fts("fts_default", "ann", "strict", "open")
    assert stageout.place("open", "ann") is stageout.place("open", "bob")
    assert stageout.place("strict", "ann") is not stageout.place("open", "ann")
    for ask in (lambda: stageout.fts("fts_default", "bob", "open", "strict"), lambda: stageout.place("strict", "bob")):
        with refused(CREDENTIAL_MISSING):
            ask()


def test_the_token_of_the_fts_server_goes_to_no_storage_but_its_own_simulated_ones(now_proxies, monkeypatch):
    given = {}

    def open_place(site, credential, _):
        given[site.name] = credential
        return MemoryPlace()

    monkeypatch.setattr("include.stageout.opening.open_place", open_place)
    stageout = opened(now_proxies, {}, password="a-token-for-fts")
    for name in ("web", "open", "strict"):
        stageout.place(name, "ann")
    assert (given["web"], given["open"]) == (None, BearerToken("a-token-for-fts"))
    assert given["strict"].certificate.endswith("ann.pem")
    opened(now_proxies).place("web", "ann")
    assert given["web"] == X509Files("/etc/service.pem")
