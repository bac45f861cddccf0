"""Schemathesis over the description that the service gives of itself: every answer is one that it announces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case, DeserializationContext, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from include.gateway.protocol import authorization
from include.gateway.service.http.admin_calls import document
from include.gateway.service.http.server import routes
from tests.integration.gateway.conftest import REPOSITORY, StartGateway
from tests.site import RunningGateway

pytest_plugins = ["schemathesis.pytest.plugin"]
SCHEMA = schemathesis.openapi.from_dict(document())
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
FEW = settings(
    max_examples=15, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


@schemathesis.deserializer("text/plain")
def _json_as_text(_: DeserializationContext, response: Response) -> object:
    """The stock gateway calls its JSON plain text."""
    text = response.content.decode()
    return json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="module")
def service(start_module_gateway: StartGateway) -> RunningGateway:
    return start_module_gateway(max_lease_time_s=30.0)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


def signed(prepared: requests.PreparedRequest, key_id: str, secret: str) -> str:
    """The header that a call with this URL and body needs, as the protocol says what is signed."""
    path = unquote(urlsplit(prepared.url or "").path)
    body = prepared.body or b""
    body = body.encode() if isinstance(body, str) else bytes(body)
    parts = path.split("/")
    if (parts[3:4] == ["leases"] and len(parts) > 4) or (parts[3:4] == ["payloads"] and len(parts) > 4):
        message = parts[4].encode("utf-8", "replace")
    elif parts[3:4] == ["leases-by-path"]:
        message = path.encode("utf-8", "replace")
    elif parts[3:4] == ["payloads"]:
        size = prepared.headers.get("Message-Size", "0")
        message = body[: int(size)] if size.isdigit() else b""
    else:
        message = body
    return authorization(key_id, secret, message)


def run(case: Case, service: RunningGateway, session: requests.Session, key: tuple[str, str] | None) -> None:
    prepared = session.prepare_request(requests.Request(**request_of(case, service)))
    if key is not None:
        prepared.headers["Authorization"] = signed(prepared, *key)
    response = session.send(prepared, timeout=20, allow_redirects=False)
    assert response.headers["X-Nightshift-Trace"]
    checks = CHECKS
    stock = (response.status_code, response.text) == (500, "invalid lease\n")
    if stock or (response.status_code == 503 and case.path == "/ready"):
        checks = [check for check in CHECKS if check is not not_a_server_error]
    case.validate_response(response, checks=checks)


def request_of(case: Case, service: RunningGateway) -> dict[str, object]:
    wanted = case.as_transport_kwargs(base_url=service.url)
    return {name: value for name, value in wanted.items() if name in requests.Request("GET").__dict__ and value}


@SCHEMA.parametrize()
@FEW
def test_every_answer_is_announced(case: Case, service: RunningGateway, session: requests.Session) -> None:
    for key in (None, ("rootkey", "root-secret"), ("adminkey", "admin-secret")):
        run(case, service, session, key)


@SCHEMA.include(path="/api/v1/leases", method="POST").parametrize()
@FEW
def test_leases_on_paths_of_a_repository(case: Case, service: RunningGateway, session: requests.Session) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("path"), str):
        case.body = {**case.body, "path": f"{REPOSITORY}/{case.body['path']}"}
    run(case, service, session, ("rootkey", "root-secret"))


def test_every_route_is_described_and_nothing_else(service: RunningGateway, session: requests.Session) -> None:
    served = session.get(f"{service.url}/openapi.json", timeout=20).json()
    assert served == json.loads(json.dumps(document()))
    described = {(method.upper(), path) for path, calls in served["paths"].items() for method in calls}

    class Anything:
        def __getattr__(self, _: str) -> Anything:
            return self

    assert described == {(method, path.replace(":path", "")) for method, path, _ in routes(Anything())}  # type: ignore[arg-type]
