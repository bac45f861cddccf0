"""A freeze: its document, who wins, what ends it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter

from include.cvmfs.coordination.freeze import (
    KEY,
    Flag,
    Freeze,
    Instant,
    WholeNumber,
    freeze,
    look,
    read_document,
    require_thawed,
    thaw,
)
from include.cvmfs.errors import FormatError, RepositoryFrozen
from include.storage.errors import Conflict
from tests.fakes.memorystore import MemoryStore
from tests.fakes.refused import refused

FQRN = "r.example.org"
NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
HOUR = timedelta(hours=1)
ONE = Freeze("one", "disks are moved", "operator@host", NOW)
LINES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=50)
TIMES = st.integers(0, 1 << 32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@given(LINES, LINES, LINES, TIMES, st.none() | st.integers(1, 10**8), st.none() | TIMES)
def test_a_document_is_read_as_it_was_written(
    name: str, reason: str, who: str, since: datetime, lasts: int | None, thawed: datetime | None
) -> None:
    until = None if lasts is None else since + timedelta(seconds=lasts)
    written = Freeze(name, reason, who, since, until, thawed)
    assert Freeze.parse(written.format()) == written


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"format":2}', b"\xff", ONE.format().replace(b"+00:00", b""), ONE.format()[:-3],
     ONE.format().replace(b'"disks are moved"', b"7"), ONE.format().replace(b"disks are moved", b""),
     ONE.format().replace(b"until", b"til"), ONE.format().replace(b"thawed", b"frozen")],
)  # fmt: skip
def test_what_is_no_freeze_stops_those_who_ask_and_thaws_nothing(data: bytes) -> None:
    store = MemoryStore()
    store.put(KEY, data)
    with refused(FormatError, what="freeze"):
        require_thawed(store, FQRN, NOW)
    with refused(FormatError, what="freeze"):
        thaw(store, NOW)
    assert store.get(KEY) == data


def test_a_frozen_repository_is_not_changed_and_the_message_says_who_why_and_how_that_ends() -> None:
    store = MemoryStore()
    require_thawed(store, FQRN, NOW)
    assert freeze(store, ONE).changed
    message = r"operator@host.*disks are moved.*nightshift thaw r\.example\.org"
    with pytest.raises(RepositoryFrozen, match=message) as one:
        require_thawed(store, FQRN, NOW + 99 * HOUR)
    assert one.value.retryable
    assert thaw(store, NOW + HOUR).changed
    require_thawed(store, FQRN, NOW + HOUR)


def test_a_freeze_with_an_end_ends_by_itself() -> None:
    store = MemoryStore()
    freeze(store, replace(ONE, until=NOW + HOUR))
    assert look(store, NOW + HOUR - timedelta(seconds=1)) is not None
    assert look(store, NOW + HOUR) is None
    assert not thaw(store, NOW + HOUR).changed


def test_freezing_and_thawing_again_write_nothing() -> None:
    store = MemoryStore()
    freeze(store, ONE)
    again = freeze(store, replace(ONE, id="two", who="another@host", since=NOW + HOUR))
    assert (again.changed, again.after) == (False, ONE)
    assert store.get(KEY) == ONE.format()
    ended = thaw(store, NOW + HOUR).after
    assert not thaw(store, NOW + 2 * HOUR).changed
    assert ended is not None
    assert store.get(KEY) == ended.format()


def test_another_reason_replaces_the_first_and_keeps_since_when() -> None:
    store = MemoryStore()
    freeze(store, ONE)
    done = freeze(store, Freeze("two", "and racks", "another@host", NOW + HOUR, NOW + 2 * HOUR))
    assert (done.before, done.changed) == (ONE, True)
    assert look(store, NOW + HOUR) == Freeze("two", "and racks", "another@host", NOW, NOW + 2 * HOUR)


def test_of_two_freezes_at_once_one_is_a_conflict() -> None:
    def another_comes_first(verb: str, _: str) -> None:
        if verb in {"replace", "put"} and KEY not in store.objects:
            store.objects[KEY] = ONE.format()

    store = MemoryStore(another_comes_first)
    with pytest.raises(Conflict):
        freeze(store, replace(ONE, id="two", reason="something else"))
    assert look(store, NOW) == ONE


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 1001, "\x1b[31mred"])
def test_a_freeze_needs_a_reason_of_one_line(reason: str) -> None:
    with refused(ValueError):
        Freeze("one", reason, "operator", NOW)


def test_a_freeze_cannot_end_before_it_begins() -> None:
    with refused(ValueError):
        Freeze("one", "why", "operator", NOW, NOW)


# -- hostile JSON ends as a refusal that names the field


@dataclass(frozen=True)
class Sample:
    number: WholeNumber
    text: str = ""
    flag: Flag = False
    time: Instant | None = None


READER = TypeAdapter(Sample)


def read(members: str) -> Sample:
    return read_document(READER, '{"format": 1, ' + members + "}", what="sample", version=1, key="x")


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ('"number": "7"', r"field number \('7'\) is text, not a whole number"),
        ('"number": 7.0', r"field number \(7.0\) is a number with a fraction, not a whole number"),
        ('"number": true', r"field number \(True\) is true or false, not a whole number"),
        ('"number": NaN', r"field number \(nan\) is"),
        ('"number": 1e999', r"field number \(inf\) is"),
        (f'"number": {1 << 63}', rf"field number \({1 << 63}\) should be less than {1 << 63}"),
        (f'"number": {"9" * 4000}', r"field number \(9.*9\) should be less than"),
        (f'"number": {"9" * 5000}', "is not JSON"),
        (f'"number": {"[" * 500}{"]" * 500}', r"field number \(\[.*\]\) is a list, not a whole number"),
        ('"number": ' + "[" * 100_000, "is nested too deeply"),
        ('"text": ""', "lacks the field number"),
        ('"number": 1, "number": "2"', r"field number \('2'\)"),
        ('"number": 1, "text": 2', r"field text \(2\) "),
        ('"number": 1, "text": null', r"field text \(None\) "),
        ('"number": 1, "flag": 1', r"field flag \(1\) "),
        ('"number": 1, "time": 1', r"field time \(1\) "),
        ('"number": 1, "time": "2026-11-21"', r"field time \('2026-11-21'\): it is a time without its zone"),
        ('"number": 1, "time": "0001-01-01T00:00:00+23:59"', r"field time \(.*\): "),
        ('"number": 1, "time": "\\ud800"', r"field time \(.*\): "),
    ],
)
def test_the_message_names_what_is_wrong(members: str, complaint: str) -> None:
    with pytest.raises(FormatError, match=f"sample: x cannot be read: {complaint}") as caught:
        read(members)
    assert len(str(caught.value)) < 300


def test_lone_surrogates_and_unknown_members_are_read() -> None:
    assert read('"number": 1, "text": "\\udcff", "other": NaN, "new": [{}]') == Sample(1, "\udcff")


@pytest.mark.parametrize("given", ["2", "true", "1.0", '"1"', "null"])
def test_another_format_is_refused_before_anything_else(given: str) -> None:
    with refused(FormatError, what="sample", field="format"):
        read_document(READER, f'{{"format": {given}}}', what="sample", version=1)
