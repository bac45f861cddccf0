"""Durations and times as Go prints them; a gateway reports lease lifetimes like this (docs/formats.md, gateway)."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

NANOSECOND, MICROSECOND, MILLISECOND, SECOND = 1, 10**3, 10**6, 10**9
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND

_UNITS = {
    "h": HOUR, "m": MINUTE, "s": SECOND, "ms": MILLISECOND,
    "us": MICROSECOND, "µs": MICROSECOND, "μs": MICROSECOND, "ns": 1,
}  # fmt: skip
_PART = re.compile(r"([0-9]{1,19}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(ns|us|µs|μs|ms|h|m|s)")
_NUMBER = re.compile(r"[0-9]{1,19}(?:\.[0-9]{1,40})?")
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))? ([+-])(\d\d)(\d\d) \S+(?: m=\S+)?", re.ASCII
)


def format_duration(nanoseconds: int) -> str:
    """The text of Go's ``Duration.String``: ``1h59m58.123s``, ``7.5ms``, ``0s``."""
    if nanoseconds == 0:
        return "0s"
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left < SECOND:
        size, unit = next(
            (size, unit) for size, unit in ((MILLISECOND, "ms"), (MICROSECOND, "µs"), (1, "ns")) if left >= size
        )
        return sign + _decimal(left, size) + unit
    text = _decimal(left % MINUTE, SECOND) + "s"
    minutes = left // MINUTE
    if minutes:
        text = f"{minutes % 60}m" + text
    if minutes >= 60:
        text = f"{minutes // 60}h" + text
    return sign + text


def parse_duration(value: str | float) -> int:
    """Nanoseconds of a Go duration string, or of seconds given as a number or as its text. Raises ValueError."""
    if isinstance(value, int | float):
        if isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"not a duration: {value!r}")
        return round(value * SECOND)
    if _NUMBER.fullmatch(value):
        return int(Fraction(value) * SECOND)
    body = value[1:] if value[:1] in ("-", "+") else value
    total, position = Fraction(0), 0
    while position < len(body):
        part = _PART.match(body, position)
        if not part:
            raise ValueError(f"not a duration: {value[:80]!r}")
        total += Fraction(part[1] if part[1][-1] != "." else part[1][:-1]) * _UNITS[part[2]]
        position = part.end()
    if not body:
        raise ValueError("not a duration: ''")
    return -int(total) if value.startswith("-") else int(total)


def seconds(value: str | float) -> float:
    """Seconds of what ``parse_duration`` reads."""
    return parse_duration(value) / SECOND


def format_time(unix_ms: int) -> str:
    """The text of Go's ``Time.String`` in UTC: ``2026-11-21 00:41:53.972 +0000 UTC``."""
    whole = datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    fraction = f".{unix_ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{whole}{fraction} +0000 UTC"


def parse_time(text: str) -> datetime:
    """Read what ``format_time`` and Go print, in any zone; finer than a microsecond is cut off. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if not match:
        raise ValueError(f"not a time: {text[:80]!r}")
    offset = timedelta(hours=int(match[9]), minutes=int(match[10]))
    zone = timezone(-offset if match[8] == "-" else offset)
    parts = [int(match[group]) for group in range(1, 7)]
    return datetime(*parts, int((match[7] or "0").ljust(6, "0")[:6]), tzinfo=zone)  # type: ignore[arg-type,misc]


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    digits = str(rest).rjust(len(str(unit)) - 1, "0").rstrip("0") if unit > 1 else ""
    return f"{whole}.{digits}" if digits else str(whole)
