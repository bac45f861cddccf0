"""The wait of a collection for replicas: it goes on, waits for some, or leaves them behind. Pure.

A snapshot reads from stratum 0 what its manifest named when the snapshot began. A copy without objects of its own reads
what its old manifest names, as long as it lags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from include.replicas.states import ReplicaLook
from include.settings.ssh import ReplicaSettings


class CollectionTurn(Enum):
    """What a collection does about the replicas."""

    GO_ON = "go on"
    WAIT = "wait"
    GO_ON_WITHOUT = "go on without"


@dataclass(frozen=True, slots=True)
class ReplicaRule:
    """The limits of one replica: of one snapshot, and of its lag."""

    longest_snapshot: timedelta
    max_lag: timedelta

    @classmethod
    def of(cls, settings: ReplicaSettings) -> ReplicaRule:
        return cls(timedelta(minutes=settings.longest_snapshot_minutes), timedelta(hours=settings.max_lag_hours))


@dataclass(frozen=True, slots=True)
class CollectionDecision:
    """`until`: when the wait ends at the latest, for WAIT only. `without`: the replicas that are not waited for."""

    turn: CollectionTurn
    reason: str
    until: datetime | None = None
    without: tuple[str, ...] = ()


def wait_for_replicas(
    looks: Iterable[ReplicaLook], rules: Mapping[str, ReplicaRule], now: datetime
) -> CollectionDecision:
    """The decision for a collection that is about to begin; `looks` are of this moment, `rules` by a replica's name.

    A replica in a snapshot, in an unknown state or with too long a lag is waited for as long as its longest snapshot
    takes, counted from when that began. After this the collection goes on without it.
    """
    waiting: list[tuple[datetime, str]] = []
    without: list[tuple[str, str]] = []
    for look in looks:
        rule = rules[look.replica]
        trouble = _trouble(look, rule, now)
        if trouble is None:
            continue
        began, why = trouble
        until = min(began, now) + rule.longest_snapshot
        if now < until:
            waiting.append((until, f"{look.replica}: {why}"))
        else:
            minutes = round(rule.longest_snapshot / timedelta(minutes=1))
            without.append((look.replica, f"{look.replica}: {why}, for longer than {minutes} minutes"))
    names = tuple(name for name, _ in without)
    left = [why for _, why in without]
    if waiting:
        until = max(until for until, _ in waiting)
        return CollectionDecision(CollectionTurn.WAIT, "; ".join([why for _, why in waiting] + left), until, names)
    if without:
        return CollectionDecision(CollectionTurn.GO_ON_WITHOUT, "; ".join(left), without=names)
    return CollectionDecision(CollectionTurn.GO_ON, "no replica is in a snapshot, and none lags too long")


def complaint(look: ReplicaLook, rule: ReplicaRule, now: datetime) -> str | None:
    """What a person has to see to; a snapshot within its limit is nothing."""
    trouble = _trouble(look, rule, now)
    if trouble is None or (look.snapshot_since is not None and now - look.snapshot_since <= rule.longest_snapshot):
        return None
    return f"replica {look.replica}: {trouble[1]}"


def _trouble(look: ReplicaLook, rule: ReplicaRule, now: datetime) -> tuple[datetime, str] | None:
    """Since when a replica has to be waited for, and why."""
    if look.snapshot_since is not None:
        return look.snapshot_since, f"a snapshot runs since {look.snapshot_since:%Y-%m-%d %H:%M:%S} UTC"
    if not look.state.trusted:
        return look.state_since, f"{look.state.value} since {look.state_since:%Y-%m-%d %H:%M:%S} UTC: {look.reason}"
    if look.behind_since is not None and now - look.behind_since > rule.max_lag:
        hours = rule.max_lag / timedelta(hours=1)
        since = f"{look.behind_since:%Y-%m-%d %H:%M:%S} UTC"
        return look.behind_since + rule.max_lag, f"behind since {since}, its limit is {hours:g} hours"
    return None
