"""The plugin's web applications behind Airflow's login: what each role may do, and how wrong tokens are answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.revoked_token import RevokedToken
from fastapi.testclient import TestClient
from starlette.routing import Route

from include.pages.registry import PREFIX, STAGEOUT_API
from plugins import nightshift_plugin
from tests.fakes.transfers_site import transfers_site

LOOKS = {"GET", "HEAD", "OPTIONS"}
LONG_AGO = -3600
PLACES = {"name:path": "w", "number": "1"}
HINT = "send a token of Airflow: POST /auth/token gives it"


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The applications by prefix, over a ledger of their own; no token was ever revoked."""
    create_auth_manager()
    with transfers_site(tmp_path_factory.mktemp("site")) as site, pytest.MonkeyPatch.context() as patch:
        patch.setattr(nightshift_plugin, "site", lambda: lambda: site)
        patch.setattr(RevokedToken, "is_revoked", lambda _: False)
        mounted = nightshift_plugin.NightshiftPlugin.fastapi_apps
        yield {app["url_prefix"]: nightshift_plugin.LazyApp(app["app"]._made).app for app in mounted}


def token(role: str, valid_for: int = 60) -> str:
    """A token of Airflow for a user of this role."""
    user = SimpleAuthManagerUser(username="ann", role=role)
    return create_auth_manager().generate_jwt(user, expiration_time_in_seconds=valid_for)


def call(app: Any, method: str, path: str, authorization: str | None) -> Any:
    headers = {"content-type": "application/json"} | ({"authorization": authorization} if authorization else {})
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        return client.request(method, path, headers=headers, content=b"{}")


def calls(apps: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every call of the applications: prefix, method, path. A kind of route that is not expected here fails."""
    found = []
    for prefix, app in apps.items():
        for route in app.routes:
            assert isinstance(route, Route), route
            path = "/".join(PLACES.get(part.strip("{}"), part.strip("{}")) for part in route.path.split("/"))
            found += [(prefix, method, path) for method in sorted(route.methods or LOOKS)]
    return found


def test_a_viewer_may_call_nothing_that_changes(apps: dict[str, Any]) -> None:
    changing = [row for row in calls(apps) if row[1] not in LOOKS]
    assert (STAGEOUT_API, "POST", "/requests") in changing
    assert (STAGEOUT_API, "POST", "/workflows/w/kill") in changing
    for prefix, method, path in changing:
        answer = call(apps[prefix], method, path, f"Bearer {token('viewer')}")
        assert (answer.status_code, answer.json()["code"]) == (403, "stageout-viewers-look"), path
        assert "the right to edit the DAG stage_out_submit is missing" in answer.json()["message"]
        assert "ask an administrator" in answer.json()["hint"]
        for role in ("user", "op", "admin"):
            passed = call(apps[prefix], method, path, f"Bearer {token(role)}")
            assert passed.status_code in {400, 404}, (role, path)
            assert passed.json()["code"] in {"stageout-body-invalid", "stageout-workflow-unknown"}


def test_a_viewer_may_look(apps: dict[str, Any]) -> None:
    for path in ("/transfers", "/summary", "/workflows", "/analytics.csv", "/openapi.json"):
        assert call(apps[STAGEOUT_API], "GET", path, f"Bearer {token('viewer')}").status_code == 200, path
    assert call(apps[PREFIX], "GET", "/transfers", f"Bearer {token('viewer')}").status_code == 200


@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        (None, "Not authenticated"),
        ("Bearer", "Not authenticated"),
        ("Basic YW5uOmFubg==", "Not authenticated"),
        ("Bearer nonsense", "Invalid JWT token"),
        ("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.", "Invalid JWT token"),
        ("Bearer EXPIRED", "Token Expired"),
        ("Bearer CHANGED", "Invalid JWT token"),
        ("Bearer UNKNOWN", "Invalid JWT token"),
    ],
)
def test_without_a_valid_token_every_call_is_told_how_to_get_one(
    apps: dict[str, Any], authorization: str | None, message: str
) -> None:
    valid, manager = token("user"), create_auth_manager()
    payload = manager.serialize_user(SimpleAuthManagerUser(username="ann", role="user"))
    del payload["role"]
    made = {
        "EXPIRED": token("user", LONG_AGO),
        "CHANGED": valid[:-8] + valid[-8:].swapcase(),
        "UNKNOWN": manager._get_token_signer().generate(payload),
    }
    for name, text in made.items():
        authorization = authorization and authorization.replace(name, text)
    for prefix, method, path in calls(apps):
        if path in {"/health", "/metrics"}:
            continue
        answer = call(apps[prefix], method, path, authorization)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        if prefix == STAGEOUT_API and method != "HEAD":
            assert answer.json() == {"code": "http-401", "message": message, "hint": HINT}
    assert call(apps[PREFIX], "GET", "/health", authorization).status_code == 401
    assert call(apps[PREFIX], "GET", "/health", authorization).headers["www-authenticate"] == "Bearer"
