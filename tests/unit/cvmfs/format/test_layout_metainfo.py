"""Meta info is free JSON: the members of the skeleton are known, the others are kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.cvmfs.errors import FormatError
from include.cvmfs.format.layout import MetaInfo, skeleton
from tests.fakes.refused import refused

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
INFOS = st.builds(
    MetaInfo,
    administrator=TEXT,
    email=TEXT,
    organisation=TEXT,
    description=TEXT,
    url=TEXT,
    stratum0=TEXT,
    stratum1s=st.lists(TEXT, max_size=3).map(tuple),
    custom=st.dictionaries(TEXT, VALUES, max_size=3),
    others=st.dictionaries(TEXT.map(lambda key: f"x-{key}"), VALUES, max_size=3),
)


def test_the_skeleton_has_the_members_of_the_stock_tools() -> None:
    assert json.loads(skeleton()) == {
        "administrator": "",
        "email": "",
        "organisation": "",
        "description": "",
        "url": "",
        "recommended-stratum0": "",
        "recommended-stratum1s": [],
        "custom": {},
    }


@given(INFOS)
def test_it_reads_back_as_what_was_written(info: MetaInfo) -> None:
    assert MetaInfo.parse(info.format()) == info


def test_text_that_is_no_unicode_still_makes_a_file() -> None:
    odd = MetaInfo.parse(b'{"description": "\\ud800"}')
    assert MetaInfo.parse(odd.format()) == odd


def test_absent_members_are_empty() -> None:
    assert MetaInfo.parse(b"{}") == MetaInfo()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b'{"url": 1}',
        b'{"custom": []}',
        b'{"recommended-stratum1s": ""}',
    ],
)
def test_what_is_no_meta_info_is_refused(data: bytes) -> None:
    with refused(FormatError, what="meta info"):
        MetaInfo.parse(data)


@given(st.binary(max_size=100), st.integers(0, 200))
def test_damaged_bytes_end_in_our_own_error_or_are_read(noise: bytes, cut: int) -> None:
    for data in (noise, skeleton()[:cut] + noise):
        try:
            MetaInfo.parse(data)
        except FormatError as error:
            assert error.what == "meta info"  # noqa: PT017
