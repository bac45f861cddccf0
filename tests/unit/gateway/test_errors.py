"""What a gateway's reasons mean."""

from __future__ import annotations

import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.gateway import errors
from include.gateway.errors import GatewayError, leaf_of

TOKEN = "AA4GU76YRRMDOWUDSUWOTQNFJYGJHSR6A77QEUOLS4COX6AXFWYQ===="
LEAVES = [leaf for _, leaf in inspect.getmembers(errors, inspect.isclass) if issubclass(leaf, GatewayError)]


@pytest.mark.parametrize(
    ("reason", "leaf"),
    [
        ("invalid_hmac", errors.BadSignature),
        ("authorization error: invalid_key", errors.KeyNotAllowed),
        ("invalid_key", errors.KeyNotAllowed),
        ("authorization error: invalid_path", errors.PathNotAllowed),
        ("invalid_path", errors.PathNotAllowed),
        ("authorization error: invalid_repo", errors.UnknownRepository),
        ("invalid_repo", errors.UnknownRepository),
        ("repository not found: %!w(<nil>)", errors.UnknownRepository),
        ("repository not found: no.such.org", errors.UnknownRepository),
        ("repo_disabled", errors.RepositoryDisabled),
        ("no_admin_key", errors.AdminKeyNeeded),
        ("input has leading slash", errors.BadLeasePath),
        ("missing repository name or subpath", errors.BadLeasePath),
        ("incompatible request version: 1, min version: 2", errors.IncompatibleVersion),
        ("invalid lease", errors.LeaseLost),
        ("invalid_token", errors.LeaseLost),
        ("lease_expired", errors.LeaseLost),
        ("could not obtain statistics counters: no statistics counters for lease r.org/a", errors.LeaseSpent),
        ("could not begin transaction: database is locked", errors.StateTrouble),
        ("database is locked", errors.StateTrouble),
        ("merge_error", errors.MergeFailed),
        ("missing_reflog", errors.ReflogMissing),
        ("miscellaneous", errors.CommitFailed),
        ("runtime error: PANIC: failed to load C from Stratum 0", errors.ReceiverFailed),
        ("worker 'commit' call failed: possible that the receiver crashed: EOF", errors.ReceiverFailed),
        ("uploader_error", errors.StorageFailed),
        ("something that no version ever said", GatewayError),
    ],
)
def test_reasons_of_the_server_and_of_the_manual_have_the_same_leaf(reason: str, leaf: type[GatewayError]) -> None:
    assert leaf_of(reason) is leaf


@given(st.text(max_size=100))
def test_any_reason_has_a_leaf(reason: str) -> None:
    assert issubclass(leaf_of(reason), GatewayError)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_every_leaf_is_drawn_in_the_tree_and_says_whether_to_retry(leaf: type[GatewayError]) -> None:
    assert errors.__doc__ is not None
    lines = [line for line in errors.__doc__.splitlines() if leaf.__name__ in line.replace("─", " ").split()]
    assert len(lines) == 1, leaf
    assert isinstance(leaf.retryable, bool)
    assert leaf.hint
    if leaf is not GatewayError and not any(leaf in other.__bases__ for other in LEAVES):
        assert ("retryable" in lines[0]) is leaf.retryable


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_errors_cross_process_borders_with_what_they_carry(leaf: type[GatewayError]) -> None:
    error = leaf("no", repository="r.org", path="/a", key_id="k", reason="why", trace="t")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is leaf
    assert (str(again), again.repository, again.path, again.key_id, again.reason, again.trace) == (
        "no", "r.org", "/a", "k", "why", "t",
    )  # fmt: skip


@pytest.mark.parametrize("text", [TOKEN, TOKEN.replace("=", "%3D"), TOKEN.rstrip("=")])
def test_no_error_shows_a_token(text: str) -> None:
    error = GatewayError(f"url: /api/v1/leases/{text} refused", reason=text)
    assert TOKEN[:52] not in str(error) + repr(error) + str(error.reason)
