"""Reading over plain HTTP works from any web server, also from one that knows no ranges."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from include.storage.errors import NotFound, Unavailable
from include.storage.open import open_store
from include.storage.options import StoreOptions
from include.storage.store import Store
from tests.fakes.refused import refused


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of a folder with an object, by a server without ranges."""
    (tmp_path / "repo/data").mkdir(parents=True)
    (tmp_path / "repo/data/a b").write_bytes(b"0123456789")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/repo/"
        server.shutdown()


@pytest.fixture
def store(served: str) -> Store:
    return open_store(served)


def test_objects_are_read_headed_and_streamed(store: Store) -> None:
    assert store.get("data/a b") == b"0123456789"
    assert store.child("data").get("a b") == b"0123456789"
    assert b"".join(store.stream("data/a b")) == b"0123456789"
    meta = store.head("data/a b")
    assert meta is not None
    assert (meta.key, meta.size) == ("data/a b", 10)


def test_ranges_are_cut_out_when_the_server_knows_none(store: Store) -> None:
    assert store.get_range("data/a b", 3, 4) == b"3456"
    assert store.get_range("data/a b", 8, 40) == b"89"
    assert store.get_range("data/a b", 80, 4) == b""


def test_an_absent_object_is_not_found(store: Store) -> None:
    assert store.head("nothing") is None
    with refused(NotFound, key="nothing"):
        store.get("nothing")


def test_a_server_that_is_gone_is_unavailable() -> None:
    store = open_store("http://127.0.0.1:9/repo", options=StoreOptions(retries=0))
    with refused(Unavailable, key="a", cause="connection"):
        store.get("a")
