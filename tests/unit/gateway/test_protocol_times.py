"""Durations and times in Go's notation."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.gateway.protocol import format_duration, format_time, parse_duration, parse_time, seconds
from tests.fakes.refused import refused


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
