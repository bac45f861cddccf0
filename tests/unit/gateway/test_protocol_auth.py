"""The Authorization header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.gateway.protocol import authorization, sign, signature_fits, split_authorization

BODY = b'{"path" : "repo.example.org/sub", "api_version" : "2", "hostname" : "h"}'


def test_the_signature_is_base64_of_hex_digits() -> None:
    expected = "key1 MGQ2YTkxZTNiM2RmYzZjNTZiZDE4N2E2YmQ3OGEyNjIwMTM1NWQ1MA=="
    assert authorization("key1", "s3cr3t", BODY) == expected


def test_a_token_is_signed_as_it_is() -> None:
    import base64

    assert base64.b64decode(sign("s3cr3t", b"TOKEN")) == b"32042210a02dbde23820e8e0a277c833b4f7d433"


@given(st.text(min_size=1, max_size=80).filter(lambda text: text.isprintable()), st.binary(max_size=300))
def test_a_signature_fits_its_own_message_and_secret_only(secret: str, message: bytes) -> None:
    signature = sign(secret, message)
    assert signature_fits(signature, secret, message)
    assert not signature_fits(signature, secret + "x", message)
    assert not signature_fits(signature, secret, message + b"x")


@pytest.mark.parametrize("header", [None, "", "key", "key ", " sig", "key  sig", "key sig more", "  "])
def test_anything_but_two_fields_and_one_blank_is_no_authorization(header: str | None) -> None:
    assert split_authorization(header) is None


@given(st.text(max_size=60))
def test_a_foreign_signature_never_raises(text: str) -> None:
    assert signature_fits(text, "secret", b"message") is (text == sign("secret", b"message"))
