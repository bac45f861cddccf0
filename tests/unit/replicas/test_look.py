"""Each server is read alone, through its redirections, and its bytes are compared."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from include.replicas.look import see_server
from include.storage.file import FileStore
from tests.fakes.minirepo import FQRN, NOW, MiniRepository, public_key, sample


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


class Front(Quiet):
    """Answers metadata, and redirects for data."""

    data = ""

    def do_GET(self) -> None:
        if "/data/" in self.path:
            self.send_response(302)
            self.send_header("Location", f"{self.data}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()


def serve(handler: type[Quiet], folder: Path) -> tuple[ThreadingHTTPServer, str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def mini(tmp_path: Path) -> MiniRepository:
    built = sample(FileStore(tmp_path / "cvmfs" / FQRN))
    built.publish()
    return built


@pytest.fixture
def servers(
    tmp_path: Path, mini: MiniRepository, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[ThreadingHTTPServer, str]]]:
    data = serve(Quiet, tmp_path)
    monkeypatch.setattr(Front, "data", data[1])
    both = [serve(Front, tmp_path), data]
    yield both
    for server, _ in both:
        server.shutdown()
        server.server_close()


def test_an_object_comes_through_a_redirection_and_is_right(servers: list[tuple[ThreadingHTTPServer, str]]) -> None:
    front, plain = (see_server(f"{url}/cvmfs/{FQRN}", FQRN, [public_key()], NOW) for _, url in servers)
    assert (front.fault, plain.fault) == ("", "")
    assert "is right, redirected to" in front.text
    assert "not redirected" in plain.text


def test_a_server_that_stops_is_a_fault_and_the_second_answers(servers: list[tuple[ThreadingHTTPServer, str]]) -> None:
    (first, url), (_, second) = servers
    first.shutdown()
    first.server_close()
    assert see_server(f"{url}/cvmfs/{FQRN}", FQRN, [public_key()], NOW).fault
    assert not see_server(f"{second}/cvmfs/{FQRN}", FQRN, [public_key()], NOW).fault


def test_wrong_bytes_of_a_data_server_are_a_fault(
    servers: list[tuple[ThreadingHTTPServer, str]], mini: MiniRepository, tmp_path: Path
) -> None:
    for entry in mini.entries.values():
        if entry.hash is not None:
            (tmp_path / "cvmfs" / FQRN / entry.hash.key).write_bytes(b"<html>")
    look = see_server(f"{servers[0][1]}/cvmfs/{FQRN}", FQRN, [public_key()], NOW)
    assert "other bytes" in look.fault
