"""The table of statuses and texts, and what errors never show."""

from __future__ import annotations

import pytest

from include.fts.errors import (
    FTS_FAILED,
    FTS_REPLY_UNEXPECTED,
    FTS_REQUEST_INVALID,
    TOKEN_REFUSED,
    FtsErrorKind,
    FtsForbidden,
    StorageBanned,
    kind_of,
    kind_of_foreign,
    redact,
)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (403, "https://a is banned", StorageBanned), (403, "", FtsForbidden), (404, "no page", FTS_REPLY_UNEXPECTED),
        (422, "", FTS_REQUEST_INVALID), (429, "", FTS_FAILED), (504, "", FTS_FAILED), (302, "", FTS_REPLY_UNEXPECTED),
    ],
)  # fmt: skip
def test_a_status_and_its_text_have_a_kind(status: int, reason: str, kind: FtsErrorKind) -> None:
    assert kind_of(status, reason) is kind


@pytest.mark.parametrize(
    ("status", "with_token", "kind"),
    [
        (400, True, TOKEN_REFUSED), (400, False, FTS_REPLY_UNEXPECTED), (404, True, FTS_REPLY_UNEXPECTED),
        (502, False, FTS_FAILED), (200, True, FTS_REPLY_UNEXPECTED),
    ],
)  # fmt: skip
def test_a_page_is_no_word_of_fts_about_a_job(status: int, with_token: bool, kind: FtsErrorKind) -> None:
    assert kind_of_foreign(status, "", with_token=with_token) is kind


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hidden", "token eyJhbGciOi.hidden.hidden refused", "https://me:hidden@host/f",
        "GET https://host/f?authz=hidden failed", "-----BEGIN RSA PRIVATE KEY-----\nhidden",
    ],
)  # fmt: skip
def test_texts_of_the_server_show_no_secret(text: str) -> None:
    assert "hidden" not in redact(text)
    assert "hidden" not in str(FTS_FAILED(text, reason=text))
    assert "hidden" not in str(FTS_FAILED(text, reason=text).reason)
