"""Replies as Go writes them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from include.gateway.service.requests import error, go_json, moved, ok, plain


def test_angle_brackets_and_ampersands_are_escaped() -> None:
    assert error("repository not found: %!w(<nil>) &").body == (
        b'{"reason":"repository not found: %!w(\\u003cnil\\u003e) \\u0026","status":"error"}'
    )


def test_members_are_sorted_and_structs_keep_their_order() -> None:
    reply = ok(data={"keys": {"k": "/"}, "enabled": True})
    assert reply.body == b'{"data":{"keys":{"k":"/"},"enabled":true},"status":"ok"}'
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans(), max_size=5))
def test_what_is_written_is_json_again(value: dict[str, object]) -> None:
    written = go_json(value)
    assert json.loads(written) == value
    assert not set(b"<>&") & set(written)


def test_lone_surrogates_do_no_harm() -> None:
    assert json.loads(go_json({"a": "\ud800"})) == {"a": "?"}


def test_plain_errors_end_in_a_newline() -> None:
    reply = plain(400, "invalid request body")
    assert (reply.body, reply.status_code) == (b"invalid request body\n", 400)
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_only_a_get_is_redirected_with_a_body() -> None:
    assert moved(301, "/api/v1").body.endswith(b"</a>.\n\n")
    assert moved(308, "/api/v1").body == b""
