"""Client and service write and read messages, headers, holders and paths alike."""

from __future__ import annotations

import base64
import contextlib
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.format.paths import is_below, path_and_above
from include.gateway.errors import BadLeasePath
from include.gateway.protocol import (
    AcquireBody,
    CommitBody,
    LeasePath,
    Offer,
    TaskName,
    authorization,
    checked_path,
    format_duration,
    format_offers,
    format_time,
    overlap,
    parse_duration,
    parse_offers,
    parse_time,
    seconds,
    sign,
    signature_fits,
    split_authorization,
)
from tests.fakes.refused import refused

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_offers_are_spelled_as_ever_and_unknown_ones_are_left_out() -> None:
    assert format_offers(frozenset(Offer)) == "body-signature, renewal, repeated-acquire, waiting-list"
    assert parse_offers("renewal,a-later-one , no-body-signature") == {Offer.RENEWAL}
    assert parse_offers("") == frozenset()


@given(st.frozensets(st.sampled_from(Offer)))
def test_offers_are_read_back_as_they_are_written(offers: frozenset[Offer]) -> None:
    assert parse_offers(format_offers(offers)) == offers


@given(st.builds(AcquireBody, texts, texts, texts, texts))
def test_a_request_for_a_lease_is_read_back_as_it_is_written(body: AcquireBody) -> None:
    assert AcquireBody.parse(body.format()) == body


@given(st.builds(CommitBody, texts, texts, texts, texts, texts))
def test_a_commit_is_read_back_as_it_is_written(body: CommitBody) -> None:
    assert CommitBody.parse(body.format()) == body


def test_bodies_are_written_byte_for_byte_as_ever() -> None:
    assert AcquireBody("r.org/a", "2", "h", "5a").format() == (
        b'{"path": "r.org/a", "api_version": "2", "hostname": "h", "request": "5a"}'
    )
    plain = b'{"old_root_hash": "1C", "new_root_hash": "2C", "tag_name": "", "tag_channel": 0, "tag_description": ""}'
    assert CommitBody("1C", "2C", "", "", "").format() == plain
    assert json.loads(CommitBody("1C", "2C", "", "", "4:idle").format())["generation"] == "4:idle"


# -- the Authorization header


BODY = b'{"path" : "repo.example.org/sub", "api_version" : "2", "hostname" : "h"}'


def test_the_signature_is_base64_of_hex_digits() -> None:
    expected = "key1 MGQ2YTkxZTNiM2RmYzZjNTZiZDE4N2E2YmQ3OGEyNjIwMTM1NWQ1MA=="
    assert authorization("key1", "s3cr3t", BODY) == expected


def test_a_token_is_signed_as_it_is() -> None:
    assert base64.b64decode(sign("s3cr3t", b"TOKEN")) == b"32042210a02dbde23820e8e0a277c833b4f7d433"


@given(st.text(min_size=1, max_size=80).filter(lambda text: text.isprintable()), st.binary(max_size=300))
def test_a_signature_fits_its_own_message_and_secret_only(secret: str, message: bytes) -> None:
    signature = sign(secret, message)
    assert signature_fits(signature, secret, message)
    assert not signature_fits(signature, secret + "x", message)
    assert not signature_fits(signature, secret, message + b"x")


@pytest.mark.parametrize("header", [None, "", "key", "key ", " sig", "key  sig", "key sig more", "  "])
def test_anything_but_two_fields_and_one_blank_is_no_authorization(header: str | None) -> None:
    assert split_authorization(header) is None


@given(st.text(max_size=60))
def test_a_foreign_signature_never_raises(text: str) -> None:
    assert signature_fits(text, "secret", b"message") is (text == sign("secret", b"message"))


# -- holders of leases


task_words = st.text(alphabet="abcXYZ019_.~:+-", min_size=1, max_size=20)


@given(task_words, task_words, task_words, st.integers(-1, 9999), st.integers(0, 99))
def test_a_task_comes_back_from_its_name(dag: str, run: str, task: str, index: int, number: int) -> None:
    name = TaskName(dag, run, task, index, number)
    assert TaskName.parse(name.format()) == name


OTHERS = ["", "node7.example.org", "a.user@host", "10.0.0.1:4242", "a/b try 1", "a/b/c", "a/b/c try", "a/b/c try x"]


