"""The S3 store behind a connection that breaks: passing faults are repeated and counted, lost answers are settled."""

import hashlib
import os
import threading
from collections.abc import Mapping

import pytest

from include.storage.buckets import PolicyServer
from include.storage.errors import STORE_FULL, Conflict, Unavailable, Unsupported
from include.storage.kinds import StoreOptions, Traits
from include.storage.open import open_store
from include.storage.probe import probe
from include.storage.store import Store
from lab.servers.s3 import S3Server
from tests.fakes.faultproxy import FaultProxy
from tests.fakes.refused import refused
from tests.integration.conftest import ON_ONE_S3

pytestmark = ON_ONE_S3


@pytest.fixture
def store(s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str) -> Store:
    """Through the proxy, with short patience."""
    return opened(s3_server, s3_proxy, s3_prefix)


def opened(server: S3Server, proxy: FaultProxy, prefix: str, **settings: object) -> Store:
    known = Traits(
        put_if_absent=True, replace=True, bulk_delete=True, etag_quotes=server.kind is not PolicyServer.RADOSGW
    )
    options = StoreOptions(
        **{"endpoint": proxy.url, "timeout_s": 20, "retries": 3, "traits": known, **settings}  # type: ignore[arg-type]
    )
    return open_store(f"s3://nights/{prefix}", credentials=server.credentials, options=options)


def conditional(headers: Mapping[str, str]) -> bool:
    return "If-Match" in headers or "If-None-Match" in headers


def quoted(headers: Mapping[str, str]) -> bool:
    return headers.get("If-Match", "").startswith('"')


def unquoted(headers: Mapping[str, str]) -> bool:
    return "If-Match" in headers and not quoted(headers)


@pytest.mark.parametrize("status", [429, 503])
def test_a_passing_status_is_repeated_and_counted(store: Store, s3_proxy: FaultProxy, status: int) -> None:
    s3_proxy.answer(status, times=2, method="PUT")
    store.put("a", b"1")
    assert store.get("a") == b"1"
    assert store.counters.retries == {str(status): 2}
    assert store.counters.puts == 1


def test_dropped_connections_are_repeated_and_counted(store: Store, s3_proxy: FaultProxy) -> None:
    s3_proxy.cut(method="PUT")
    s3_proxy.cut(method="PUT", after_forwarding=True)
    store.put("a", b"1")
    s3_proxy.cut(method="GET", body_bytes=0)
    assert store.get("a") == b"1"
    assert store.counters.retries == {"connection": 3}


def test_an_answer_that_is_not_in_time_is_repeated(s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str) -> None:
    store = opened(s3_server, s3_proxy, s3_prefix, timeout_s=1)
    held = s3_proxy.hold(method="GET")
    store.put("a", b"1")
    assert store.get("a") == b"1"
    assert set(store.counters.retries) == {"timeout"}, "at least once: a busy server is late by itself too"
    held.release()


def test_a_full_store_is_not_asked_again(store: Store, s3_proxy: FaultProxy) -> None:
    s3_proxy.answer(507, times=None, method="PUT")
    with refused(STORE_FULL, key="a"):
        store.put("a", b"1")
    assert s3_proxy.count("PUT") == 1


def test_a_stream_goes_on_where_it_broke(store: Store, s3_proxy: FaultProxy) -> None:
    data = os.urandom(3 << 20)
    store.put("a", data)
    s3_proxy.cut(method="GET", body_bytes=1 << 20)
    s3_proxy.cut(method="GET", body_bytes=1 << 19)
    assert b"".join(store.stream("a", block=1 << 16)) == data
    assert store.counters.retries == {"connection": 2}
    assert s3_proxy.count("GET") == 3


def test_a_stream_never_mixes_two_versions(store: Store, s3_proxy: FaultProxy) -> None:
    store.put("a", bytes(2 << 20))
    s3_proxy.cut(method="GET", body_bytes=1 << 20)
    stream = store.stream("a", block=1 << 16)
    next(stream)
    store.put("a", b"\1" * (2 << 20))
    with pytest.raises(Conflict):
        list(stream)


