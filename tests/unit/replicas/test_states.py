"""In which state a replica is, as a table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.cvmfs.format.hashes import ObjectHash
from include.cvmfs.format.manifest import Manifest
from include.replicas.states import ReplicaLook, ReplicaState, SeenReplica, judge

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


def test_a_state_lasts_from_the_first_look_that_saw_it() -> None:
    assert look(before=BEFORE).state_since == NOW - 5 * HOUR
    assert look(None, BEFORE).state_since == NOW


def test_a_look_comes_back_from_json_as_it_was() -> None:
    whole = look(manifest(8), BEFORE, snapshot_since=NOW - HOUR, last_snapshot=NOW - 2 * HOUR)
    assert ReplicaLook.from_json(whole.to_json()) == whole
    assert whole.to_json()["lag_s"] == 3600
