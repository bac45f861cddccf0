"""The plugin's web applications behind Airflow's login: what each role may do, and how wrong tokens are answered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.revoked_token import RevokedToken
from fastapi.testclient import TestClient
from starlette.routing import Route

from hooks import logins
from include.pages.registry import PAGES, PREFIX, STAGEOUT_API
from include.pages.start import ACTIONS
from include.site.site import Site
from plugins import nightshift_plugin
from tests.fakes.transfers import recorded
from tests.fakes.transfers_site import transfers_site

ROOT = Path(__file__).parents[3]
LOOKS = {"GET", "HEAD", "OPTIONS"}
LONG_AGO = -3600
PLACES = {"name:path": "w", "number": "1"}
HINT = "send a token of Airflow: POST /auth/token gives it"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with transfers_site(tmp_path_factory.mktemp("site")) as opened:
        yield opened


@pytest.fixture(scope="module")
def apps(site: Site) -> Iterator[dict[str, Any]]:
    """The applications by prefix, over a ledger of their own; no token was ever revoked."""
    create_auth_manager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nightshift_plugin, "site", lambda: lambda: site)
        patch.setattr(RevokedToken, "is_revoked", lambda _: False)
        mounted = nightshift_plugin.NightshiftPlugin.fastapi_apps
        yield {app["url_prefix"]: nightshift_plugin.LazyApp(app["app"]._made).app for app in mounted}


@pytest.fixture(autouse=True)
def many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow as many calls at once as these tests make of one user; the limit has tests of its own."""
    monkeypatch.setattr("include.stageout.rest.limits.BURST", 10_000.0)


def token(role: str, valid_for: int = 60) -> str:
    """A token of Airflow for a user of this role."""
    user = SimpleAuthManagerUser(username="ann", role=role)
    return create_auth_manager().generate_jwt(user, expiration_time_in_seconds=valid_for)


def call(app: Any, method: str, path: str, authorization: str | None, document: Any = None) -> Any:
    headers = {"content-type": "application/json"} | ({"authorization": authorization} if authorization else {})
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        return client.request(method, path, headers=headers, content=json.dumps(document or {}))


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


def rights() -> dict[str, dict[str, bool]]:
    """The table of docs/security.md: by action, whether a role may."""
    lines = (ROOT / "docs/security.md").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| action"))
    head, _, *rows = takewhile(lambda line: line.startswith("|"), lines[begin:])
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]
    (_, *roles), *actions = table
    return {name: dict(zip(map(str.lower, roles), (cell == "yes" for cell in cells), strict=True))
            for name, *cells in actions}  # fmt: skip


def test_each_role_may_do_what_the_table_says(
    apps: dict[str, Any], site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of every role is ann."""
    own, other = recorded(site.ledger, 1, owner="ann")[0], recorded(site.ledger, 1, owner="bob")[0]
    monkeypatch.setattr(logins, "create_session", lambda: nullcontext(SimpleNamespace(scalar=lambda _: False)))
    manager, pages, api = create_auth_manager(), apps[PREFIX], apps[STAGEOUT_API]

    shown = {page.name for page in PAGES if page.nav} - {"audit"}

    def get(app: Any, path: str, role: str) -> Any:
        return call(app, "GET", path, f"Bearer {token(role)}")

    def change(number: int, verb: str, role: str) -> bool:
        """The call as a page makes it; it changed the transfer."""
        answer = call(api, "POST", f"/transfers/{verb}", f"Bearer {token(role)}", {"ids": [number]})
        return answer.status_code == 200 and max(answer.json().values()) == 1

    def changes(number: int, role: str) -> bool:
        done = {change(number, verb, role) for verb in ("keep", "kill", "resubmit")}
        assert len(done) == 1, (number, role)
        return done.pop()

    def looks(role: str) -> bool:
        found = {get(pages, f"/{name}", role).status_code for name in shown}
        answers = {get(api, path, role).status_code for path in (f"/transfers/{own}", "/analytics.csv")}
        return found == answers == {200}

    def audits(role: str) -> bool:
        answers = {get(pages, path, role).status_code for path in ("/audit", "/audit/live")}
        assert answers in ({200}, {403}), (role, answers)
        return answers == {200}

    def starts(role: str) -> bool:
        answers = [get(pages, f"/start?action={action}", role) for action in ACTIONS]
        refused = {"may not start" in answer.text for answer in answers}
        assert {answer.status_code for answer in answers} == {200}
        assert len(refused) == 1
        return not refused.pop()

    def pools(role: str) -> bool:
        return manager.is_authorized_pool(method="PUT", user=SimpleAuthManagerUser(username="ann", role=role))

    tried: tuple[Callable[[str], bool], ...] = (
        looks, partial(changes, own), lambda role: get(api, f"/transfers/{other}", role).status_code == 200,
        partial(changes, other), starts, pools, audits,
    )  # fmt: skip
    table = rights()
    assert {action: {role: may(role) for role in table[action]} for action, may in zip(table, tried, strict=True)} == (
        table
    )


def test_every_test_that_the_page_on_security_names_exists() -> None:
    named = re.findall(r"`([a-z0-9/_]+[.]py)::(test_[a-z0-9_]+)`", (ROOT / "docs/security.md").read_text())
    assert len(named) > 10
    missing = [name for file, name in named if f"def {name}(" not in (ROOT / "tests" / file).read_text()]
    assert missing == []


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
