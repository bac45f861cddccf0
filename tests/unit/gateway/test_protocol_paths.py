"""Lease paths and their overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.format.paths import is_below, path_and_above
from include.gateway.errors import BadLeasePath
from include.gateway.protocol import LeasePath, checked_path, overlap
from tests.fakes.refused import refused

components = st.text(
    st.characters(exclude_characters="/", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8
).filter(lambda text: text not in (".", ".."))
paths = st.lists(components, max_size=5).map(lambda names: "".join(f"/{name}" for name in names))


@given(paths)
def test_a_path_is_read_back_as_it_was_written(path: str) -> None:
    lease = LeasePath("repo.example.org", path)
    assert LeasePath.parse(str(lease)) == lease


def test_the_whole_repository_is_written_with_a_slash() -> None:
    assert str(LeasePath("r.org", "")) == "r.org/"
    assert LeasePath.parse("r.org/") == LeasePath("r.org", "")


def test_a_trailing_slash_means_the_same_path() -> None:
    assert LeasePath.parse("r.org/a/b/") == LeasePath("r.org", "/a/b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/r.org/a", "leading slash"),
        ("r.org", "missing repository"),
        ("", "missing repository"),
        ("r.org/a/../b", "'..'"),
        ("r.org/./b", "'.'"),
        ("r.org//b", "component ''"),
        ("r.org/a//", "component ''"),
        ("r.org/a\0b", "control"),
        ("r.org/a\nb", "control"),
        ("r\0.org/a", "control"),
        ("r.org/\ud800", "UTF-8"),
        ("r.org/" + "x" * 256, "255 bytes"),
        ("r.org/" + "é" * 128, "255 bytes"),
        ("r.org" + "/abc" * 1100, "4096 bytes"),
    ],
)
def test_the_message_says_what_is_wrong_with_a_malformed_path(text: str, reason: str) -> None:
    with pytest.raises(BadLeasePath, match=reason):
        LeasePath.parse(text)


def test_a_relative_path_is_refused() -> None:
    with refused(BadLeasePath, path="a/b"):
        checked_path("a/b")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("", "", True),
        ("", "/a", True),
        ("/a", "/a", True),
        ("/a", "/a/b", True),
        ("/a/b", "/a/c", False),
        ("/arch/x86", "/arch/x86_64", False),
        ("/a_b", "/axb", False),
        ("/a%", "/abc", False),
        ("/Case", "/case", False),
        ("/a", "/a.b", False),
    ],
)
def test_paths_overlap_by_component(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is expected


@given(paths, paths)
def test_overlap_means_that_one_is_among_the_ancestors_of_the_other(one: str, other: str) -> None:
    assert overlap(one, other) is (one in path_and_above(other) or other in path_and_above(one))
    assert is_below(one, other) is (other in path_and_above(one))
