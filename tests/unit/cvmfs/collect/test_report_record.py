"""The record of collections: read as it was written, and refused where anything of it is missing or wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.collect.report import CollectionRecord, Ended
from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
TIMES = st.integers(0, 1 << 32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
NUMBERS = st.integers(0, 1 << 40)
RECORDS = st.builds(
    CollectionRecord,
    total=NUMBERS,
    ended=st.lists(st.builds(Ended, NUMBERS, TIMES, NUMBERS, NUMBERS, NUMBERS, st.booleans()), max_size=3).map(tuple),
    roots=st.lists(st.builds(ObjectHash, st.binary(min_size=20, max_size=20), suffix=st.just(CATALOG))).map(tuple),
    once=st.none() | st.just("a" * 64),
    once_since=st.none() | TIMES,
    seventh=st.integers(0, 6),
    listed=st.none() | TIMES,
)
FIELDS = json.loads(CollectionRecord(ended=(Ended(1, NOW, 2, 3, 4, careful=True),)).format())


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: CollectionRecord) -> None:
    assert CollectionRecord.parse(record.format()) == record


@pytest.mark.parametrize("field", [name for name in FIELDS if name != "format"])
def test_the_error_names_the_field_that_is_missing(field: str) -> None:
    left = {name: value for name, value in FIELDS.items() if name != field}
    with refused(FormatError, field=field):
        CollectionRecord.parse(json.dumps(left).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("total", "3"), ("total", 1.5), ("seventh", 7), ("roots", ["x"]), ("roots", "0" * 40), ("once", "A" * 64),
        ("once_since", 5), ("listed", "2026-11-21T04:00:00"), ("ended", [[1, NOW.isoformat(), 2, 3, 4]]),
        ("ended", [[1, NOW.isoformat(), 2, 3, 4, 1]]),
    ],
)  # fmt: skip
def test_the_error_names_the_field_that_is_wrong(field: str, value: object) -> None:
    with pytest.raises(FormatError) as caught:
        CollectionRecord.parse(json.dumps({**FIELDS, field: value}).encode())
    assert caught.value.field.split(".")[0] == field  # within a list, with its place
