"""A URL opens the right kind of store, or is refused with a cure and without repeating secrets."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from include.storage.errors import StoreError, Unavailable, Unsupported
from include.storage.file import FileStore
from include.storage.kinds import Credentials, StoreOptions
from include.storage.open import open_store, split_s3_url
from include.storage.remote import HttpStore
from include.storage.s3 import S3Store, endpoint_of
from tests.fakes.refused import refused


def test_each_scheme_opens_its_kind_of_store(tmp_path: Path) -> None:
    file = open_store(f"file://{tmp_path}/a%20b/")
    assert isinstance(file, FileStore)
    assert file.root == tmp_path / "a b"
    assert isinstance(open_store("s3://bucket/some/prefix/"), S3Store)
    assert open_store("s3://bucket/some/prefix/").url == "s3://bucket/some/prefix"
    assert open_store("s3://bucket").url == "s3://bucket"
    http = open_store("http://127.0.0.1:8000/cvmfs/repo/")
    assert isinstance(http, HttpStore)
    assert not http.writable


@pytest.mark.parametrize(
    "url",
    [
        "", "var/store", "/var/store", "file://var/store", "file://", "file:///a/../b", "s3://", "s3:///prefix",
        "s3://Bucket", "s3://host:9000/bucket", "s3://bucket/../other", "s3://bucket//twice", "http://",
        "http://host:port/", "http://host/?a=b", "gs://bucket",
    ],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with refused(StoreError):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["http://me:hush@host/x", "s3://me:hush@bucket/x", "https://hush@host", "ftp://me:hush@host/"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


def test_secrets_are_in_no_representation() -> None:
    credentials = Credentials("key", "hush-hush")
    store = open_store("s3://bucket/x", credentials=credentials, options=StoreOptions(endpoint="http://127.0.0.1:1"))
    assert isinstance(store, S3Store)
    shown = [repr(credentials), str(credentials), repr(store), store.url, repr(store._connection.client)]
    assert not any("hush" in text for text in shown)


def test_virtual_host_addressing_puts_the_bucket_into_the_host() -> None:
    options = StoreOptions(endpoint="https://s3.example.org:9000/", addressing="virtual")
    assert endpoint_of("nights", options) == "https://nights.s3.example.org:9000"
    assert endpoint_of("nights", StoreOptions(region="eu-west-1")) == "https://s3.eu-west-1.amazonaws.com"


def test_a_url_has_a_bucket_and_a_prefix() -> None:
    assert split_s3_url("s3://nights/a/b/") == ("nights", "a/b")
    assert split_s3_url("s3://nights") == ("nights", "")


def test_a_store_over_http_is_read_only() -> None:
    store = open_store("http://127.0.0.1:1/repo")
    actions = [
        lambda: store.put("a", b""),
        lambda: store.put_if_absent("a", b""),
        lambda: store.replace("a", b"", expected=None),
        store.list,
        lambda: store.delete(["a"]),
    ]
    for action in actions:
        with refused(Unsupported):
            action()


def test_errors_survive_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(Unavailable("no answer", key="a/b", cause="503")))
    assert isinstance(error, Unavailable)
    assert (str(error), error.key, error.cause, error.retryable) == ("no answer", "a/b", "503", True)


def test_every_leaf_says_whether_it_may_be_retried() -> None:
    leaves = StoreError.__subclasses__()
    assert len(leaves) == 7
    assert {leaf.__name__ for leaf in leaves if leaf.retryable} == {"Unavailable"}


def test_opening_a_store_loads_no_client_library_before_it_is_used() -> None:
    code = (
        "import sys; from include.storage.open import open_store; "
        "open_store('s3://bucket/x'); open_store('http://host/x'); open_store('file:///x'); "
        "sys.exit('obstore' in sys.modules or 'boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3]).returncode == 0
