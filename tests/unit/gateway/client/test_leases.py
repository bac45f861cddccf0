"""The values that a gateway lists are read as they were written; others are refused."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from include.gateway.client.leases import Lease, LeaseInfo, RepositoryInfo, seal, unseal
from include.gateway.errors import SEALED_LEASE_UNREADABLE
from include.gateway.service.http.lease_calls import listed
from include.gateway.service.leases.lease_rows import LeaseRow
from include.gateway.service.requests import ok
from tests.fakes.refused import refused

EPOCH = datetime.fromtimestamp(0, UTC)
words = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda word: word not in (".", "..")
)
paths = st.lists(words, max_size=4).map(lambda parts: "".join(f"/{part}" for part in parts))
times = st.integers(min_value=0, max_value=4_102_444_800_000)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def over_the_wire(data: Any) -> Any:
    """Data as the service writes it and the client's JSON reader reads it."""
    return json.loads(ok(data=data).body)["data"]


@given(words, paths, words, st.text(alphabet=st.characters(codec="utf-8"), max_size=20), times)
def test_a_listed_lease_comes_back(repository: str, path: str, key_id: str, hostname: str, expires_ms: int) -> None:
    row = LeaseRow(1, repository, path, key_id, hostname, 3, expires_ms, 0)
    (value,) = over_the_wire({row.full_path: listed(row)}).values()
    expires = EPOCH + timedelta(milliseconds=expires_ms)
    assert LeaseInfo.parse(value) == LeaseInfo(repository, path, key_id, expires, hostname)
    assert LeaseInfo.parse(value).full_path == value["path"] == row.full_path


@pytest.mark.parametrize("listed", ["r.example.org/", "r.example.org", "r.example.org//"])
def test_a_lease_on_a_whole_repository_has_the_empty_path(listed: str) -> None:
    found = LeaseInfo.parse({"key_id": "k", "path": listed, "expires": "2026-11-21 00:41:53 +0000 UTC"})
    assert (found.repository, found.path, found.hostname) == ("r.example.org", "", "")
    assert found.full_path == "r.example.org/"


@given(words, st.dictionaries(words, paths.map(lambda path: path or "/"), max_size=4), st.booleans())
def test_a_repository_comes_back_from_the_list_of_the_service(name: str, keys: dict[str, str], enabled: bool) -> None:
    value = over_the_wire({name: {"keys": keys, "enabled": enabled}})[name]
    assert RepositoryInfo.parse(name, value) == RepositoryInfo(name, keys, enabled)


lease_like = st.fixed_dictionaries({}, optional=dict.fromkeys(("key_id", "path", "expires", "hostname"), documents))
repository_like = st.fixed_dictionaries({}, optional=dict.fromkeys(("keys", "enabled"), documents))


@given(documents | lease_like | repository_like)
def test_any_other_lease_or_repository_is_read_or_refused(value: object) -> None:
    for parse in (LeaseInfo.parse, lambda value: RepositoryInfo.parse("r.example.org", value)):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            parse(value)


@pytest.mark.parametrize("missing", ["key_id", "path", "expires"])
def test_a_lease_that_lacks_something_is_refused(missing: str) -> None:
    value = {"key_id": "k", "path": "r.example.org/a", "expires": "2026-11-21 00:41:53 +0000 UTC", "hostname": "h"}
    del value[missing]
    with refused(KeyError, args=(missing,)):
        LeaseInfo.parse(value)


# -- a lease that one process leaves for another


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
LEASE = Lease("TOKEN-" + "A" * 40, "nights.example.org", "/a/b", "dag/run/release try 1", "key", lifetime_s=120.0)


def sealed(**change: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(seal(LEASE, "secret", now=NOW)))
    return found | change


def test_it_is_read_back_with_the_same_secret_and_its_token_is_in_no_text() -> None:
    value = sealed()
    assert unseal(value, "secret", now=NOW) == LEASE
    assert LEASE.token not in json.dumps(value)
    assert (value["repository"], value["path"], value["holder"]) == (LEASE.repository, LEASE.path, LEASE.hostname)


def test_it_ends_when_it_did_whatever_the_clock_of_the_other_process_counts_from() -> None:
    value = seal(replace(LEASE, expires_monotonic=time.monotonic() + 100), "secret", now=NOW)
    read = unseal(value, "secret", now=NOW + timedelta(seconds=40))
    assert read.expires_monotonic is not None
    assert 50 < read.expires_monotonic - time.monotonic() <= 60


@pytest.mark.parametrize(
    "change", [{"sealed": "x"}, {"sealed": None}, {"expires": "soon"}, {"sealed": sealed()["sealed"][:-4] + "AAAA"}]
)
def test_what_is_no_lease_of_this_key_is_refused_without_a_retry(change: dict[str, Any]) -> None:
    with refused(SEALED_LEASE_UNREADABLE, retryable=False):
        unseal(sealed(**change), "secret", now=NOW)
    with refused(SEALED_LEASE_UNREADABLE):
        unseal(sealed(), "another secret", now=NOW)