@pytest.mark.parametrize("text", [*OTHERS, "a/b/c[x] try 1", "a/b/c/d try 1", "a/b/c try 1\n"])
def test_any_other_holder_is_no_task(text: str) -> None:
    assert TaskName.parse(text) is None


@given(st.text(max_size=60))
def test_any_holder_is_read_or_none(text: str) -> None:
    name = TaskName.parse(text)
    assert name is None or TaskName.parse(name.format()) == name


# -- paths of leases


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
        ("/r.org/a", "leading slash"), ("r.org", "missing repository"), ("", "missing repository"),
        ("r.org/a/../b", "'..'"), ("r.org/./b", "'.'"), ("r.org//b", "component ''"), ("r.org/a//", "component ''"),
        ("r.org/a\0b", "control"), ("r.org/a\nb", "control"), ("r\0.org/a", "control"), ("r.org/\ud800", "UTF-8"),
        ("r.org/" + "x" * 256, "255 bytes"), ("r.org/" + "é" * 128, "255 bytes"),
        ("r.org" + "/abc" * 1100, "4096 bytes"),
    ],
)  # fmt: skip
def test_the_message_says_what_is_wrong_with_a_malformed_path(text: str, reason: str) -> None:
    with pytest.raises(BadLeasePath, match=reason):
        LeasePath.parse(text)


def test_a_relative_path_is_refused() -> None:
    with refused(BadLeasePath, path="a/b"):
        checked_path("a/b")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("", "", True), ("", "/a", True), ("/a", "/a", True), ("/a", "/a/b", True), ("/a/b", "/a/c", False),
        ("/arch/x86", "/arch/x86_64", False), ("/a_b", "/axb", False), ("/a%", "/abc", False),
        ("/Case", "/case", False), ("/a", "/a.b", False),
    ],
)  # fmt: skip
def test_paths_overlap_by_component(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is expected


@given(paths, paths)
def test_overlap_means_that_one_is_among_the_ancestors_of_the_other(one: str, other: str) -> None:
    assert overlap(one, other) is (one in path_and_above(other) or other in path_and_above(one))
    assert is_below(one, other) is (other in path_and_above(one))


# -- durations and times in Go's notation


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0s", 0), ("1ns", 1), ("1.5µs", 1_500), ("2ms", 2_000_000), ("7.993318762s", 7_993_318_762),
        ("1m0s", 60_000_000_000), ("1m59.988300055s", 119_988_300_055), ("1h59m58.123s", 7_198_123_000_000),
        ("100h0m0.5s", 360_000_500_000_000), ("-1.5s", -1_500_000_000),
    ],
)  # fmt: skip
def test_durations_are_written_and_read_as_go_does(text: str, nanoseconds: int) -> None:
    assert format_duration(nanoseconds) == text
    assert parse_duration(text) == nanoseconds


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_what_is_written_is_read_back_exactly(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    ("value", "expected"), [(12, 12.0), ("12", 12.0), (0, 0.0), ("1.5h", 5400.0), ("3us", 3e-6), (2.5, 2.5)]
)
def test_whole_seconds_and_other_spellings_are_read_too(value: str | int, expected: float) -> None:
    assert seconds(value) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "s", "-", "1x", "1s ", " 1s", "1..5s", "soon", "1h1", "١s", "nan", "inf"])
def test_other_texts_are_refused(text: str) -> None:
    with refused(ValueError):
        parse_duration(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), True])
def test_other_numbers_are_refused(number: float) -> None:
    with refused(ValueError):
        parse_duration(number)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_times_are_read_back_exactly(unix_ms: int) -> None:
    assert parse_time(format_time(unix_ms)) == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=unix_ms)


def test_times_lose_trailing_zeros_as_in_go() -> None:
    assert format_time(1_795_221_713_972) == "2026-11-21 00:41:53.972 +0000 UTC"
    assert format_time(1_795_221_713_970) == "2026-11-21 00:41:53.97 +0000 UTC"
    assert format_time(1_795_221_713_000) == "2026-11-21 00:41:53 +0000 UTC"


def test_times_of_another_zone_and_with_nanoseconds_are_read() -> None:
    found = parse_time("2024-10-18 12:00:00.123456789 +0200 CEST")
    assert found == datetime(2024, 10, 18, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize("text", ["", "2024-10-18T12:00:00Z", "2024-13-18 12:00:00 +0000 UTC", "tomorrow"])
def test_other_times_are_refused(text: str) -> None:
    with refused(ValueError):
        parse_time(text)
