"""Paths of a repository: parents, what is above and below, and where links lead."""

from __future__ import annotations

import pytest

from include.cvmfs.errors import CatalogError
from include.cvmfs.format.paths import ancestors, clean_path, common_top, is_below, link_target, path_and_above
from tests.fakes.refused import refused


def test_what_is_above_a_path_from_both_ends() -> None:
    assert list(ancestors("/a/b/c")) == ["/a", "/a/b", "/a/b/c"]
    assert path_and_above("/a/b/c") == ["/a/b/c", "/a/b", "/a", ""]
    assert list(ancestors("")) == []
    assert path_and_above("") == [""]


def test_below_is_by_component() -> None:
    assert is_below("/a/b", "/a")
    assert is_below("/a", "/a")
    assert is_below("/a", "")
    assert not is_below("/ab", "/a")


@pytest.mark.parametrize(
    ("paths", "top"),
    [
        (["/a/b"], "/a/b"), (["/a/b", "/a/c"], "/a"), (["/a/b", "/a/bc"], "/a"), (["/a/b/c", "/a/b"], "/a/b"),
        (["/a", "/b"], ""),
    ],
)  # fmt: skip
def test_a_common_top_is_one_of_the_paths_or_the_deepest_directory_above_all(paths: list[str], top: str) -> None:
    assert common_top(paths) == common_top(paths[::-1]) == top


@pytest.mark.parametrize(
    ("text", "target"), [("b", "/a/b"), ("../b", "/b"), ("/c/d", "/c/d"), ("../../../b", "/b"), ("./b/", "/a/b")]
)
def test_a_link_leads_from_the_directory_that_it_is_in(text: str, target: str) -> None:
    assert link_target("/a/link", text) == target


@pytest.mark.parametrize(
    ("given", "clean"),
    [("", ""), ("/", ""), ("a/b", "/a/b"), ("/a/b/", "/a/b"), ("/a/.b", "/a/.b"), ("/a/b.", "/a/b."), ("//a", "/a")],
)
def test_a_users_path_is_made_absolute(given: str, clean: str) -> None:
    assert clean_path(given) == clean


@pytest.mark.parametrize("given", ["/a//b", "/a/./b", "/..", "/a/..", ".", "a/../b"])
def test_a_path_that_is_none_is_refused(given: str) -> None:
    with refused(CatalogError, path=given):
        clean_path(given)
