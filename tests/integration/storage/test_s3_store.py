"""The S3 store against a real server: served as clients expect, and conditions hold under racing writers."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from include.lab.servers.weed import WeedServer
from include.storage.buckets import allow_public_read, ensure_bucket
from include.storage.errors import Conflict, Forbidden, NotFound, StoreError
from include.storage.open import open_store
from include.storage.options import Credentials, StoreOptions, Traits
from include.storage.probe import probe
from include.storage.s3 import MULTIPART_FROM_BYTES
from include.storage.store import Store, Version

pytestmark = pytest.mark.server("weed")

ROOT = Path(__file__).parents[3]
ODD_KEYS = ["d+e #%20ü~x/y?&=", "a'b\"<>|*", "x@y:z,;()[]{}", "a b/ c", "data/ab/cd-efC", ".cvmfspublished", "%2e%2e/x"]


def race(actions: list[Callable[[], object]]) -> list[object]:
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> object:
        start.wait()
        try:
            return action()
        except Conflict as conflict:
            return conflict

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


@pytest.mark.parametrize("key", ODD_KEYS)
def test_what_is_put_is_got_headed_and_listed_under_its_key(s3_store: Store, key: str) -> None:
    data = os.urandom(1000)
    s3_store.put(key, data)
    assert s3_store.get(key) == data
    meta = s3_store.head(key)
    assert meta is not None
    assert (meta.key, meta.size) == (key, 1000)
    assert s3_store.get_versioned(key) == (data, meta.version)
    assert [(found.key, found.size, found.version) for found in s3_store.list()] == [(key, 1000, meta.version)]


def test_ranges_end_with_the_object(s3_store: Store) -> None:
    s3_store.put("a", b"0123456789")
    assert s3_store.get_range("a", 2, 3) == b"234"
    assert s3_store.get_range("a", 8, 100) == b"89"
    assert s3_store.get_range("a", 10, 1) == b""
    assert s3_store.get_range("a", 0, 0) == b""


def test_an_empty_object_is_an_object(s3_store: Store) -> None:
    s3_store.put("a", b"")
    assert s3_store.get("a") == b""
    assert list(s3_store.stream("a")) in ([], [b""])
    assert s3_store.exists("a")


def test_a_big_object_goes_in_parts_and_comes_back_in_blocks(s3_store: Store) -> None:
    data = os.urandom(1 << 20) * (MULTIPART_FROM_BYTES // (1 << 20) + 1)
    s3_store.put("data/ab/big", data)
    blocks = list(s3_store.stream("data/ab/big"))
    assert len(blocks) > 1
    assert b"".join(blocks) == data


def test_an_absent_object_is_not_found(s3_store: Store) -> None:
    assert s3_store.head("nothing") is None
    for read in (s3_store.get, lambda key: s3_store.get_range(key, 0, 1), lambda key: list(s3_store.stream(key))):
        with pytest.raises(NotFound, match="no such object") as caught:
            read("nothing")
        assert caught.value.key == "nothing"


def test_objects_are_served_to_everybody_with_the_headers_of_cvmfs(s3_store: Store, public_url: str) -> None:
    s3_store.put(".cvmfspublished", b"manifest")
    s3_store.put("data/ab/cd", b"object")
    s3_store.put("data/ab/big", bytes(MULTIPART_FROM_BYTES))
    manifest = requests.get(f"{public_url}/.cvmfspublished", timeout=10)
    assert (manifest.headers["Content-Type"], manifest.headers["Cache-Control"]) == (
        "application/x-cvmfs",
        "max-age=61",
    )
    for key in ("data/ab/cd", "data/ab/big"):
        found = requests.head(f"{public_url}/{key}", timeout=10)
        assert (found.headers["Content-Type"], found.headers["Cache-Control"]) == (
            "application/octet-stream",
            "max-age=259200",
        )


def test_a_public_store_reads_anonymously_and_the_bucket_is_not_listed(s3_store: Store, public_url: str) -> None:
    s3_store.put("data/ab/c d", b"0123456789")
    public = open_store(public_url)
    assert public.get("data/ab/c d") == b"0123456789"
    assert public.child("data").get_range("ab/c d", 3, 2) == b"34"
    assert public.child("data").get_range("ab/c d", 30, 2) == b""
    assert b"".join(public.stream("data/ab/c d")) == b"0123456789"
    meta = public.head("data/ab/c d")
    assert meta is not None
    assert (meta.key, meta.size) == ("data/ab/c d", 10)
    with pytest.raises((NotFound, Forbidden), match="nothing"):
        public.get("nothing")


def test_put_if_absent_has_one_winner(s3_store: Store) -> None:
    bodies = [f"writer {n}".encode() for n in range(16)]
    won = race([lambda body=body: s3_store.put_if_absent("a", body) for body in bodies])
    assert won.count(True) == 1
    assert s3_store.get("a") == bodies[won.index(True)]
    assert s3_store.put_if_absent("a", b"late") is False


def test_replace_has_one_winner_per_version(s3_store: Store) -> None:
    s3_store.put("a", b"base")
    _, base = s3_store.get_versioned("a")
    bodies = [f"writer {n}".encode() for n in range(8)]
    results = race([lambda body=body: s3_store.replace("a", body, expected=base) for body in bodies])
    winners = [n for n, result in enumerate(results) if isinstance(result, Version)]
    assert len(winners) == 1
    assert s3_store.get_versioned("a") == (bodies[winners[0]], results[winners[0]])


def test_replace_of_what_should_be_absent_or_is_gone_is_a_conflict(s3_store: Store) -> None:
    version = s3_store.replace("a", b"1", expected=None)
    assert s3_store.get_versioned("a") == (b"1", version)
    with pytest.raises(Conflict, match="absent"):
        s3_store.replace("a", b"2", expected=None)
    s3_store.delete(["a"])
    with pytest.raises(Conflict, match="gone"):
        s3_store.replace("a", b"2", expected=version)
    assert not s3_store.exists("a")


def test_children_share_counters_and_see_only_what_is_below_them(s3_store: Store) -> None:
    child = s3_store.child("repo/")
    child.put("data/ab/1", b"123")
    s3_store.put("repository/2", b"")
    assert s3_store.get("repo/data/ab/1") == b"123"
    assert [meta.key for meta in child.list()] == ["data/ab/1"]
    assert [meta.key for meta in s3_store.list("repo")] == ["repo/data/ab/1"]
    assert child.url == f"{s3_store.url}/repo"
    assert (s3_store.counters.puts, s3_store.counters.gets, s3_store.counters.bytes_got) == (2, 1, 3)


@pytest.mark.parametrize("bulk", [True, False])
def test_many_objects_are_listed_over_pages_and_deleted(s3_store: Store, bulk: bool) -> None:
    store = s3_store.with_traits(Traits(put_if_absent=True, replace=True, bulk_delete=bulk))
    keys = {f"data/{n % 256:02x}/{n}" for n in range(2100)}
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    store.put("kept", b"")
    assert {meta.key for meta in store.list("data")} == keys
    assert store.delete(meta.key for meta in store.list("data")) == 2100
    assert [meta.key for meta in store.list()] == ["kept"]
    assert store.delete(["data/00/0", "never-there"]) == 2


def test_a_wrong_secret_is_forbidden_once_and_the_message_holds_no_secret(weed: WeedServer) -> None:
    store = open_store(
        "s3://nights/x", credentials=Credentials(weed.credentials.access_key, "hush-hush"), options=weed.options()
    )
    with pytest.raises(Forbidden, match=r"check the connection's access key and secret") as caught:
        store.put("a", b"")
    assert "hush" not in str(caught.value)
    assert caught.value.key == "a"
    assert store.counters.retries == {}


def test_a_missing_bucket_is_named_with_its_cure(weed: WeedServer) -> None:
    store = weed.store("no-such-bucket")
    for action in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: list(store.list())):
        with pytest.raises(NotFound, match=r"no-such-bucket.*bucket does not exist; create it"):
            action()


def test_what_is_set_for_other_programs_does_not_reach_the_store(
    weed: WeedServer, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    store = weed.store("nights", s3_prefix)
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_a_server_that_is_not_there_is_unavailable_after_counted_retries(weed: WeedServer) -> None:
    options = StoreOptions(endpoint="http://127.0.0.1:9", retries=1, timeout_s=2)
    store = open_store("s3://nights", credentials=weed.credentials, options=options)
    with pytest.raises(StoreError, match=r"gave up after 2 attempts") as caught:
        store.get("a")
    assert caught.value.retryable
    assert store.counters.retries == {"connection": 1}


FORKING = """
import os, sys
from include.storage.open import open_store
store = open_store(sys.argv[1])
if sys.argv[2] == "used":
    store.get("a")
