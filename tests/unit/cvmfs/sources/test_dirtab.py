"""The rules of .cvmfsdirtab match as in the stock tools; expectations follow those of their own tests."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.format.paths import name_of_bytes
from include.cvmfs.sources.dirtab import Dirtab
from tests.fakes.refused import refused

RULES = """\
# these are positive rules:
/usr/*
  /usr/local/*

# these are negative rules:
! /usr/.svn
!/usr/local/.git
 ! /usr/local/x86*
"""


@pytest.mark.parametrize("text", ["", "# a comment\n #another\n", "  \n\n    \n", "!\n ! \n"])
def test_a_file_without_rules_matches_nothing(text: str) -> None:
    dirtab = Dirtab.parse(text)
    assert dirtab.rules == ()
    assert not dirtab.matches("/usr")


@pytest.mark.parametrize(
    "path", ["/usr/local", "/usr/bin", "/usr/svn", "/usr/.git", "/usr/local/lib", "/usr/local/git"]
)
def test_directories_of_positive_rules_match(path: str) -> None:
    assert Dirtab.parse(RULES).matches(path)
    others = ["/usr", "/usr/local/bin/x86", "/usr/.svn", "/usr/local/.git", "/usr/local/x86", "/usr/local/x86_64", ""]
    assert not any(Dirtab.parse(RULES).matches(other) for other in [*others, "/var"])


def test_negative_rules_may_be_relative_and_reach_over_directories() -> None:
    dirtab = Dirtab.parse("/usr/bin/*\n/usr/include/*\n! *.exe\n! */include/*.hpp\n")
    assert dirtab.matches("/usr/bin/bash")
    assert dirtab.matches("/usr/bin/root.exe.bak")
    assert not dirtab.matches("/usr/include/random.hpp")
    assert not dirtab.matches("/usr/bin/root.exe")
    for path in ("/usr/local/include/bar.exe", "/root/include/stdio.hpp", "/root/include/tr1/stdio.hpp"):
        assert dirtab.opposes(path)
    for path in ("/usr/bin/sh", "/var/log/messages", "/usr/local/src/test.hpp"):
        assert not dirtab.opposes(path)


def test_rules_that_differ_in_blanks_only_contradict_each_other() -> None:
    with refused(FormatError):
        Dirtab.parse("/a \n! /a\t\n")


def test_a_question_mark_is_one_byte_within_a_name() -> None:
    dirtab = Dirtab.parse("/foo/*\n!/usr/bi?\n!/foo/b*\n")
    assert dirtab.opposes("/usr/bin")
    assert not dirtab.opposes("/usr/bi")
    assert not dirtab.opposes("/usr/binary")
    assert not dirtab.opposes("/usr/bi/")
    assert not dirtab.matches("/foo/ball")
    assert Dirtab.parse("/a?").matches("/ab")
    assert not Dirtab.parse("/a?").matches("/aé")
    assert Dirtab.parse("/a??").matches("/aé")


@pytest.mark.parametrize(
    ("text", "path", "matches"),
    [
        *((text, "/sw/a", True) for text in ("/sw/* \n", "/sw/*\t\n", " /sw/* \t \n", "/sw/*  ", "! /x \n/sw/*\n")),
        ("/a.b/[x]+(y)$^{1}|\n", "/a.b/[x]+(y)$^{1}|", True),
        ("/a.b/[x]+(y)$^{1}|\n", "/aXb/[x]+(y)$^{1}|", False),
        ("/a\\*b/c\\?d/e\\\\f\n", "/a*b/c?d/e\\f", True),
        ("/a\\*b/c\\?d/e\\\\f\n", "/aXb/c?d/e\\f", False),
        ("/a\n! a\n/a\n", "/a", True),
        ("/sw/*", f"/sw/{name_of_bytes(bytes([0xFF]))}", True),
    ],
)
def test_blanks_signs_and_backslashes_in_rules(text: str, path: str, matches: bool) -> None:
    assert Dirtab.parse(text).matches(path) is matches


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("/ok\nusr/local\n", ".cvmfsdirtab, line 2"),
        ("/\n", ".cvmfsdirtab, line 1"),
        ("! /usr/\\bin\n", ".cvmfsdirtab, line 1"),
        ("/usr/bin\\\n", ".cvmfsdirtab, line 1"),
        ("/usr/bin/*\n\n!/usr/bin/*", ".cvmfsdirtab, line 3"),
        ("!/usr//bin/\n/usr/bin", ".cvmfsdirtab, line 2"),
        (b"/caf\xe9", ".cvmfsdirtab"),
    ],
)
def test_bad_files_are_refused_by_line(text: str | bytes, where: str) -> None:
    with refused(FormatError, what=where):
        Dirtab.parse(text)


def matched(pattern: str, path: str, slashes: bool) -> bool:
    """By the definition: each star tries every length; ``slashes``: it also takes those."""
    if not pattern:
        return not path
    if pattern[0] == "*":
        return matched(pattern[1:], path, slashes) or (
            path != "" and (slashes or path[0] != "/") and matched(pattern, path[1:], slashes)
        )
    return (
        path != ""
        and (pattern[0] == path[0] or (pattern[0] == "?" and path[0] != "/"))
        and matched(pattern[1:], path[1:], slashes)
    )


@given(pattern=st.text("ab*?/", min_size=1, max_size=9), path=st.text("ab/", min_size=1, max_size=9))
def test_several_stars_match_as_each_by_itself(pattern: str, path: str) -> None:
    pattern, path = ("/" + "/".join(part for part in text.split("/") if part) for text in (pattern, path))
    assume(pattern != "/")
    assert Dirtab.parse(pattern).matches(path) == matched(pattern, path, slashes=False)
    assert Dirtab.parse(f"!{pattern}").opposes(path) == matched(pattern, path, slashes=True)
    assert Dirtab.parse(f"!{pattern[1:]}").opposes(path) == matched(pattern[1:], path, slashes=True)


def test_many_stars_come_to_an_end() -> None:
    stars, path = "*a" * 40 + "b", "/" + "a" * 120
    assert not Dirtab.parse(f"/{stars}\n").matches(path)
    assert not Dirtab.parse(f"/{'*/' * 40}b\n").matches("/a" * 41)
    assert not Dirtab.parse(f"!{stars}\n").opposes(path)
    assert not Dirtab.parse(f"!{'*/' * 40}b\n").opposes("/a" * 60)
    assert Dirtab.parse(f"/{stars}\n").matches(f"{path}b")


def test_only_what_is_above_a_rule_leads_to_what_it_matches() -> None:
    dirtab = Dirtab.parse("/sw/*/v?/lib\n/opt\n! /sw/old*\n")
    above = ["/sw", "/sw/app", "/sw/old", "/sw/app/v1", "/opt", "/sw/app/v10", "/sw/app/v1/lib", "/swx", "/home"]
    assert [path for path in above if dirtab.leads_below(path)] == ["/sw", "/sw/app", "/sw/old", "/sw/app/v1"]
    assert not Dirtab.parse("! /a/b").leads_below("/a")
