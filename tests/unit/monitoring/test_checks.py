"""Which connections are missing: here, in Airflow, or nobody knows; and Airflow is asked by its REST API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest
from sqlalchemy import create_engine, text

from include.cli.airflow_connections import ask_api
from include.monitoring.airflow_checks import Asked, look_at_connections, named
from include.monitoring.findings import Severity
from include.settings.load import load
from include.settings.model import SiteSettings
from include.settings.secrets import EnvSecrets
from lab.here import in_database
from tests.fakes.loopback import Heard, LoopbackServer, respond


@pytest.fixture
def site(tmp_path: Path) -> SiteSettings:
    file = tmp_path / "site.yaml"
    file.write_text(
        f'ledger: "sqlite:///{tmp_path}/l.db"\nairflow_connection: api\n'
        "stores: {main: {url: s3://main, connection: store_main}}\n"
        "notify: {apprise: {connections: [hook, smtp]}}\n"
    )
    return load(file, environ={})


@pytest.mark.parametrize(
    ("answer", "store", "notify"),
    [
        (True, Severity.WARNING, Severity.OK),
        (False, Severity.ERROR, Severity.ERROR),
        (None, Severity.ERROR, Severity.WARNING),
    ],
)
def test_what_a_missing_connection_means_depends_on_who_uses_it_and_what_airflow_says(
    site: SiteSettings, answer: bool | None, store: Severity, notify: Severity
) -> None:
    names = named(site, [], site.stores)
    assert names == {"api": "Airflow's API", "hook": "apprise", "smtp": "apprise", "store_main": "store main"}
    asked: Asked = lambda _: answer  # noqa: E731
    found = {one.subject: one for one in look_at_connections(site, EnvSecrets({}), names, asked)}
    assert {name: one.severity for name, one in found.items()} == {
        "api": store, "store_main": store, "hook": notify, "smtp": notify,
    }  # fmt: skip
    if answer is None:
        assert "Airflow cannot be asked" in found["hook"].seen


def test_the_url_of_a_chat_service_is_read_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("notify: {apprise: {connections: [chat, news]}}\nmetrics_connection: prometheus\n")
    settings = load(file, environ={})
    names = named(settings, [], [])
    assert names == {"chat": "apprise", "news": "apprise", "prometheus": "token of Prometheus"}
    passwords = {"CHAT": "slack://token-of-chat", "NEWS": "json://127.0.0.1/news", "PROMETHEUS": "t"}
    environ = {
        f"AIRFLOW_CONN_{name}": json.dumps({"conn_type": "x", "password": one}) for name, one in passwords.items()
    }
    found = {one.subject: one for one in look_at_connections(settings, EnvSecrets(environ), names)}
    assert {name: one.severity for name, one in found.items()} == {
        "chat": Severity.ERROR, "news": Severity.OK, "prometheus": Severity.OK,
    }  # fmt: skip
    assert "token-of-chat" not in found["chat"].seen + found["chat"].cure


class Api(LoopbackServer):
    """Airflow's API as far as logins and connections go."""

    METHODS = ("GET", "POST")
    STATUSES: ClassVar = {"hook": 200, "smtp": 404, "secret": 403}

    def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
        if request.method == "GET":
            respond(handler, self.STATUSES[request.path.removeprefix("/api/v2/connections/")], b"{}")
        else:
            known = json.loads(request.body) == {"username": "viewer", "password": "p"}
            respond(handler, 201 if known else 401, b'{"access_token": "t"}')


@pytest.fixture
def api() -> Iterator[str]:
    with Api() as server:
        yield f"http://{server.address}"


def test_airflow_is_asked_by_its_api_and_a_refusal_is_no_answer(site: SiteSettings, api: str) -> None:
    def asked(password: str) -> Asked:
        connection = json.dumps({"host": api, "login": "viewer", "password": password})
        return ask_api(site, EnvSecrets({"AIRFLOW_CONN_API": connection}))

    assert [asked("p")(name) for name in ("hook", "smtp", "secret")] == [True, False, None]
    assert asked("wrong")("hook") is None
    assert ask_api(site, EnvSecrets({}))("hook") is None
    assert ask_api(site, EnvSecrets({"AIRFLOW_CONN_API": '{"host": "http://127.0.0.1:1"}'}))("hook") is None


def test_connections_of_the_ui_are_found_in_the_database_of_the_lab(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/airflow.db"
    assert in_database(url) is None
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE connection (conn_id TEXT)"))
        connection.execute(text("INSERT INTO connection VALUES ('hook')"))
    engine.dispose()
    assert in_database(url) == {"hook"}


def test_the_key_of_a_replicas_machine_is_among_what_a_repository_needs(tmp_path: Path) -> None:
    node = {"host": "s1", "user": "cvmfs", "known_hosts": "hosts", "key": "id", "connection": "s1_key"}
    repository = {
        "store": "main", "public_url": "http://s0/r", "public_key": "r.pub", "gateway": "gateway",
        "replicas": [{"name": "s1", "url": "http://s1/r", "node": node}, {"name": "s2", "url": "http://s2/r"}],
    }  # fmt: skip
    stores = {"main": {"url": f"file://{tmp_path}"}}
    settings = SiteSettings.model_validate({"stores": stores, "repositories": {"r.example.org": repository}})
    assert named(settings, ["r.example.org"], [])["s1_key"] == "key of replica s1 of r.example.org"
