"""Passing failures are repeated after growing pauses and counted by cause; others are not repeated."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from obstore.exceptions import GenericError, PermissionDeniedError, PreconditionError

from include.errors import ErrorRow
from include.storage.errors import (
    STORE_FULL,
    BucketMissing,
    Conflict,
    Forbidden,
    NotFound,
    RequestRejected,
    StoreError,
    Unavailable,
    Unsupported,
    read_failure,
)
from include.storage.kinds import StoreOptions
from include.storage.open import open_store
from include.storage.remote import FIRST_PAUSE_S, LONGEST_PAUSE_S, Retrier, pause_s
from include.storage.store import Counters, Store
from tests.fakes.refused import refused


def answer(status: str, code: str = "", method: str = "PUT") -> str:
    body = f"<Error><Code>{code}</Code><Message>why</Message></Error>" if code else ""
    return (
        f"Generic S3 error: Error performing {method} http://host/bucket/a in 1ms - "
        f"Server returned non-2xx status code: {status}: {body}\n\nDebug source:\nGeneric {{ store: S3 }}"
    )


def retrier(counters: Counters, retries: int = 3) -> tuple[Retrier, list[float]]:
    pauses: list[float] = []
    return Retrier("s3://bucket", counters, retries=retries, connections=2, sleep=pauses.append), pauses


@given(st.integers(0, 200), st.floats(0, 1, exclude_max=True))
def test_pauses_are_bounded_and_grow_with_the_attempts(attempt: int, draw: float) -> None:
    assert 0 <= pause_s(attempt, draw) <= LONGEST_PAUSE_S
    assert pause_s(attempt, draw) <= FIRST_PAUSE_S * 2 ** min(attempt, 30)
    assert pause_s(attempt + 1, draw) >= pause_s(attempt, draw)


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (GenericError(answer("503 Service Unavailable", "SlowDown")), Unavailable, "503"),
        (GenericError(answer("500 Internal Server Error")), Unavailable, "500"),
        (GenericError(answer("502 Bad Gateway")), Unavailable, "502"),
        (GenericError(answer("429 Too Many Requests")), Unavailable, "429"),
        (GenericError(answer("400 Bad Request", "RequestTimeout")), Unavailable, "timeout"),
        (GenericError(answer("409 Conflict", "OperationAborted")), Unavailable, "409"),
        (
            GenericError("Generic S3 error: HTTP error: error sending request\n\nDebug source:\nTimedOut"),
            Unavailable,
            "timeout",
        ),
        (
            GenericError("Generic S3 error: HTTP error: error sending request\n\nDebug source:\nhyper"),
            Unavailable,
            "connection",
        ),
        (GenericError("Generic S3 error: HTTP error: request or response body error"), Unavailable, "connection"),
        (PreconditionError(answer("412 Precondition Failed")), Conflict, ""),
        (PermissionDeniedError(answer("403 Forbidden", "SignatureDoesNotMatch")), Forbidden, ""),
        (PermissionDeniedError(answer("403 Forbidden", "QuotaExceeded")), STORE_FULL, ""),
        (GenericError(answer("507 Insufficient Storage")), STORE_FULL, ""),
        (GenericError(answer("501 Not Implemented")), Unsupported, ""),
        (GenericError(answer("400 Bad Request", "Nonsense")), RequestRejected, ""),
        (FileNotFoundError(answer("404 Not Found", "NoSuchBucket")), BucketMissing, ""),
        (FileNotFoundError(answer("404 Not Found", "NoSuchKey")), NotFound, ""),
    ],
)
def test_the_answer_of_a_store_becomes_an_error_of_ours(
    error: Exception, kind: type[StoreError] | ErrorRow[..., StoreError], cause: str
) -> None:
    ours = read_failure(error).error("a", "s3://bucket")
    assert ours.code == kind.code
    assert ours.key == "a"
    assert "a in s3://bucket" in str(ours)
    assert "\n" not in str(ours)
    assert getattr(ours, "cause", "") == cause


def test_passing_failures_are_repeated_and_counted_by_cause() -> None:
    counters = Counters()
    runner, pauses = retrier(counters)
    outcomes: list[object] = [
        GenericError(answer("503 Service Unavailable")),
        GenericError(answer("429 Too Many Requests")),
        GenericError(answer("503 Service Unavailable")),
        "done",
    ]

    def request() -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert runner.run("a", request) == "done"
    assert counters.retries == {"503": 2, "429": 1}
    assert len(pauses) == 3


@pytest.mark.parametrize(
    ("error", "kind", "calls", "retries"),
    [
        (GenericError(answer("503 Service Unavailable")), Unavailable, 3, {"503": 2}),
        (PermissionDeniedError(answer("403 Forbidden", "AccessDenied")), Forbidden, 1, {}),
        (TypeError("a fault of our own"), TypeError, 1, {}),
    ],
)
def test_only_what_passes_is_repeated_until_the_last_attempt(
    error: Exception, kind: type[Exception], calls: int, retries: dict[str, int]
) -> None:
    counters, made = Counters(), []
    runner, pauses = retrier(counters, retries=2)

    def request() -> None:
        made.append(1)
        raise error

    with pytest.raises(kind):
        runner.run("a", request)
    assert (len(made), len(pauses), counters.retries) == (calls, calls - 1, retries)


# -- plain HTTP, from servers that know ranges and others


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
