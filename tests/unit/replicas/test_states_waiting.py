"""What a collection does about replicas."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from include.replicas.states import CollectionTurn, ReplicaRule, ReplicaState, complaint, wait_for_replicas
from include.settings.ssh import ReplicaSettings
from tests.unit.replicas.test_states import HOUR, NOW, look

RULE = ReplicaRule(longest_snapshot=4 * HOUR, max_lag=24 * HOUR)
RULES = {"s1": RULE, "s2": RULE}
SYNCED = look()
MINUTE = timedelta(minutes=1)


def in_snapshot(since: timedelta) -> Any:
    return replace(SYNCED, state=ReplicaState.SNAPSHOT, snapshot_since=NOW - since)


def in_state(state: ReplicaState, since: timedelta) -> Any:
    return replace(SYNCED, state=state, state_since=NOW - since)


@pytest.mark.parametrize(
    ("seen", "turn", "left"),
    [
        (SYNCED, CollectionTurn.GO_ON, None),
        (in_snapshot(HOUR), CollectionTurn.WAIT, 3 * HOUR),
        (in_snapshot(4 * HOUR - MINUTE), CollectionTurn.WAIT, MINUTE),
        (in_snapshot(4 * HOUR), CollectionTurn.GO_ON_WITHOUT, None),
        (in_snapshot(-HOUR), CollectionTurn.WAIT, 4 * HOUR),
        (in_state(ReplicaState.UNREACHABLE, HOUR), CollectionTurn.WAIT, 3 * HOUR),
        (in_state(ReplicaState.UNREACHABLE, 5 * HOUR), CollectionTurn.GO_ON_WITHOUT, None),
        (in_state(ReplicaState.BAD_SIGNATURE, HOUR), CollectionTurn.WAIT, 3 * HOUR),
        (in_state(ReplicaState.ROLLED_BACK, HOUR), CollectionTurn.WAIT, 3 * HOUR),
        (in_state(ReplicaState.WRONG_REPOSITORY, HOUR), CollectionTurn.WAIT, 3 * HOUR),
        (replace(SYNCED, state=ReplicaState.BEHIND, behind_since=NOW - 23 * HOUR), CollectionTurn.GO_ON, None),
        (replace(SYNCED, state=ReplicaState.BEHIND, behind_since=NOW - 25 * HOUR), CollectionTurn.WAIT, 3 * HOUR),
        (replace(SYNCED, state=ReplicaState.BEHIND, behind_since=NOW - 29 * HOUR), CollectionTurn.GO_ON_WITHOUT, None),
    ],
)
def test_a_replica_is_waited_for_as_long_as_its_longest_snapshot(seen: Any, turn: CollectionTurn, left: Any) -> None:
    found = wait_for_replicas([seen], RULES, NOW)
    assert found.turn is turn
    assert found.until == (None if left is None else NOW + left)
    assert found.without == (("s1",) if turn is CollectionTurn.GO_ON_WITHOUT else ())


def test_the_last_of_several_decides_and_those_given_up_are_named() -> None:
    stale = replace(in_snapshot(5 * HOUR), replica="s2")
    found = wait_for_replicas([in_snapshot(HOUR), stale], RULES, NOW)
    assert (found.turn, found.until, found.without) == (CollectionTurn.WAIT, NOW + 3 * HOUR, ("s2",))
    assert "s1" in found.reason
    assert "s2" in found.reason
    both = wait_for_replicas([in_snapshot(HOUR), replace(in_snapshot(2 * HOUR), replica="s2")], RULES, NOW)
    assert both.until == NOW + 3 * HOUR


def test_without_replicas_a_collection_goes_on() -> None:
    assert wait_for_replicas([], {}, NOW).turn is CollectionTurn.GO_ON


def test_the_grace_covers_the_longest_lag_and_the_snapshot_after_it() -> None:
    slow = ReplicaSettings(name="s1", url="http://a", longest_snapshot_minutes=600, max_lag_hours=48)
    fast = ReplicaSettings(name="s2", url="http://b", longest_snapshot_minutes=900, max_lag_hours=1)
    assert max(slow.needs, fast.needs) == slow.needs == 58 * HOUR


def test_people_are_told_of_what_does_not_pass_by_itself() -> None:
    assert complaint(SYNCED, RULE, NOW) is None
    assert complaint(in_snapshot(HOUR), RULE, NOW) is None
    for bad in (in_snapshot(5 * HOUR), in_state(ReplicaState.UNREACHABLE, MINUTE)):
        assert complaint(bad, RULE, NOW) is not None
