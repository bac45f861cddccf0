"""States of a replica, by its answers now and before, and their table in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from sqlalchemy import BigInteger, Column, Table

from include.cvmfs.format.manifest import Manifest
from include.json_values import JsonValue, Time
from include.ledger.metadata import TABLE_OPTIONS, UtcTime, exact, long_text, metadata
from include.settings.services import ReplicaSettings


class CollectionTurn(Enum):
    """Decision of a collection about the replicas."""

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
    """Return what a person has to see to; a snapshot within its limit is nothing."""
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


replicas = Table(
    "replicas",
    metadata,
    # the last look at each, and since when it is in its state
    Column("repository", exact(128), primary_key=True),
    Column("replica", exact(128), primary_key=True),
    Column("url", exact(2048), nullable=False),
    Column("state", exact(32), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("looked_at", UtcTime, nullable=False),
    Column("state_since", UtcTime, nullable=False),
    Column("head_revision", BigInteger, nullable=False),
    Column("revision", BigInteger),
    Column("highest_revision", BigInteger),
    Column("behind_since", UtcTime),
    Column("snapshot_since", UtcTime),
    Column("last_snapshot", UtcTime),
    **TABLE_OPTIONS,
)


class ReplicaState(Enum):
    """State of a replica against stratum 0; the value is the word that tables and messages use."""

    IN_SYNC = "in sync"
    BEHIND = "behind"
    SNAPSHOT = "snapshot running"
    UNREACHABLE = "unreachable"
    ROLLED_BACK = "rolled back"
    WRONG_REPOSITORY = "wrong repository"
    BAD_SIGNATURE = "bad signature"

    @property
    def trusted(self) -> bool:
        """Tell whether readers of the replica get a revision of the repository, and no older one than before."""
        return self in {ReplicaState.IN_SYNC, ReplicaState.BEHIND, ReplicaState.SNAPSHOT}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReplica:
    """Documents of a replica: either its verified `manifest`, or a `fault` instead of it, with its reason.

    `snapshot_since`: when the marker of a running snapshot was made, None without a marker.
    """

    name: str
    url: str
    manifest: Manifest | None = None
    fault: ReplicaState = ReplicaState.UNREACHABLE
    reason: str = ""
    snapshot_since: datetime | None = None
    last_snapshot: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLook(JsonValue):
    """A look at a replica: a row of the ledger. Without a trusted manifest it has no revision.

    Attributes:
        state_since: When the replica was first seen in this state.
        highest_revision: The newest that it ever had of this repository.
        behind_since: When its revision was superseded at stratum 0, no later than that.
    """

    repository: str
    replica: str
    url: str
    state: ReplicaState
    reason: str
    looked_at: Time
    state_since: Time
    head_revision: int
    revision: int | None = None
    highest_revision: int | None = None
    behind_since: Time | None = None
    snapshot_since: Time | None = None
    last_snapshot: Time | None = None

    @property
    def behind_revisions(self) -> int | None:
        """Return how many revisions it lacks; None where its revision is not known."""
        return None if self.revision is None else max(self.head_revision - self.revision, 0)

    @property
    def lag(self) -> timedelta:
        """For how long its revision has been superseded."""
        return timedelta() if self.behind_since is None else self.looked_at - self.behind_since

    def has(self, revision: int) -> bool:
        """Tell whether readers of it get this revision, or a later one."""
        return self.state.trusted and self.revision is not None and self.revision >= revision

    def __str__(self) -> str:
        return f"{self.repository} replica {self.replica}: {self.state.value}: {self.reason}"

    def to_row(self) -> dict[str, Any]:
        return asdict(self) | {"state": self.state.value}

    def to_json(self) -> dict[str, Any]:
        """The row with times as ISO 8601, and the figures: revisions, and seconds of lag."""
        figures = {"behind_revisions": self.behind_revisions, "lag_s": round(self.lag.total_seconds())}
        return JsonValue.to_json(self) | figures


def judge(seen: SeenReplica, head: Manifest, before: ReplicaLook | None, now: datetime) -> ReplicaLook:
    """The state of a replica. `head`: stratum 0's manifest, read after the replica's.

    `before`: the look before this one; one of another URL is ignored.
    """
    if before is not None and before.url != seen.url:
        before = None
    state, reason = _state(seen, head, before)
    known = seen.manifest
    snapshot = None if seen.snapshot_since is None else min(seen.snapshot_since, now)
    since = before.state_since if before is not None and before.state is state else now
    highest = None if before is None else before.highest_revision
    if known is not None and state.trusted:
        highest = known.revision if known.revision == head.revision else max(known.revision, highest or 0)
    return ReplicaLook(
        repository=head.fqrn, replica=seen.name, url=seen.url, state=state, reason=reason, looked_at=now,
        state_since=min(since, now), head_revision=head.revision, revision=None if known is None else known.revision,
        highest_revision=highest, behind_since=_behind_since(known, head, before, now), snapshot_since=snapshot,
        last_snapshot=seen.last_snapshot,
    )  # fmt: skip


def _state(seen: SeenReplica, head: Manifest, before: ReplicaLook | None) -> tuple[ReplicaState, str]:
    own = seen.manifest
    if own is None:
        if seen.fault is ReplicaState.UNREACHABLE and seen.snapshot_since is not None:
            return ReplicaState.SNAPSHOT, f"its first snapshot runs since {seen.snapshot_since:%Y-%m-%d %H:%M:%S} UTC"
        return seen.fault, seen.reason
    if own.revision > head.revision:
        return ReplicaState.ROLLED_BACK, f"it has revision {own.revision}, stratum 0 went back to {head.revision}"
    if own.revision == head.revision and own.root.digest != head.root.digest:
        return ReplicaState.ROLLED_BACK, f"its revision {own.revision} is another one than stratum 0's: {own.root}"
    highest = None if before is None else before.highest_revision
    # stratum 0 may have been put back since, by hand: what is newer than its own revision is no measure
    if highest is not None and own.revision < highest <= head.revision:
        return ReplicaState.ROLLED_BACK, f"it had revision {highest}, and went back to {own.revision}"
    missing = head.revision - own.revision
    where = f"revision {own.revision}" + (f", {missing} behind stratum 0" if missing else "")
    if seen.snapshot_since is not None:
        return ReplicaState.SNAPSHOT, f"{where}; a snapshot runs since {seen.snapshot_since:%Y-%m-%d %H:%M:%S} UTC"
    return (ReplicaState.BEHIND if missing else ReplicaState.IN_SYNC), where


def _behind_since(own: Manifest | None, head: Manifest, before: ReplicaLook | None, now: datetime) -> datetime | None:
    """When the revision was superseded: exactly where one is missing, else the earliest time that it can have been."""
    if own is None:
        return None if before is None else before.behind_since
    if own.revision >= head.revision:
        return None
    if head.revision - own.revision == 1:
        return _no_later(head.timestamp, now)
    if before is not None and before.revision == own.revision:
        if before.behind_since is not None:
            return min(before.behind_since, now)
        return min(before.looked_at, now)  # it was the newest then
    return _no_later(own.timestamp, now)


def _no_later(seconds: int, now: datetime) -> datetime:
    """A manifest's time; `now` where it states none, or one that is to come."""
    try:
        return min(datetime.fromtimestamp(seconds, UTC), now) if seconds else now
    except (ValueError, OverflowError, OSError):
        return now
