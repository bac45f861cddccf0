"""A changeset survives the way through a file or a queue; other documents are refused."""

from __future__ import annotations

import functools
import json
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.format.dirent import Dirent
from include.cvmfs.format.hashes import Algorithm, ObjectHash
from include.cvmfs.format.schema import NAMES, Counts, Statistics
from include.cvmfs.ingest.changeset import Changeset
from tests.fakes.refused import refused

NUMBERS = st.integers(0, (1 << 63) - 1)
HASHES = st.builds(ObjectHash, st.binary(min_size=20, max_size=20), st.sampled_from(list(Algorithm)), st.just("C"))
COUNTS = st.builds(Counts, *([st.integers(0, 1 << 40)] * len(NAMES)))
TEXTS = st.text(max_size=20) | st.just("bytes that are not UTF-8: \udcff")
DIRECTORIES = st.builds(
    Dirent,
    name=st.just("platform"),
    mode=st.integers(0, 0o7777).map(lambda bits: stat.S_IFDIR | bits),
    size=NUMBERS,
    mtime=st.integers(-(1 << 40), 1 << 40),
    uid=NUMBERS,
    gid=NUMBERS,
    linkcount=st.integers(2, 1 << 30),
)
CHANGESETS = st.builds(
    Changeset,
    repository=TEXTS,
    destination=st.just("/nightlies/platform"),
    root=HASHES,
    root_size=NUMBERS,
    root_entry=DIRECTORIES,
    statistics=st.builds(Statistics, COUNTS, COUNTS),
    catalogs=NUMBERS,
    objects_new=NUMBERS,
    objects_reused=NUMBERS,
    bytes_uploaded=NUMBERS,
    source=TEXTS,
    created=st.datetimes(timezones=st.just(UTC)),
    source_sha256=st.none() | st.binary(min_size=32, max_size=32).map(bytes.hex),
    base_root=st.none() | HASHES,
    base_revision=NUMBERS,
    generation=NUMBERS,
    swept=st.integers(0, 256),
    notes=st.lists(TEXTS, max_size=3).map(tuple),
    stored=st.booleans(),
)
EXAMPLE = Changeset(
    repository="sw.example.org",
    destination="/a/b",
    root=ObjectHash(bytes(range(20)), suffix="C"),
    root_size=1,
    root_entry=Dirent("b", 0o40755, linkcount=2),
    statistics=Statistics(Counts(regular=2, file_size=10), Counts(regular=3, file_size=5)),
    catalogs=1,
    objects_new=1,
    objects_reused=2,
    bytes_uploaded=3,
    source="x.tar",
    created=datetime(2026, 7, 1, 2, 3, 4, tzinfo=UTC),
)


@given(CHANGESETS)
def test_a_changeset_comes_back_the_same(changeset: Changeset) -> None:
    again = Changeset.parse(changeset.format())
    assert again == changeset
    assert again.digest == changeset.digest
    assert again.format() == changeset.format()


def test_the_digest_does_not_depend_on_the_time() -> None:
    assert replace(EXAMPLE, created=EXAMPLE.created + timedelta(hours=1)).digest == EXAMPLE.digest
    assert replace(EXAMPLE, root_size=2).digest != EXAMPLE.digest
    assert (EXAMPLE.files, EXAMPLE.bytes) == (5, 15)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b'{"format":2}', b'{"format":true}', "[" * 9999]
)
def test_anything_else_is_refused(data: bytes | str) -> None:
    with refused(FormatError, what="changeset"):
        Changeset.parse(data)


FIELDS = sorted(json.loads(EXAMPLE.format()))


@pytest.mark.parametrize("field", [name for name in FIELDS if name != "format"])
def test_the_message_names_missing_fields_and_wrong_ones_are_refused(field: str) -> None:
    document = json.loads(EXAMPLE.format())
    del document[field]
    with refused(FormatError, what="changeset", field=field):
        Changeset.parse(json.dumps(document))
    for wrong in (1.5, -1, {"a": 1}, [1], "\0", True if field != "stored" else 1):
        document[field] = wrong
        if field in ("repository", "source") and isinstance(wrong, str):
            continue
        with pytest.raises(FormatError):
            Changeset.parse(json.dumps(document))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("destination", "/a/../b"), ("root", "0" * 39), ("source_sha256", "X" * 64),
        ("created", "2026-07-01T00:00:00"), ("created", "yesterday"), ("created", "9999-12-31T23:59:59-23:59"),
        ("root_size", 1 << 63), ("root_entry.mode", 0o100644), ("root_entry.linkcount", 0),
        ("root_entry.xattr", "no hex digits"), ("root_entry.mtime_ns", -1), ("counters.own", {}),
        ("counters.below.regular", "1"), ("swept", 257),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_the_name_of_their_field(field: str, value: object) -> None:
    document = json.loads(EXAMPLE.format())
    *outer, last = field.split(".")
    functools.reduce(dict.__getitem__, outer, document)[last] = value
    with refused(FormatError, what="changeset", field=field):
        Changeset.parse(json.dumps(document))