child = os.fork()
if child == 0:
    try:
        print(store.get("a"), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(("before", "said"), [("unused", "b'1'"), ("used", "start workers as programs of their own")])
def test_a_forked_process_can_use_a_store_or_is_told_why_not(
    s3_store: Store, public_url: str, before: str, said: str
) -> None:
    s3_store.put("a", b"1")
    command = [sys.executable, "-c", FORKING, public_url, before]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert said in done.stdout


def test_buckets_are_created_once_and_made_public_by_prefix(weed: WeedServer) -> None:
    url = "s3://of-this-test/public"
    assert ensure_bucket(url, weed.credentials, weed.options()) is True
    assert ensure_bucket(url, weed.credentials, weed.options()) is False
    allow_public_read(url, weed.credentials, weed.options())
    allow_public_read(url, weed.credentials, weed.options(), prefix="more")
    store = weed.store("of-this-test")
    for key in ("public/a", "more/a", "private/a"):
        store.put(key, b"1")
    public = open_store(weed.public_url("of-this-test"))
    assert public.get("public/a") == public.get("more/a") == b"1"
    with pytest.raises(Forbidden, match="private/a"):
        public.get("private/a")


def test_the_probe_trusts_this_server_and_leaves_nothing(s3_store: Store, public_url: str) -> None:
    assert probe(s3_store, public_url=public_url) == Traits(
        put_if_absent=True, replace=True, bulk_delete=True, anonymous_read=True, etag_quotes=True
    )
    assert list(s3_store.list()) == []
