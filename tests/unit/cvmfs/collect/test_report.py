"""A collection reports lost objects, what it read back, what it deleted, and what only tags hold."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.collect.report import CollectionRecord, Ended
from include.cvmfs.errors import FormatError
from include.cvmfs.format.hashes import CATALOG, ObjectHash
from include.cvmfs.format.objects import compress
from tests.fakes.collecting import ALL_ORPHANS, Place, run
from tests.fakes.refused import refused

EVERYTHING = 256 * 256
"""A sample for which an audit draws all shards, and all objects of so small a repository."""


@pytest.mark.parametrize(("free", "returned"), [([100, 350], 250), ([None, None], None)])
@pytest.mark.usefixtures("old")
def test_what_the_store_returned_is_reported_if_it_tells(
    place: Place, monkeypatch: pytest.MonkeyPatch, free: list[int | None], returned: int | None
) -> None:
    monkeypatch.setattr(place.store, "free_bytes", iter(free).__next__)
    report = place.collect()
    assert report.deleted > 0
    assert report.as_dict()["bytes_returned"] == returned
    [line] = [line for line in report.lines() if "returned" in line]
    assert ("not known" in line) is (returned is None)


def test_an_audit_reads_preserved_objects_back_and_reports_each_once(place: Place) -> None:
    place.publish("/a", {"f": b"lost", "g": b"empty", "h": b"rotten"})
    lost, empty, rotten = (place.keep(content) for content in (b"lost", b"empty", b"rotten"))
    place.store.delete([lost.key])
    place.store.put(empty.key, b"")
    place.store.put(rotten.key, b"of another content")
    with place.collection(ALL_ORPHANS) as collection:
        run(collection, "begin", "mark")
        collection.condemn()  # there is nothing to delete
        assert {(one.key, one.size) for one in collection.report.lost} == {(lost.key, None), (empty.key, 0)}
        collection.audit(EVERYTHING)
        collection.end()
    assert collection.report.audited > 2
    assert sorted(one.key for one in collection.report.lost) == sorted([lost.key, empty.key, rotten.key])


@pytest.mark.usefixtures("old")
def test_a_deletion_log_is_of_the_stock_form(place: Place, tmp_path: Path) -> None:
    log = tmp_path / "gc.log"
    with place.collection() as collection, log.open("w") as file:
        run(collection, "begin", "spare")
        collection.sweep(file)
        report = collection.end()
    lines = log.read_text().splitlines()
    assert lines[0].startswith("# Garbage Collection started at ")
    assert lines[-2].startswith("# Garbage Collection finished at ")
    assert lines[-1] == ""
    assert len(lines) - 3 == report.deleted


def test_the_report_tells_what_only_tags_hold(place: Place) -> None:
    place.publish("/a", {"f": b"held by a tag" * 10, "both": b"both"}, tag="release")
    place.publish("/a", {"both": b"both"})
    place.supersede()
    place.pass_time(days=4)
    report = place.collect(ALL_ORPHANS)
    size = len(compress(b"held by a tag" * 10))
    assert report.held >= 2, "the file and its catalogs"
    assert report.bytes_held > size
    place.untag("release")
    after = place.collect(ALL_ORPHANS)
    assert after.held < report.held
    assert after.deleted >= 2


# -- the record of collections


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