def test_a_listing_goes_on_where_it_broke(store: Store, s3_proxy: FaultProxy) -> None:
    for n in range(10):
        store.put(f"data/{n}", b"")
    s3_proxy.answer(503, method="GET", path=r"\?.*list-type=2")
    assert [meta.key for meta in store.list()] == [f"data/{n}" for n in range(10)]
    assert store.counters.retries == {"503": 1}


def test_put_if_absent_whose_answer_was_lost_is_ours_if_our_bytes_are_there_and_else_repeated_or_not_ours(
    store: Store, s3_proxy: FaultProxy
) -> None:
    s3_proxy.cut(method="PUT", after_forwarding=True)
    assert store.put_if_absent("a", b"ours") is True
    s3_proxy.answer(500, method="PUT", after_forwarding=True)
    assert store.put_if_absent("b", b"ours") is True
    assert s3_proxy.count("PUT") == 2
    s3_proxy.cut(method="PUT")
    assert store.put_if_absent("c", b"ours") is True
    assert store.get("c") == b"ours"
    assert store.counters.retries == {"connection": 1}
    store.put("d", b"another's")
    s3_proxy.answer(500, method="PUT")
    assert store.put_if_absent("d", b"ours") is False
    assert store.get("d") == b"another's"


@pytest.mark.parametrize(
    ("fault", "done"),
    [*((fault, True) for fault in ("cut", 500, 412)), *((fault, False) for fault in ("cut", 500, 503, 409))],
)
def test_a_replacement_whose_answer_was_lost_is_done_if_our_bytes_are_there_and_else_repeated(
    store: Store, s3_proxy: FaultProxy, fault: str | int, done: bool
) -> None:
    store.put("a", b"base")
    _, base = store.get_versioned("a")
    if isinstance(fault, int):
        s3_proxy.answer(fault, when=conditional, after_forwarding=done)
    else:
        s3_proxy.cut(when=conditional, after_forwarding=done)
    version = store.replace("a", b"ours", expected=base)
    assert store.get_versioned("a") == (b"ours", version)
    if done:
        assert sum(seen.method == "PUT" for seen in s3_proxy.seen) == 2
    else:
        assert sum(store.counters.retries.values()) == 1


@pytest.mark.parametrize("status", [412, 500])
def test_a_replacement_that_lost_to_another_is_a_conflict(store: Store, s3_proxy: FaultProxy, status: int) -> None:
    store.put("a", b"base")
    _, base = store.get_versioned("a")
    store.put("a", b"theirs")
    s3_proxy.answer(status, when=conditional)
    with refused(Conflict, key="a"):
        store.replace("a", b"ours", expected=base)
    assert store.get("a") == b"theirs"


def test_a_replacement_that_arrives_after_another_does_not_undo_it(
    s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str
) -> None:
    slow, quick = opened(s3_server, s3_proxy, s3_prefix), s3_server.store("nights", s3_prefix)
    quick.put("a", b"base")
    _, base = quick.get_versioned("a")
    held = s3_proxy.hold(when=conditional)
    outcome: list[object] = []

    def replace() -> None:
        try:
            outcome.append(slow.replace("a", b"slow", expected=base))
        except Conflict as conflict:
            outcome.append(conflict)

    writer = threading.Thread(target=replace)
    writer.start()
    held.wait()
    quick.replace("a", b"quick", expected=base)
    held.release()
    writer.join()
    assert isinstance(outcome[0], Conflict)
    assert quick.get("a") == b"quick"


def test_a_server_that_takes_etags_only_without_quotes_is_understood_and_remembered(
    s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str
) -> None:
    store = opened(s3_server, s3_proxy, s3_prefix, traits=None)
    s3_proxy.answer(412, code="PreconditionFailed", times=None, when=quoted)
    store.put("a", b"0")
    _, version = store.get_versioned("a")
    version = store.replace("a", b"1", expected=version)
    assert [seen.status for seen in s3_proxy.seen if seen.method == "PUT"] == [200, 412, 200]
    s3_proxy.seen.clear()
    store.child("x").put("y", b"")
    version = store.replace("a", b"2", expected=version)
    assert [seen.status for seen in s3_proxy.seen] == [200, 200]
    assert store.get_versioned("a") == (b"2", version)
    assert store.counters.retries == {}


