"""Request bodies: a value or a refusal, never anything else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from include.gateway.service.requests import (
    CommitRequest,
    LeaseRequest,
    Malformed,
    PayloadMessage,
    Refused,
    checked_token,
    go_json,
    parse_enable,
    parse_renewal,
)
from tests.fakes.refused import refused

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(
    ["path", "api_version", "hostname", "old_root_hash", "new_root_hash", "tag_name", "tag_description", "enable",
     "session_token", "expires_in_sec", "header_size", "payload_digest"]
)  # fmt: skip
bodies = (
    st.binary(max_size=200)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(members, json_values, max_size=6).map(lambda value: json.dumps(value).encode())
)


def lease(**changes: Any) -> bytes:
    return json.dumps({"path": "r.org/a", "api_version": "2", "hostname": "h", **changes}).encode()


@given(bodies)
def test_any_body_is_read_or_refused(body: bytes) -> None:
    readers = [
        lambda: LeaseRequest.parse(body, remote="r"),
        lambda: CommitRequest.parse(body).check_tag(),
        lambda: CommitRequest.parse(body).roots(),
        lambda: parse_enable(body),
        lambda: parse_renewal(body),
        lambda: PayloadMessage.parse(body),
    ]
    for read in readers:
        with contextlib.suppress(Malformed, Refused):
            read()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"hello", b"null", b"[]", b"\xff\xfe", b'"text"', b"{} {}", b'{"path": NaN}', b"[" * 100_000, b"9" * 5000,
        lease(api_version=3), lease(api_version="3x"), lease(api_version=""), lease(api_version="1_0"),
        lease(api_version=" 3"),
        lease(path=7), lease(hostname=[]), lease(api_version="٣"), lease(api_version="9" * 30),
    ],
)  # fmt: skip
def test_what_is_no_lease_request_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        LeaseRequest.parse(body, remote="r")
    assert (caught.value.status, caught.value.text) == (400, "invalid request body")


ODD = ["a\nb", "a\r", "\t", "a\0", "\x1b[2J", "\x7f", "a\x85b", "a\u2028b", "\ud800"]


HASHES = ["a", "", "1" * 39, "1" * 41, "1" * 40 + "H", "1" * 40 + "-md5", "1" * 40 + "\n"]
REFUSED: dict[str, tuple[list[str], Callable[[str], object]]] = {
    "tag_name": (ODD, lambda text: CommitRequest.parse(json.dumps({"tag_name": text}).encode()).check_tag()),
    "tag_description": (
        ODD, lambda text: CommitRequest.parse(json.dumps({"tag_description": text}).encode()).check_tag(),
    ),
    "hostname": (
        ["a\nb", "a\0b", "x" * 257, "\ud800"], lambda text: LeaseRequest.parse(lease(hostname=text), remote="r"),
    ),
    "old_root_hash": (
        HASHES,
        lambda text: CommitRequest.parse(
            json.dumps({"old_root_hash": text, "new_root_hash": "2" * 40}).encode()
        ).roots(),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("member", "text"), [(member, text) for member, row in REFUSED.items() for text in row[0]])
def test_text_that_would_spoil_a_log_or_is_no_hash_is_refused(member: str, text: str) -> None:
    with pytest.raises(Refused) as caught:
        REFUSED[member][1](text)
    assert caught.value.reason.partition(":")[0] == f"invalid {member}"


def test_a_tag_with_a_description_in_any_language_is_taken() -> None:
    sent = {"tag_name": "nightly-é", "tag_description": "Nächtlich, 夜 \u00a0 (two words)"}
    CommitRequest.parse(json.dumps(sent).encode()).check_tag()


@pytest.mark.parametrize(("version", "used"), [("2", 2), ("3", 3), ("99", 3), ("+3", 3)])
def test_the_version_is_the_smaller_of_both(version: str, used: int) -> None:
    assert LeaseRequest.parse(lease(api_version=version), remote="r").version == used


@pytest.mark.parametrize("version", ["1", "0", "-3"])
def test_old_versions_are_refused(version: str) -> None:
    with refused(Refused, reason=f"incompatible request version: {version}, min version: 2"):
        LeaseRequest.parse(lease(api_version=version), remote="r")


def test_an_absent_hostname_becomes_the_remote_address() -> None:
    assert LeaseRequest.parse(lease(hostname=""), remote="10.0.0.1:5").hostname == "10.0.0.1:5"


@pytest.mark.parametrize("text", ["1" * 40, "1" * 40 + "C", "1" * 40 + "-shake128C"])
def test_root_hashes_may_have_the_letter_of_catalogs(text: str) -> None:
    body = json.dumps({"old_root_hash": text, "new_root_hash": text, "tag_channel": 0}).encode()
    old, new = CommitRequest.parse(body).roots()
    assert old == new
    assert old.text.endswith("C")


@pytest.mark.parametrize(
    "text", ["", "x", "A" * 56, "a" * 52 + "====", "A" * 52, "A" * 52 + "====\n", "é" * 52 + "===="]
)
def test_what_cannot_be_a_token_is_an_invalid_lease(text: str) -> None:
    with refused(Refused, reason="invalid lease"):
        checked_token(text)


@pytest.mark.parametrize(
    ("body", "wanted"), [(b"", None), (b"{}", None), (b'{"expires_in_sec":0}', None), (b'{"expires_in_sec":5}', 5.0)]
)
def test_a_renewal_may_name_its_length(body: bytes, wanted: float | None) -> None:
    assert parse_renewal(body) == wanted


# -- replies as Go writes them


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans(), max_size=5))
def test_what_is_written_is_json_again(value: dict[str, object]) -> None:
    written = go_json(value)
    assert json.loads(written) == value
    assert not set(b"<>&") & set(written)


def test_lone_surrogates_do_no_harm() -> None:
    assert json.loads(go_json({"a": "\ud800"})) == {"a": "?"}
