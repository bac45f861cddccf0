"""In which state a replica is, as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.replicas.states import (
    CollectionTurn,
    ReplicaLook,
    ReplicaRule,
    ReplicaState,
    SeenReplica,
    complaint,
    judge,
    wait_for_replicas,
)
from include.settings.services import ReplicaSettings

NOW = datetime(2026, 11, 23, 4, tzinfo=UTC)
HOUR = timedelta(hours=1)
URL = "http://s1.example.org/cvmfs/r.example.org"


def manifest(revision: int, *, hours_ago: float = 1, root: str = "a") -> Manifest:
    at = int((NOW - hours_ago * HOUR).timestamp())
    return Manifest(
        root=ObjectHash.parse(root * 40), root_size=1, revision=revision, fqrn="r.example.org", timestamp=at
    )


HEAD = manifest(10)


def seen(own: Manifest | None = None, **more: object) -> SeenReplica:
    return SeenReplica(name="s1", url=URL, manifest=own, **more)  # type: ignore[arg-type]


def look(own: Manifest | None = HEAD, before: ReplicaLook | None = None, **more: object) -> ReplicaLook:
    return judge(seen(own, **more), HEAD, before, NOW)


BEFORE = replace(look(), looked_at=NOW - 5 * HOUR, state_since=NOW - 5 * HOUR)


@pytest.mark.parametrize(
    ("own", "more", "before", "state", "behind"),
    [
        (HEAD, {}, None, ReplicaState.IN_SYNC, 0),
        (manifest(9), {}, None, ReplicaState.BEHIND, 1),
        (manifest(9), {"snapshot_since": NOW}, None, ReplicaState.SNAPSHOT, 1),
        (HEAD, {"snapshot_since": NOW}, None, ReplicaState.SNAPSHOT, 0),
        (None, {"snapshot_since": NOW}, None, ReplicaState.SNAPSHOT, None),
        (None, {}, None, ReplicaState.UNREACHABLE, None),
        (None, {"fault": ReplicaState.BAD_SIGNATURE, "snapshot_since": NOW}, None, ReplicaState.BAD_SIGNATURE, None),
        (None, {"fault": ReplicaState.WRONG_REPOSITORY}, None, ReplicaState.WRONG_REPOSITORY, None),
        (manifest(11), {}, None, ReplicaState.ROLLED_BACK, 0),
        (manifest(10, root="b"), {}, None, ReplicaState.ROLLED_BACK, 0),
        (manifest(9), {}, BEFORE, ReplicaState.ROLLED_BACK, 1),
        (manifest(9), {}, replace(BEFORE, highest_revision=12), ReplicaState.BEHIND, 1),
        (manifest(9), {}, replace(BEFORE, url="http://elsewhere"), ReplicaState.BEHIND, 1),
    ],
)
def test_each_state_has_its_cause(
    own: Manifest | None, more: dict[str, object], before: ReplicaLook | None, state: ReplicaState, behind: int | None
) -> None:
    found = look(own, before, **more)
    assert (found.state, found.behind_revisions) == (state, behind)
    assert found.has(10) is (own is HEAD)


def test_a_replica_that_went_back_stays_so_until_it_is_where_it_was() -> None:
    went_back = look(manifest(8), BEFORE)
    assert went_back.highest_revision == 10
    assert look(manifest(9), went_back).state is ReplicaState.ROLLED_BACK
    assert look(HEAD, went_back).state is ReplicaState.IN_SYNC


def test_a_lag_is_exact_for_one_revision_and_never_too_short_for_more() -> None:
    assert look(manifest(9, hours_ago=200)).lag == HOUR  # an idle week before one publication is no lag
    assert look(manifest(7, hours_ago=6)).lag == 6 * HOUR
    head_then = replace(BEFORE, revision=7, highest_revision=7, state=ReplicaState.IN_SYNC)
    assert look(manifest(7, hours_ago=200), head_then).lag == 5 * HOUR
    known = replace(head_then, state=ReplicaState.BEHIND, behind_since=NOW - 4 * HOUR)
    assert look(manifest(7, hours_ago=200), known).lag == 4 * HOUR
    assert look(None, known).lag == 4 * HOUR
    assert look().lag == timedelta()


def test_times_that_are_to_come_or_are_not_stated_make_no_lag() -> None:
    ahead = judge(seen(manifest(9)), manifest(10, hours_ago=-3), None, NOW)
    assert ahead.lag == timedelta()
    assert judge(seen(manifest(9)), replace(HEAD, timestamp=0), None, NOW).lag == timedelta()
    assert judge(seen(HEAD, snapshot_since=NOW + HOUR), HEAD, None, NOW).snapshot_since == NOW


def test_a_state_lasts_from_the_first_look_that_saw_it_and_a_look_comes_back_from_json() -> None:
    assert look(before=BEFORE).state_since == NOW - 5 * HOUR
    assert look(None, BEFORE).state_since == NOW
    whole = look(manifest(8), BEFORE, snapshot_since=NOW - HOUR, last_snapshot=NOW - 2 * HOUR)
    assert ReplicaLook.from_json(whole.to_json()) == whole
    assert whole.to_json()["lag_s"] == 3600


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