def test_a_probed_spelling_of_etags_is_used_at_once(s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str) -> None:
    traits = Traits(put_if_absent=True, replace=True, bulk_delete=True, etag_quotes=False)
    store = opened(s3_server, s3_proxy, s3_prefix, traits=traits)
    store.put("a", b"0")
    _, version = store.get_versioned("a")
    s3_proxy.answer(412, when=unquoted)
    s3_proxy.seen.clear()
    store.replace("a", b"1", expected=version)
    assert {seen.status for seen in s3_proxy.seen if seen.method == "PUT"} == {412, 200}


def test_a_store_that_ignores_conditions_is_found_out(store: Store, s3_proxy: FaultProxy) -> None:
    # Answers success to every conditional write, as a server does that does not look at the header.
    s3_proxy.answer(200, times=None, method="PUT", when=conditional, headers={"ETag": '"1"'})
    traits = probe(store, writers=3)
    assert (traits.put_if_absent, traits.replace) == (False, False)


def test_a_store_without_bulk_delete_is_found_out_and_cleaned_all_the_same(store: Store, s3_proxy: FaultProxy) -> None:
    s3_proxy.answer(501, code="NotImplemented", times=None, method="POST")
    assert probe(store, writers=2).bulk_delete is False
    assert list(store.list()) == []


def filled(store: Store, number: int) -> list[str]:
    keys = [f"data/ab/{n}" for n in range(number)]
    for key in keys:
        store.put(key, b"")
    return keys


def test_a_key_that_is_always_refused_is_named_and_the_others_are_deleted(store: Store, s3_proxy: FaultProxy) -> None:
    keys = filled(store, 5)
    s3_proxy.answer(403, code="AccessDenied", times=None, method="POST")
    s3_proxy.answer(500, times=None, method="DELETE", path="ab/3")
    refusals = store.delete_each(keys)
    assert {key: type(refusal) for key, refusal in refusals.items()} == {"data/ab/3": Unavailable}
    assert [meta.key for meta in store.list()] == ["data/ab/3"]
    assert store.counters.retries == {"500": 3}


def test_conditions_that_a_store_ignores_are_refused(s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str) -> None:
    traits = Traits(put_if_absent=False, replace=False, bulk_delete=True)
    store = opened(s3_server, s3_proxy, s3_prefix, traits=traits)
    store.put("a", b"0")
    _, version = store.get_versioned("a")
    with refused(Unsupported, key="b"):
        store.put_if_absent("b", b"")
    with refused(Unsupported, key="a"):
        store.replace("a", b"1", expected=version)
    single = opened(s3_server, s3_proxy, s3_prefix, traits=traits, single_writer=True)
    newer = single.replace("a", b"1", expected=version)
    assert single.get_versioned("a") == (b"1", newer)
    with pytest.raises(Conflict):
        single.replace("a", b"2", expected=version)


def test_an_acl_is_sent_when_it_is_configured(s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str) -> None:
    sent = []
    s3_proxy.pretend(when=lambda headers: sent.append(headers.get("x-amz-acl")) or True)
    opened(s3_server, s3_proxy, s3_prefix, acl="public-read").put("a", b"")
    assert sent == ["public-read"]


def test_the_signature_covers_the_bytes_unless_a_benchmark_leaves_them_out(
    s3_server: S3Server, s3_proxy: FaultProxy, s3_prefix: str
) -> None:
    sums = []
    s3_proxy.pretend(when=lambda headers: sums.append(headers["x-amz-content-sha256"]))
    for sign_payload in (True, False):
        store = opened(s3_server, s3_proxy, s3_prefix, sign_payload=sign_payload)
        store.put("a", b"bytes")
        assert store.get("a") == b"bytes"
    assert sums == [hashlib.sha256(b"bytes").hexdigest(), "UNSIGNED-PAYLOAD"]
