"""Who gets figures and health: a login or the token for health, the token alone for figures; nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

from include.monitoring.metrics import routes
from include.settings.errors import SettingsError
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.plainsite import plain_site

TOKEN = "the token of prometheus"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LOGIN = {"Cookie": "login=yes"}


async def logged_in(request: Request) -> bool:
    return request.cookies.get("login") == "yes"


def site_of(folder: Path, *, connection: str | None = "metrics", password: str | None = TOKEN) -> Site:
    settings = plain_site(folder).settings.model_copy(update={"metrics_connection": connection})
    defined = {
        "AIRFLOW_CONN_METRICS": json.dumps({"conn_type": "generic", "password": password}),
        "AIRFLOW_CONN_GATEWAY": json.dumps({"conn_type": "cvmfs_gateway", "host": "127.0.0.1", "port": 1}),
    }
    return Site(settings, EnvSecrets(defined))


def client_of(site: Site) -> TestClient:
    return TestClient(Starlette(routes=routes(lambda: site, logged_in)), raise_server_exceptions=False)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "builds").mkdir()
    found = site_of(tmp_path)
    yield found
    found.ledger.dispose()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer käse".encode("latin-1")},
        {"Cookie": "login=no"},
    ],
)
def test_without_the_token_there_are_no_figures_and_without_a_login_either_no_health(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    client = client_of(site_of(tmp_path))
    for path in ("/metrics", "/health"):
        reply = client.get(path, headers=headers)
        assert (reply.status_code, reply.json()) == (401, {"detail": "Not authenticated"})
        assert reply.headers["www-authenticate"] == "Bearer"


def test_a_login_gives_health_and_no_figures(site: Site) -> None:
    assert client_of(site).get("/metrics", headers=LOGIN).status_code == 401
    assert client_of(site).get("/health", headers=LOGIN).status_code == 503


@pytest.mark.parametrize("of", [{"connection": None}, {"connection": "other"}, {"password": None}, {"password": ""}])
def test_without_a_token_of_its_own_a_site_gives_no_figures_to_anybody(tmp_path: Path, of: dict[str, str]) -> None:
    client = client_of(site_of(tmp_path, **of))
    for given in ("Bearer None", "Bearer ", f"Bearer {TOKEN}"):
        assert client.get("/metrics", headers={"Authorization": given}).status_code == 401


def test_health_names_what_is_away_and_figures_tell_it_too(site: Site) -> None:
    client = client_of(site)
    reply = client.get("/health", headers=BEARER)
    found = reply.json()
    assert (reply.status_code, found["status"], found["ready"]) == (503, "failed", False)
    assert {(one["check"], one["subject"]): one["severity"] for one in found["findings"]} == {
        ("gateway", "gateway"): "error",
        ("ledger", "ledger"): "ok",
        ("store", "builds"): "ok",
    }
    page = client.get("/metrics", headers=BEARER)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = page.text.splitlines()
    assert 'nightshift_part_up{name="gateway",part="gateway"} 0.0' in lines
    assert 'nightshift_part_up{name="ledger",part="ledger"} 1.0' in lines
    assert TOKEN not in reply.text + page.text


def test_a_ledger_that_is_away_is_told_and_nothing_else(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    away = site.settings.model_copy(update={"ledger": "mysql+pymysql://night:hidden@127.0.0.1:1/ledger"})
    client = client_of(Site(away, site.secrets))
    reply, page = client.get("/health", headers=BEARER), client.get("/metrics", headers=BEARER)
    assert reply.status_code == 503
    assert 'nightshift_part_up{name="ledger",part="ledger"} 0.0' in page.text
    assert "nightshift_publications" not in page.text
    assert "hidden" not in reply.text + page.text


def test_settings_that_cannot_be_read_refuse_the_token_and_say_so_to_who_is_logged_in() -> None:
    def broken() -> Site:
        raise SettingsError("site.yaml:3: no such thing")

    client = TestClient(Starlette(routes=routes(broken, logged_in)), raise_server_exceptions=False)
    assert client.get("/metrics", headers=BEARER).status_code == 401
    reply = client.get("/health", headers=LOGIN)
    assert (reply.status_code, reply.json()) == (503, {"status": "failed", "detail": "site.yaml:3: no such thing"})
