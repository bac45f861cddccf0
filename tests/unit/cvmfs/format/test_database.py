"""The reflog keeps every root object, stays cheap when long, and a damaged one is refused."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings, strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.format.database import Ref, Reflog, RefType
from include.cvmfs.format.hashes import Algorithm, ObjectHash, hash_bytes
from tests.fakes.refused import refused

FQRN = "nightlies.example.org"


def some_ref(number: int, kind: RefType = RefType.CATALOG, timestamp: int = 100) -> Ref:
    return Ref(hash_bytes(b"%d" % number, suffix=kind.suffix), kind, timestamp)


def filled(count: int) -> Reflog:
    reflog = Reflog.create(FQRN)
    reflog.add_all(some_ref(number, timestamp=number) for number in range(count))
    return reflog


def plain(reflog: Reflog) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(reflog.to_bytes())
    return connection


REFS = st.builds(
    lambda digest, algorithm, kind, timestamp: Ref(ObjectHash(digest, algorithm, kind.suffix), kind, timestamp),
    st.binary(min_size=20, max_size=20),
    st.sampled_from(Algorithm),
    st.sampled_from(RefType),
    st.integers(0, 2**62),
)


def test_the_tables_are_those_of_schema_1_0_revision_0() -> None:
    reflog = Reflog.create(FQRN)
    for kind in RefType:
        for time in (7, 10 + kind.value):  # what is noted again gets the new time
            reflog.add(some_ref(kind.value).hash, kind, time)
    data = reflog.to_bytes()
    assert data[18:20] == b"\x01\x01", "for readers without a journal"
    with refused(FormatError, what="reflog"):
        Reflog.load(data[:18] + b"\x02\x02" + data[20:])
    database = plain(reflog)
    assert database.execute("SELECT key, value FROM properties ORDER BY key").fetchall() == [
        ("fqrn", FQRN),
        ("schema", "1.0"),
        ("schema_revision", "0"),
    ]
    assert [row[1:3] for row in database.execute("PRAGMA table_info(refs)")] == [
        ("hash", "TEXT"),
        ("type", "INTEGER"),
        ("timestamp", "INTEGER"),
    ]
    rows = [(str(some_ref(number).hash), number, 10 + number) for number in range(4)]
    assert database.execute("SELECT * FROM refs ORDER BY type").fetchall() == rows
    assert [(kind.name, kind.suffix) for kind in RefType] == list(
        zip(("CATALOG", "CERTIFICATE", "HISTORY", "META"), "CXHM", strict=True)
    )


@settings(max_examples=30)
@given(st.lists(REFS, max_size=20, unique_by=lambda ref: str(ref.hash)))
def test_a_reflog_reads_back_as_what_was_written(refs: list[Ref]) -> None:
    reflog = Reflog.create(FQRN)
    reflog.add_all(refs)
    loaded = Reflog.load(reflog.to_bytes())
    assert loaded.fqrn == FQRN
    assert len(loaded) == len(refs)
    assert set(loaded.refs()) == set(refs)
    assert [ref.timestamp for ref in loaded.refs()] == sorted((ref.timestamp for ref in refs), reverse=True)


def test_rows_are_listed_by_type_and_age() -> None:
    reflog = Reflog.create(FQRN)
    reflog.add_all([some_ref(1, timestamp=10), some_ref(2, timestamp=20), some_ref(3, RefType.HISTORY, 15)])
    assert reflog.refs(RefType.CATALOG) == [some_ref(2, timestamp=20), some_ref(1, timestamp=10)]
    assert reflog.refs(RefType.CATALOG, before=20) == [some_ref(1, timestamp=10)]
    assert reflog.refs(before=16) == [some_ref(3, RefType.HISTORY, 15), some_ref(1, timestamp=10)]
    assert reflog.refs(RefType.META) == []


def test_contains_and_remove_ignore_the_suffix() -> None:
    reflog = filled(1)
    name = some_ref(0).hash
    assert reflog.contains(name.with_suffix(""))
    assert reflog.remove(name.with_suffix(""))
    assert not reflog.remove(name)
    assert not reflog.contains(name)


def test_the_same_steps_give_the_same_bytes_also_after_loading() -> None:
    assert filled(300).to_bytes() == filled(300).to_bytes()
    data = filled(300).to_bytes()
    assert Reflog.load(data).to_bytes() == data
    first, second = Reflog.load(data), Reflog.load(data)
    for reflog in (first, second):
        reflog.add(some_ref(1000).hash, RefType.CATALOG, 5)
    assert first.to_bytes() == second.to_bytes() != data
    assert first.hash() == hash_bytes(first.to_bytes())


def steps_to_add(count: int) -> int:
    """The instructions that SQLite runs to note one more reference in a reflog of ``count``."""
    reflog = Reflog.load(filled(count).to_bytes())
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    reflog._connection.set_progress_handler(step, 1)
    reflog.add(some_ref(count).hash, RefType.CATALOG, 1)
    reflog._connection.set_progress_handler(None, 0)
    assert len(reflog) == count + 1
    return steps


def test_adding_to_a_reflog_takes_no_more_steps_when_it_is_long() -> None:
    assert steps_to_add(20_000) == steps_to_add(20)


def changed(statement: str) -> bytes:
    database = plain(filled(3))
    database.executescript(statement)
    database.commit()
    return database.serialize()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DROP TABLE refs", "table refs lacks"),
        ("DROP TABLE properties", "table properties lacks"),
        ("ALTER TABLE refs DROP COLUMN timestamp", "lacks timestamp"),
        ("UPDATE properties SET value = '2.0' WHERE key = 'schema'", "schema '2.0'"),
        ("UPDATE properties SET value = 'x' WHERE key = 'schema'", "schema 'x'"),
        ("CREATE VIEW v AS SELECT 1", "neither table nor index"),
        ("CREATE TRIGGER t AFTER INSERT ON refs BEGIN DELETE FROM refs; END", "neither table nor index"),
    ],
)
def test_the_message_says_what_another_schema_lacks(statement: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Reflog.load(changed(statement))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE refs SET type = 4",
        "UPDATE refs SET type = 'x'",
        "UPDATE refs SET timestamp = 'yesterday'",
        "UPDATE refs SET hash = hash || 'C'",
        "UPDATE refs SET hash = NULL",
        "UPDATE refs SET hash = CAST(x'ff' AS TEXT) WHERE timestamp = 0",
    ],
)
def test_rows_that_make_no_sense_are_refused(statement: str) -> None:
    reflog = Reflog.load(changed(statement))
    with pytest.raises(FormatError):
        reflog.refs()
