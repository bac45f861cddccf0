"""The reasons of a gateway become errors."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from include.errors import NightshiftError, kinds_in
from include.gateway import errors
from include.gateway.errors import GatewayError, GatewayErrorKind, kind_of

TOKEN = "AA4GU76YRRMDOWUDSUWOTQNFJYGJHSR6A77QEUOLS4COX6AXFWYQ===="
KINDS = [kind for kind in kinds_in(errors).values() if kind is not NightshiftError]
CLASSES = [kind for kind in KINDS if isinstance(kind, type)]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("invalid_hmac", errors.BAD_SIGNATURE),
        ("authorization error: invalid_key", errors.KEY_NOT_ALLOWED),
        ("invalid_key", errors.KEY_NOT_ALLOWED),
        ("authorization error: invalid_path", errors.PATH_NOT_ALLOWED),
        ("invalid_path", errors.PATH_NOT_ALLOWED),
        ("authorization error: invalid_repo", errors.UNKNOWN_REPOSITORY),
        ("invalid_repo", errors.UNKNOWN_REPOSITORY),
        ("repository not found: %!w(<nil>)", errors.UNKNOWN_REPOSITORY),
        ("repository not found: no.such.org", errors.UNKNOWN_REPOSITORY),
        ("repo_disabled", errors.RepositoryDisabled),
        ("no_admin_key", errors.AdminKeyNeeded),
        ("input has leading slash", errors.BadLeasePath),
        ("missing repository name or subpath", errors.BadLeasePath),
        ("incompatible request version: 1, min version: 2", errors.INCOMPATIBLE_VERSION),
        ("invalid lease", errors.LeaseLost),
        ("invalid_token", errors.LeaseLost),
        ("lease_expired", errors.LeaseLost),
        ("could not obtain statistics counters: no statistics counters for lease r.org/a", errors.LEASE_SPENT),
        ("could not begin transaction: database is locked", errors.STATE_FAILED),
        ("database is locked", errors.STATE_FAILED),
        ("merge_error", errors.MERGE_FAILED),
        ("missing_reflog", errors.REFLOG_MISSING),
        ("damaged_head", errors.HEAD_DAMAGED),
        ("miscellaneous", errors.CommitFailed),
        ("runtime error: PANIC: failed to load C from Stratum 0", errors.RECEIVER_FAILED),
        ("worker 'commit' call failed: possible that the receiver crashed: EOF", errors.RECEIVER_FAILED),
        ("uploader_error", errors.STORAGE_FAILED),
        ("something that no version ever said", GatewayError),
    ],
)
def test_reasons_of_the_server_and_of_the_manual_mean_the_same(reason: str, kind: GatewayErrorKind) -> None:
    assert kind_of(reason) is kind


@given(st.text(max_size=100))
def test_any_reason_means_an_error(reason: str) -> None:
    assert isinstance(kind_of(reason)("no"), GatewayError)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.code)
def test_every_class_is_drawn_in_the_tree_which_says_whether_to_retry(kind: type[GatewayError]) -> None:
    lines = [line for line in str(errors.__doc__).splitlines() if kind.__name__ in line.replace("─", " ").split()]
    assert len(lines) == 1, kind
    if kind is not GatewayError:
        assert ("retryable" in lines[0]) is kind.retryable


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_every_kind_says_what_helps(kind: GatewayErrorKind) -> None:
    assert kind.hint


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_errors_cross_process_borders_with_what_they_carry(kind: GatewayErrorKind) -> None:
    error = kind("no", repository="r.org", path="/a", key_id="k", reason="why", trace="t")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, again.hint, again.retryable, again.outage, again.concern) == (
        type(error), kind.code, kind.hint, kind.retryable, kind.outage, kind.concern,
    )  # fmt: skip
    assert (str(again), again.repository, again.path, again.key_id, again.reason, again.trace) == (
        "no", "r.org", "/a", "k", "why", "t",
    )  # fmt: skip


@pytest.mark.parametrize("text", [TOKEN, TOKEN.replace("=", "%3D"), TOKEN.rstrip("=")])
def test_no_error_shows_a_token(text: str) -> None:
    error = GatewayError(f"url: /api/v1/leases/{text} refused", reason=text)
    assert TOKEN[:52] not in str(error) + repr(error) + str(error.reason)
