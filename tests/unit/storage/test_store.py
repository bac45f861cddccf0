"""Keys are checked before anything is sent, and decide the headers that readers get."""

import pytest
from hypothesis import given, strategies as st

from include.storage.errors import BadKey
from include.storage.store import check_key, check_prefix, headers_for
from tests.fakes.refused import refused

COMPONENT = st.text(
    st.characters(exclude_characters="/\\", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40
).filter(lambda part: part not in (".", ".."))


@pytest.mark.parametrize(
    "key",
    [
        "", "/", "/etc/passwd", "a//b", "a/", "..", "../a", "a/../b", "a/..", ".", "a/./b", "a\0b", "a\\..\\b", "a\nb",
        "\ud800",
    ],
)  # fmt: skip
def test_a_key_that_could_leave_the_prefix_is_refused(key: str) -> None:
    with refused(BadKey) as caught:
        check_key(key)
    assert caught.value.key == key
    assert not caught.value.retryable


def test_a_key_longer_than_s3_takes_is_refused() -> None:
    assert check_key("a" * 1024)
    with refused(BadKey):
        check_key("ü" * 513)


@given(st.lists(COMPONENT, min_size=1, max_size=5).map("/".join))
def test_every_other_key_is_taken_as_it_is(key: str) -> None:
    assert check_key(key) == key
    assert check_prefix(key + "/") == key


def test_the_prefix_of_everything_is_empty() -> None:
    assert check_prefix("") == ""


@pytest.mark.parametrize(
    ("key", "content_type", "cache_control"),
    [
        ("data/ab/cdef0123C", "application/octet-stream", "max-age=259200"),
        ("sw.example.org/data/00/ff", "application/octet-stream", "max-age=259200"),
        (".cvmfspublished", "application/x-cvmfs", "max-age=61"),
        ("sw.example.org/.cvmfswhitelist", "application/x-cvmfs", "max-age=61"),
        ("index.html", "text/html", None),
        ("night/2026-01-01/index.json", "application/json", None),
        ("night/2026-01-01/project.tar.gz", "application/octet-stream", None),
        ("data/readme", "application/octet-stream", None),
    ],
)
def test_objects_have_the_headers_of_cvmfs(key: str, content_type: str, cache_control: str | None) -> None:
    headers = headers_for(key)
    assert headers["Content-Type"] == content_type
    assert headers.get("Cache-Control") == cache_control
