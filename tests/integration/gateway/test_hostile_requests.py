"""Whatever is sent, the service answers clearly: no 500, no traceback, and it goes on serving."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings, strategies as st
from schemathesis import Case, DeserializationContext, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from include.gateway.client.client import GatewayClient
from include.gateway.protocol import authorization
from include.gateway.service.http.admin_calls import document
from include.gateway.service.http.server import routes
from tests.integration.gateway.conftest import REPOSITORY, StartGateway
from tests.site import RunningGateway

CLEAR = {200, 301, 308, 400, 404, 405, 413}


class Caller:
    """Sends anything at all."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)

    def send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            assert reply.getheader("X-Nightshift-Trace")
            return reply.status, reply.read()
        finally:
            connection.close()

    def raw(self, data: bytes) -> bytes:
        with socket.create_connection((self._address.hostname, self._address.port), timeout=20) as connection:  # type: ignore[arg-type]
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            reply = b""
            while block := connection.recv(65536):
                reply += block
            return reply


@pytest.fixture
def caller(gateway: Any) -> Caller:
    return Caller(gateway.url)


def is_clear(status: int, body: bytes) -> bool:
    return (status in CLEAR or (status, body) == (500, b"invalid lease\n")) and b"Traceback" not in body


@settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "PROPFIND"]),
    head=st.sampled_from(["/", "/health", "/api/v1", "/api/v1/leases/", "/api/v1/repos/", "/api/v1/leases-by-path/",
                          "/api/v1/payloads/"]),
    tail=st.binary(max_size=40),
    header=st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=60),
    body=st.binary(max_size=50),
)  # fmt: skip
def test_any_path_method_and_authorization_is_answered_clearly(
    caller: Caller, method: str, head: str, tail: bytes, header: str, body: bytes
) -> None:
    headers = {"Authorization": header.strip(), "Message-Size": str(len(body))}
    assert is_clear(*caller.send(method, head + quote(tail, safe=""), body, headers))


@pytest.mark.parametrize("path", ["/a%00b", "/%ff%fe", "/../../etc", "/a//b", "//", "/%2e%2e/b", ""])
def test_an_admin_path_that_is_malformed_is_refused(caller: Caller, path: str) -> None:
    url = f"/api/v1/leases-by-path/{REPOSITORY}{path}"
    header = authorization("adminkey", "admin-secret", unquote(url).encode())
    status, reply = caller.send("DELETE", url, b"", {"Authorization": header})
    assert is_clear(status, reply)
    assert b'"status":"ok"' not in reply


@pytest.mark.parametrize("size", [64 * 1024 + 1, 5_000_000])
def test_a_body_that_is_too_large_is_refused(caller: Caller, size: int) -> None:
    status, reply = caller.send("POST", "/api/v1/leases", b"x" * 70_000, {"Content-Length": str(70_000)})
    assert (status, reply[:22]) == (413, b"request body too large")
    status, reply = caller.send("POST", "/api/v1/payloads", b"{}", {"Message-Size": str(size)})
    assert status == 413


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /api/v1/leases HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n",
        b"POST /api/v1/leases HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\nshort",
        b"POST /api/v1/leases HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /api/v1/leases/\xff\xfe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    ],
)
def test_what_is_no_http_does_not_disturb_the_service(caller: Caller, client: GatewayClient, data: bytes) -> None:
    assert b"Traceback" not in caller.raw(data)
    assert client.leases() == []


# -- Schemathesis over the description that the service gives of itself: every answer is one that it announces


pytest_plugins = ["schemathesis.pytest.plugin"]
SCHEMA = schemathesis.openapi.from_dict(document())
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
FEW = settings(
    max_examples=10, derandomize=True,
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
