"""What only S3 stores have, on each real server: clients without keys, buckets, credentials, and processes."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests

from include.storage.buckets import admin_client, allow_public_read, ensure_bucket
from include.storage.errors import BucketMissing, Conflict, Forbidden, NotFound
from include.storage.file import abandoned, described, remove_abandoned
from include.storage.kinds import Credentials
from include.storage.open import open_store, split_s3_url
from include.storage.s3 import MULTIPART_FROM_BYTES
from include.storage.store import Store
from lab.servers.s3 import S3Server
from tests.fakes.refused import refused
from tests.integration.conftest import ON_ONE_S3

ROOT = Path(__file__).parents[3]


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


def test_an_upload_that_nobody_finished_is_named_and_objects_are_not(s3_server: S3Server, s3_store: Store) -> None:
    s3_store.put("data/ab/whole", bytes(MULTIPART_FROM_BYTES))
    bucket, prefix = split_s3_url(s3_store.url)
    client = admin_client(s3_server.credentials, s3_server.options())
    begun = client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/data/ab/half")
    client.upload_part(
        Bucket=bucket, Key=f"{prefix}/data/ab/half", PartNumber=1, UploadId=begun["UploadId"], Body=b"half"
    )
    [found] = s3_store.unfinished()
    assert found.name == "data/ab/half"
    assert abs(datetime.now(UTC) - found.since) < timedelta(hours=1)
    assert abandoned(s3_store, datetime.now(UTC)) == []
    [old] = abandoned(s3_store, datetime.now(UTC) + timedelta(days=2))
    assert described([old], s3_store).startswith("1 multipart upload of killed writers, the oldest of ")
    assert remove_abandoned(s3_store, datetime.now(UTC) + timedelta(days=2)) == []


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
    with pytest.raises((NotFound, Forbidden)) as caught:
        public.get("nothing")
    assert caught.value.key == "nothing"


def test_a_wrong_secret_is_forbidden_once_and_the_message_holds_no_secret(s3_server: S3Server) -> None:
    store = open_store(
        "s3://nights/x",
        credentials=Credentials(s3_server.credentials.access_key, "hush-hush"),
        options=s3_server.options(),
    )
    with pytest.raises(Forbidden, match=r"check the connection's access key and secret") as caught:
        store.put("a", b"")
    assert "hush" not in str(caught.value)
    assert caught.value.key == "a"
    assert store.counters.retries == {}


def test_a_missing_bucket_is_told_from_a_missing_object(s3_server: S3Server) -> None:
    store = s3_server.store("no-such-bucket")
    for action in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: list(store.list())):
        with refused(BucketMissing):
            action()


def test_an_object_that_is_gone_is_a_lost_race_whatever_its_store_is_called(s3_server: S3Server) -> None:
    ensure_bucket("s3://bucket-of-nights", s3_server.credentials, s3_server.options())
    store = s3_server.store("bucket-of-nights")
    version = store.replace("a", b"1", expected=None)
    store.delete("a")
    with refused(Conflict, key="a"):
        store.replace("a", b"2", expected=version)


def test_what_is_set_for_other_programs_does_not_reach_the_store(
    s3_server: S3Server, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    store = s3_server.store("nights", s3_prefix)
    store.put("a", b"1")
    assert store.get("a") == b"1"


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


@ON_ONE_S3
@pytest.mark.parametrize(("before", "said"), [("unused", "b'1'"), ("used", "start workers as programs of their own")])
def test_a_forked_process_can_use_a_store_or_is_told(s3_store: Store, public_url: str, before: str, said: str) -> None:
    s3_store.put("a", b"1")
    command = [sys.executable, "-c", FORKING, public_url, before]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert said in done.stdout


def test_buckets_are_created_once_and_made_public_by_prefix(s3_server: S3Server) -> None:
    url = "s3://of-this-test/public"
    assert ensure_bucket(url, s3_server.credentials, s3_server.options()) is True
    assert ensure_bucket(url, s3_server.credentials, s3_server.options()) is False
    allow_public_read(url, s3_server.credentials, s3_server.options())
    allow_public_read(url, s3_server.credentials, s3_server.options(), prefix="more")
    store = s3_server.store("of-this-test")
    for key in ("public/a", "more/a", "private/a"):
        store.put(key, b"1")
    public = open_store(s3_server.public_url("of-this-test"))
    assert public.get("public/a") == public.get("more/a") == b"1"
    with refused(Forbidden, key="private/a"):
        public.get("private/a")


def test_the_bucket_may_be_in_the_host_name(
    s3_server: S3Server, s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This machine's resolver knows no bucket.localhost: the server itself stands in as the proxy to that name.
    monkeypatch.setenv("HTTP_PROXY", s3_server.endpoint)
    port = s3_server.endpoint.rpartition(":")[2]
    options = s3_server.options(endpoint=f"http://localhost:{port}", addressing="virtual", retries=0)
    store = open_store(f"s3://nights/{s3_prefix}", credentials=s3_server.credentials, options=options)
    store.put("data/ab/c d", b"1")
    assert store.get("data/ab/c d") == b"1"
    assert [meta.key for meta in store.list()] == ["data/ab/c d"]
    monkeypatch.delenv("HTTP_PROXY")
    assert s3_server.store("nights", s3_prefix).get("data/ab/c d") == b"1"


def test_a_bucket_that_keeps_versions_is_known(s3_server: S3Server) -> None:
    url = "s3://with-versions"
    ensure_bucket(url, s3_server.credentials, s3_server.options())
    store = s3_server.store("with-versions")
    assert not store.versioning()
    client = admin_client(s3_server.credentials, s3_server.options())
    client.put_bucket_versioning(Bucket="with-versions", VersioningConfiguration={"Status": "Enabled"})
    assert store.versioning()
