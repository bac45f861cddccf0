"""Whatever is sent, the service answers clearly: no 500, no traceback, and it goes on serving."""

from __future__ import annotations

import http.client
import socket
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from include.gateway.client.client import GatewayClient
from include.gateway.protocol import authorization
from tests.integration.gateway.conftest import REPOSITORY

CLEAR = {200, 301, 308, 400, 404, 405, 413}

on_one_service = settings(
    max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


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


@on_one_service
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
