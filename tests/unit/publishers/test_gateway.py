"""A publication through a stock gateway begins again with a new lease where that helps."""

from __future__ import annotations

import pytest

from include.gateway.errors import kind_of
from include.publishers.gateway import a_new_lease_may_help


@pytest.mark.parametrize(
    ("reason", "again"),
    [
        ("path_busy", False),
        ("could not begin transaction: database is locked", False),
        ("invalid_hmac", False),
        ("authorization error: invalid_key", False),
        ("invalid_path", False),
        ("invalid_repo", False),
        ("repo_disabled", False),
        ("invalid lease", True),
        ("could not obtain statistics counters: no statistics counters for lease r.org/a", True),
        ("merge_error", True),
        ("miscellaneous", True),
        ("miscellaneous: tag v1 exists", False),
        ("runtime error: PANIC: x", True),
        ("worker 'commit' call failed: possible that the receiver crashed: EOF", True),
        ("missing_reflog", False),
        ("uploader_error", True),
    ],
)
def test_a_new_lease_is_taken_where_the_gateways_reason_lets_it_help(reason: str, again: bool) -> None:
    assert a_new_lease_may_help(kind_of(reason)("x")) is again
