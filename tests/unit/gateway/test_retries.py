"""What is done after each outcome."""

from __future__ import annotations

import inspect

import pytest

from include.gateway import errors
from include.gateway.errors import GatewayError, PathBusy, leaf_of
from include.gateway.retries import LONGEST_PAUSE_S, Action, advice

LEAVES = [leaf for _, leaf in inspect.getmembers(errors, inspect.isclass) if issubclass(leaf, GatewayError)]


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        ("path_busy", Action.WAIT),
        ("could not begin transaction: database is locked", Action.REPEAT),
        ("invalid_hmac", Action.STOP),
        ("authorization error: invalid_key", Action.STOP),
        ("invalid_path", Action.STOP),
        ("invalid_repo", Action.STOP),
        ("repo_disabled", Action.PAUSE),
        ("invalid lease", Action.NEW_LEASE),
        ("could not obtain statistics counters: no statistics counters for lease r.org/a", Action.NEW_LEASE),
        ("merge_error", Action.LOOK),
        ("miscellaneous", Action.LOOK),
        ("runtime error: PANIC: x", Action.LOOK),
        ("worker 'commit' call failed: possible that the receiver crashed: EOF", Action.LOOK),
        ("missing_reflog", Action.STOP),
        ("uploader_error", Action.NEW_LEASE),
    ],
)
def test_every_reason_has_its_way_to_go_on(reason: str, action: Action) -> None:
    assert advice(leaf_of(reason)("x"), 1).action is action


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_what_may_be_tried_again_is_never_stopped(leaf: type[GatewayError]) -> None:
    found = advice(leaf("x"), 3)
    assert found.pause_s <= LONGEST_PAUSE_S
    if leaf.retryable:
        assert found.action is not Action.STOP


def test_pauses_grow_to_a_bound_and_never_outlast_the_holder() -> None:
    pauses = [advice(errors.LeaseLost("x"), attempt).pause_s for attempt in range(1, 60)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    assert advice(PathBusy("x", time_remaining_s=1.5), 9).pause_s == 1.5
    assert advice(errors.LeaseLost("x"), 1, jitter=0.5).pause_s == pauses[0] / 2
