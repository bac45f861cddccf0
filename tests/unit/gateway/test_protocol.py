"""What client and service agree on is written and read alike, and spelled as it always was."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from include.gateway import protocol
from include.gateway.protocol import AcquireBody, CommitBody, Offer, format_offers, parse_offers
from include.gateway.service.requests import CommitRequest

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_offers_are_spelled_as_ever_and_unknown_ones_are_left_out() -> None:
    assert format_offers(frozenset(Offer)) == "body-signature, renewal, repeated-acquire, waiting-list"
    assert parse_offers("renewal,a-later-one , no-body-signature") == {Offer.RENEWAL}
    assert parse_offers("") == frozenset()


@given(st.frozensets(st.sampled_from(Offer)))
def test_offers_are_read_back_as_they_are_written(offers: frozenset[Offer]) -> None:
    assert parse_offers(format_offers(offers)) == offers


@given(st.builds(AcquireBody, texts, texts, texts, texts))
def test_a_request_for_a_lease_is_read_back_as_it_is_written(body: AcquireBody) -> None:
    assert AcquireBody.parse(body.format()) == body


@given(st.builds(CommitBody, texts, texts, texts, texts, texts))
def test_a_commit_is_read_back_as_it_is_written(body: CommitBody) -> None:
    assert CommitBody.parse(body.format()) == body
    order = CommitRequest.parse(body.format())
    assert type(order) is CommitRequest
    assert order == CommitRequest.parse(body.format())
    assert len({order, CommitRequest.parse(body.format())}) == 1


@given(st.none() | st.integers(1, 2**31 - 1))
def test_a_renewal_is_read_back_as_it_is_written(wanted_s: int | None) -> None:
    assert protocol.parse_renewal(protocol.format_renewal(wanted_s)) == wanted_s


def test_bodies_are_written_byte_for_byte_as_ever() -> None:
    assert AcquireBody("r.org/a", "2", "h", "5a").format() == (
        b'{"path": "r.org/a", "api_version": "2", "hostname": "h", "request": "5a"}'
    )
    plain = b'{"old_root_hash": "1C", "new_root_hash": "2C", "tag_name": "", "tag_channel": 0, "tag_description": ""}'
    assert CommitBody("1C", "2C", "", "", "").format() == plain
    assert json.loads(CommitBody("1C", "2C", "", "", "4:idle").format())["generation"] == "4:idle"
    assert protocol.format_renewal(50) == b'{"expires_in_sec": 50}'
