"""Hostile JSON ends as a refusal that names the field, and what is harmless is read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import TypeAdapter

from include.cvmfs.coordination.freeze import Flag, Instant, WholeNumber, read_document
from include.cvmfs.errors import FormatError
from tests.fakes.refused import refused


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
def test_another_format_is_told_before_anything_else(given: str) -> None:
    with refused(FormatError, what="sample", field="format"):
        read_document(READER, f'{{"format": {given}}}', what="sample", version=1)
