"""A lease that one process leaves for another: its token is read with the gateway's secret only."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.gateway.client.values import Lease, seal, unseal
from include.gateway.errors import SEALED_LEASE_UNREADABLE
from tests.fakes.refused import refused

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
