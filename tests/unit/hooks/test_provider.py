"""Connections of Airflow as the library sees them, and what the UI is told about their forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.module_loading import import_string

from hooks.fts import FtsHook
from hooks.gateway import CvmfsGatewayHook, _served
from hooks.object_store import ObjectStoreHook
from hooks.provider import DISTRIBUTION, get_provider_info
from hooks.secrets import AirflowSecrets
from include.gateway.client.leases import RepositoryInfo
from include.settings.errors import BadConnection, MissingConnection
from include.settings.secrets import ConnectionSecrets, base_url
from tests.fakes.ftsserver import FtsServer
from tests.fakes.refused import refused
from tests.fakes.stockgateway import StockGateway


def _define(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))


def test_the_provider_is_found_and_its_description_is_one_that_airflow_accepts() -> None:
    import airflow
    import jsonschema

    (entry,) = [one for one in entry_points(group="apache_airflow_provider") if one.value.startswith("hooks.provider")]
    assert entry.dist is not None
    assert entry.dist.name == DISTRIBUTION
    folder = Path(airflow.__file__).parent
    schema = json.loads((folder / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


@pytest.mark.parametrize("described", get_provider_info()["connection-types"], ids=lambda one: one["connection-type"])
def test_every_connection_type_has_its_hook(described: dict[str, Any]) -> None:
    hook = import_string(described["hook-class-name"])
    assert hook.conn_type == described["connection-type"]
    assert hook.hook_name == described["hook-name"]


def test_a_connection_of_airflow_is_one_of_the_library_and_its_secrets_do_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _define(monkeypatch, "any", conn_type="fts", host="h", port=1, login="l", password="hidden", extra={"a": 1})
    found = AirflowSecrets().get("any")
    assert (found.host, found.port, found.login, found.password, found.extra) == ("h", 1, "l", "hidden", {"a": 1})
    assert "hidden" not in repr(found)
    with refused(MissingConnection, connection_id="nobody"):
        AirflowSecrets().get("nobody")


def test_the_gateway_hook_speaks_to_the_address_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"conn_type": "cvmfs_gateway", "login": "key", "password": "hidden"}
    _define(monkeypatch, "gw", host="gw.example.org", **fields)
    client = CvmfsGatewayHook("gw").get_conn()
    assert (client.url, client.key_id) == ("http://gw.example.org:4929/api/v1", "key")
    assert "hidden" not in repr(client)
    _define(monkeypatch, "gw", host="127.0.0.1", port=1, **fields)
    fine, said = CvmfsGatewayHook("gw").test_connection()
    assert (fine, "cannot connect" in said) == (False, True)


@pytest.fixture
def stock() -> Iterator[StockGateway]:
    """A gateway of one repository."""
    with StockGateway(SimpleNamespace(fqrn="nights.example.org"), {"key": "s3cr3t"}) as running:  # type: ignore[arg-type]
        yield running


def test_the_gateway_form_names_the_repositories_and_tries_the_secret(
    stock: StockGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    _define(monkeypatch, "gw", conn_type="cvmfs_gateway", host=stock.url, login="key", password="s3cr3t")
    assert CvmfsGatewayHook("gw").test_connection() == (True, "takes key key; serves nights.example.org")
    assert stock.leased == []
    for login, password in (("key", "wrong"), ("nobody", "s3cr3t")):
        _define(monkeypatch, "gw", conn_type="cvmfs_gateway", host=stock.url, login=login, password=password)
        fine, said = CvmfsGatewayHook("gw").test_connection()
        assert not fine
        assert f"trial of key {login}" in said
        assert "compare key id and secret of the connection" in said
        assert "s3cr3t" not in said


def test_repositories_that_do_not_list_the_key_are_named_apart() -> None:
    mine, other = RepositoryInfo("a.example.org", {"key": "/"}, True), RepositoryInfo("b.example.org", {}, True)
    assert _served([mine, other], "key") == "takes key key; serves a.example.org; not for this key: b.example.org"
    assert _served([other], "key").startswith("takes key key, which no repository lists")
    assert "serves no repository yet" in _served([], "key")


@pytest.mark.parametrize("hook", [CvmfsGatewayHook, FtsHook, ObjectStoreHook])
def test_a_form_never_shows_the_id_that_airflow_made_up(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _define(monkeypatch, "2xzirny7", conn_type=hook.conn_type, login="a", password="b")
    fine, said = hook("2xzirny7").test_connection()
    assert not fine
    assert said.startswith("this connection names no ")
    assert "2xzirny7" not in said.lower()


def test_the_fts_form_says_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with FtsServer(method="oauth2") as server:
        _define(monkeypatch, "fts", conn_type="fts", host=server.url, password="s3cr3t")
        assert FtsHook("fts").test_connection() == (True, "answers as FTS; we are /DC=ch/CN=user by oauth2")
        assert server.asked[0].headers["Authorization"] == "Bearer s3cr3t"
        server.method = "unauthenticated"
        fine, said = FtsHook("fts").test_connection()
        assert not fine
        assert "anonymous" in said


def test_what_is_wrong_with_an_fts_server_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, stock: StockGateway
) -> None:
    def said(**fields: Any) -> str:
        _define(monkeypatch, "fts", conn_type="fts", **fields)
        fine, text = FtsHook("fts").test_connection()
        assert not fine
        assert "s3cr3t" not in text
        return text

    assert "http://127.0.0.1:1: whoami: cannot connect; start the FTS" in said(host="http://127.0.0.1", port=1)
    assert "check that the URL is the one of an FTS server" in said(host=stock.url)
    assert "TLS failed; name the server's CA" in said(host="127.0.0.1", port=int(stock.url.rpartition(":")[2]))
    assert "/not/there" in said(host="127.0.0.1", extra={"certificate": "/not/there"})
    assert "use https" in said(host="http://fts.example.org", password="s3cr3t")


def test_the_store_hook_opens_a_url_with_the_connections_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _define(
        monkeypatch, "s3", conn_type="object_store", host="s3.example.org", schema="https", login="a", password="b",
        extra={"region": "here", "addressing": "virtual", "url": f"file://{tmp_path}"},
    )  # fmt: skip
    hook = ObjectStoreHook("s3")
    options = hook.options()
    assert (options.endpoint, options.region, options.addressing) == ("https://s3.example.org", "here", "virtual")
    assert hook.get_conn("s3://bucket/prefix").url == "s3://bucket/prefix"
    assert hook.test_connection()[0]


def test_the_fts_hook_authenticates_by_token_or_by_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    _define(monkeypatch, "fts", conn_type="fts", host="fts.example.org", password="s3cr3t")
    client = FtsHook("fts").get_conn()
    assert client.url == "https://fts.example.org:8446"
    assert repr(client) == "FtsClient('https://fts.example.org:8446', BearerToken())"
    _define(monkeypatch, "fts", conn_type="fts", host="fts.example.org", extra={"certificate": "/c", "key": "/k"})
    assert "X509Files(certificate='/c', key='/k')" in repr(FtsHook("fts").get_conn())


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "h"}, "http://h:80"), ({"host": "h", "port": 8}, "http://h:8"),
        ({"host": "h", "schema": "HTTPS", "port": 8}, "https://h:8"), ({"host": "https://h:9/path/"}, "https://h:9/path"),
        ({"host": "http://h", "port": 8}, "http://h:8"), ({"host": "https://h/path", "port": 8}, "https://h:8/path"),
        ({"host": "http://h:8/", "port": 8}, "http://h:8"), ({"host": "http://[::1]", "port": 8}, "http://[::1]:8"),
        ({"host": "::1", "port": 8}, "http://[::1]:8"),
        ({}, None), ({"host": "h", "schema": "ftp"}, None), ({"host": "http://h:9", "port": 8}, None),
        ({"host": "http://h:x"}, None),
    ],
)  # fmt: skip
def test_scheme_host_and_port_make_a_url_or_are_refused(fields: dict[str, Any], url: str | None) -> None:
    connection = ConnectionSecrets(id="c", **fields)
    if url is not None:
        assert base_url(connection, port=80) == url
    else:
        with refused(BadConnection, connection_id="c"):
            base_url(connection, port=80)
