"""Stage-out opened from settings: which credential goes to which server, and what is opened only once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.fts.client.transport import BearerToken, X509Files
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.stageout.errors import CREDENTIAL_MISSING
from include.stageout.opening import open_stageout
from include.stageout.retry import fixed
from tests.fakes.certificates import Authority
from tests.fakes.places import MemoryPlace
from tests.fakes.refused import refused


@pytest.fixture
def opened(tmp_path):
    return opened_with(tmp_path, {"certificate": "/etc/service.pem"})


def opened_with(tmp_path, extra, password=None):
    made = Authority(datetime.now(UTC)).files(tmp_path, "ann", timedelta(days=1))
    file = Path(made.certificate)
    file.write_bytes(file.read_bytes() + Path(made.key).read_bytes())
    file.chmod(0o600)

    def rules(name, scheme="mock"):
        rule = [{"prefix": "/", "url": f"{scheme}://{name}.example.org"}]
        return {"read": rule, "write": rule, "third_party": rule}

    document = {
        "paths": {"var": str(tmp_path / "var")},
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
        "sites": {
            "open": rules("open"),
            "strict": {**rules("strict"), "credential": "proxy"},
            "web": rules("web", "davs"),
        },
        "stageout": {"fts": ["fts_default"], "proxies": str(tmp_path), "retry": "fixed"},
    }
    connection = {"host": "https://fts.example.org:8446", "password": password, "extra": extra}
    secrets = EnvSecrets({"AIRFLOW_CONN_FTS_DEFAULT": json.dumps({"conn_type": "fts", **connection})})
    return open_stageout(Site(SiteSettings.model_validate(document), secrets), "worker-1")


def test_all_users_share_the_service_identity_where_sites_ask_for_no_other(opened):
    client = opened.fts("fts_default", "ann", "open", "open")
    assert client is opened.fts("fts_default", "bob", "open", "open") is opened.fts("fts_default", "")
    assert (client.url, "/etc/service.pem" in repr(client)) == ("https://fts.example.org:8446", True)
    assert (opened.retry, opened.worker.name) == (fixed, "worker-1")


def test_a_link_with_a_site_that_asks_for_a_proxy_has_the_users_own(opened):
    client = opened.fts("fts_default", "ann", "open", "strict")
    assert "ann.pem" in repr(client)
    assert client is opened.fts("fts_default", "ann", "strict", "open")
    with refused(CREDENTIAL_MISSING):
        opened.fts("fts_default", "bob", "open", "strict")


def test_a_storage_is_opened_once_for_each_identity(opened):
    assert opened.place("open", "ann") is opened.place("open", "bob")
    assert opened.place("strict", "ann") is not opened.place("open", "ann")
    with refused(CREDENTIAL_MISSING):
        opened.place("strict", "bob")


def test_the_token_of_the_fts_server_goes_to_no_storage_but_its_own_simulated_ones(tmp_path, monkeypatch):
    given = {}

    def open_place(site, credential, _):
        given[site.name] = credential
        return MemoryPlace()

    monkeypatch.setattr("include.stageout.opening.open_place", open_place)
    stageout = opened_with(tmp_path, {}, password="a-token-for-fts")
    for name in ("web", "open", "strict"):
        stageout.place(name, "ann")
    assert (given["web"], given["open"]) == (None, BearerToken("a-token-for-fts"))
    assert given["strict"].certificate.endswith("ann.pem")
    by_certificate = opened_with(tmp_path, {"certificate": "/etc/service.pem"})
    by_certificate.place("web", "ann")
    assert given["web"] == X509Files("/etc/service.pem")
