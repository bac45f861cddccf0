"""A record's document: read as it was written, and worth what its signatures are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from include.cvmfs.errors import FormatError
from include.provenance.records import BY_REPOSITORY_KEY, FOLDER, ProvenanceRecord, Sealed, seal
from tests.fakes.refused import refused
from tests.fakes.site import MASTER, SIGNER

SECRET = "the gateway's secret"
RECORD = ProvenanceRecord(
    "r.example.org", "/nightlies/main/b1/A/x86", 7, "night/run-1", "night/run-1/publish try 1", "native", "key-1",
    datetime(2026, 11, 21, 4, 0, 1, 5, tzinfo=UTC), "e" * 40, "f" * 40, "c" * 64, "s3://builds/A.tar", "a" * 64, "main",
)  # fmt: skip
TEXTS = st.text(max_size=40) | st.just("bytes that are not UTF-8: \udcff")


@given(TEXTS, TEXTS, st.integers(0, 1 << 62), st.datetimes(timezones=st.just(UTC)), st.none() | TEXTS)
def test_a_record_comes_back_as_it_was_sealed(
    path: str, run: str, revision: int, at: datetime, source: str | None
) -> None:
    record = replace(RECORD, path=path, run_id=run, revision=revision, published_at=at, source=source)
    assert Sealed.parse(seal(record, secret=SECRET).format()).record == record


def test_the_gateways_key_signs_every_byte() -> None:
    sealed = Sealed.parse(seal(RECORD, secret=SECRET).format())
    assert sealed.is_by_gateway_key(SECRET)
    assert not sealed.is_by_gateway_key("another secret")
    assert not replace(sealed, document=sealed.document.replace(b"run-1", b"run-2")).is_by_gateway_key(SECRET)
    assert not replace(sealed, signatures={}).is_by_gateway_key(SECRET)
    assert sealed.is_by_repository_key(SIGNER.private_key.public_key()) is None


def test_the_repositorys_own_key_signs_where_it_is_at_hand() -> None:
    public = SIGNER.private_key.public_key()
    sealed = Sealed.parse(seal(RECORD, secret=SECRET, private_key=SIGNER.private_key).format())
    assert sealed.is_by_repository_key(public) is True
    assert sealed.is_by_repository_key(MASTER.public_key()) is False
    assert replace(sealed, document=sealed.document + b" ").is_by_repository_key(public) is False
    assert replace(sealed, signatures={BY_REPOSITORY_KEY: "not base64!"}).is_by_repository_key(public) is False


def test_the_document_has_no_secret_and_a_place_of_its_own() -> None:
    assert SECRET.encode() not in seal(RECORD, secret=SECRET, private_key=SIGNER.private_key).format()
    others = [replace(RECORD, path="/x"), replace(RECORD, revision=8), replace(RECORD, run_id="night/run-2")]
    assert len({one.key for one in [RECORD, *others]}) == 4
    assert all(one.key.startswith(f"{FOLDER}/") for one in others)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b"\xff", b'{"format": 2}', b'{"format": 1, "document": 5}',
        b'{"format": 1, "document": "", "key_id": "", "signatures": {"a": 1}}',
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with refused(FormatError, what="provenance"):
        Sealed.parse(data)


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"revision": "7"}, {"published_at": "2026-11-21T04:00:00"}, {"path": None}, {"published_at": 1},
     {"source": 5}, {"holder": ["a"]}, {"kind": "another"}],
)  # fmt: skip
def test_a_document_of_another_shape_is_no_record(change: dict[str, object]) -> None:
    fields = {name: value for name, value in {**RECORD.to_json(), **change}.items() if value is not None}
    with refused(FormatError, what="provenance"):
        _ = Sealed(json.dumps(fields).encode(), {}, "key-1").record
