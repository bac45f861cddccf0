"""What Prometheus reads, taken from the ledger at each scrape: no process counts anything itself.

Publications come and go between states, so their figures are of the last 24 hours and not sums of all time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import Connection, RowMapping, func, select

from include.care.metrics.health import Health
from include.care.notify.records import alerts, first_seen
from include.care.preflight.findings import Severity
from include.care.replicas.states import ReplicaLook
from include.care.replicas.tables import replicas
from include.care.watch.watch import lease_key
from include.nightlies.records.tables import collections, damaged, publications
from include.nightlies.rules.states import State
from include.stageout.states import TransferState
from include.stageout.status import waiting_since
from include.stageout.tables import stageout_transfers

WINDOW = timedelta(hours=24)
NEWEST = 20_000
"""So many of the newest publications are read at most, whatever the ledger holds."""
NAMESPACE = "nightshift"
_LAST = (
    ("seconds", "collection_seconds", "Duration of the last collection"),
    ("kept", "collection_kept_objects", "Objects that the last collection preserved"),
    ("garbage", "collection_garbage_objects", "Condemned objects that it did not delete"),
    ("lost", "collection_lost_objects", "Preserved objects that it found lost"),
)


def of_health(health: Health) -> Iterator[Metric]:
    """Which parts can be reached."""
    up = _gauge("part_up", "Whether a part of the deployment answers", "part", "name")
    for finding in health.report.findings:
        up.add_metric([finding.check, finding.subject], float(finding.severity is not Severity.ERROR))
    yield up


def of_leases(connection: Connection, health: Health, now: datetime) -> Iterator[Metric]:
    """How many leases are held, and for how long; the DAG `night_watch` notes when it saw each first."""
    held = _gauge("leases", "Leases that the gateway lists", "repository")
    oldest = _gauge("lease_oldest_seconds", "Seconds since night_watch first saw the oldest lease", "repository")
    for fqrn, leases in sorted(health.leases.items()):
        seen = first_seen(connection, map(lease_key, leases))
        held.add_metric([fqrn], len(leases))
        oldest.add_metric([fqrn], max(((now - at).total_seconds() for at in seen), default=0.0))
    yield from (held, oldest)


def of_publications(connection: Connection, now: datetime) -> Iterator[Metric]:
    """States, sizes, times and failures of what moved within the window."""
    newest = connection.scalar(select(func.max(publications.c.id))) or 0
    columns = ("repository", "state", "code", "files", "bytes", "bytes_uploaded", "seconds", "lease_held_s")
    query = select(*(publications.c[name] for name in columns)).where(
        publications.c.id > newest - NEWEST, publications.c.updated_at >= now - WINDOW
    )
    return publication_metrics(connection.execute(query).mappings())


def publication_metrics(rows: Iterable[RowMapping]) -> Iterator[Metric]:
    """The figures of these rows of the ledger."""
    states, failures, phases = Counter[Any](), Counter[Any](), Counter[Any]()
    sums = {name: Counter[str]() for name in ("files", "bytes", "bytes_uploaded", "lease_held_s")}
    longest = dict[str, float]()
    for row in rows:
        fqrn = row["repository"]
        states[fqrn, row["state"]] += 1
        if row["state"] == State.FAILED.value:
            failures[fqrn, row["code"] or "unknown"] += 1
        if row["state"] != State.PUBLISHED.value:
            continue
        for name, counter in sums.items():
            counter[fqrn] += row[name] or 0
        for phase, seconds in row["seconds"].items():
            phases[fqrn, phase] += seconds
        longest[fqrn] = max(longest.get(fqrn, 0.0), row["lease_held_s"] or 0.0)
    day = "in the last 24 hours"
    yield _filled("publications", f"Publications that moved {day}, by state", ("repository", "state"), states)
    yield _filled("publication_failures", f"Failed {day}, by code of the error", ("repository", "code"), failures)
    yield _filled("publication_files", f"Files of what was published {day}", ("repository",), sums["files"])
    yield _filled("publication_bytes", f"Bytes of what was published {day}", ("repository",), sums["bytes"])
    yield _filled(
        "publication_uploaded_bytes", f"Bytes that were sent to the store for it {day}", ("repository",),
        sums["bytes_uploaded"],
    )  # fmt: skip
    yield _filled("publication_seconds", f"Time of what was published {day}", ("repository", "phase"), phases)
    yield _filled("publication_lease_seconds", f"Time under leases {day}", ("repository",), sums["lease_held_s"])
    yield _filled("publication_lease_longest_seconds", f"Longest time under one lease {day}", ("repository",), longest)


def of_collections(connection: Connection) -> Iterator[Metric]:
    """Sums over all garbage collections, and what the last one left."""
    labels = ("repository",)
    done = _counter("collections", "Garbage collections that ended", *labels)
    deleted = _counter("collection_deleted_objects", "Objects that collections deleted", *labels)
    size = _counter("collection_deleted_bytes", "Stored bytes of deleted objects that were listed", *labels)
    totals = select(
        collections.c.repository,
        func.count(),
        func.sum(collections.c.deleted),
        func.sum(collections.c.bytes_deleted),
        func.max(collections.c.ended_at).label("last"),
    ).group_by(collections.c.repository)
    for fqrn, number, objects, in_bytes, _ in connection.execute(totals):
        for metric, value in ((done, number), (deleted, objects), (size, in_bytes)):
            metric.add_metric([fqrn], float(value))
    yield from (done, deleted, size)
    newest = totals.subquery()
    rows = connection.execute(
        select(collections).join(
            newest,
            (newest.c.repository == collections.c.repository) & (newest.c.last == collections.c.ended_at),
        )
    ).mappings()
    last = {row["repository"]: row for row in rows}
    ends = {fqrn: row["ended_at"].timestamp() for fqrn, row in last.items()}
    yield _filled("collection_last_timestamp_seconds", "End of the last collection", labels, ends)
    for column, name, text in _LAST:
        yield _filled(name, text, labels, {fqrn: row[column] for fqrn, row in last.items()})


def of_replicas(connection: Connection, now: datetime) -> Iterator[Metric]:
    """How far replicas are, by the last look at each."""
    labels = ("repository", "replica")
    lag = _gauge("replica_lag_seconds", "Seconds since the revision of the replica was superseded", *labels)
    trusted = _gauge("replica_trusted", "Whether readers of the replica get a revision of the repository", *labels)
    looked = _gauge("replica_look_age_seconds", "Seconds since the replica was checked", *labels)
    for row in connection.execute(select(replicas)).mappings():
        look = ReplicaLook.from_row(row)
        names = [look.repository, look.replica]
        lag.add_metric(names, 0.0 if look.behind_since is None else (now - look.behind_since).total_seconds())
        trusted.add_metric(names, float(look.state.trusted))
        looked.add_metric(names, (now - look.looked_at).total_seconds())
    yield from (lag, trusted, looked)


def of_trouble(connection: Connection, now: datetime) -> Iterator[Metric]:
    """What the ledger knows to be damaged, and messages that could not be sent."""
    lost = _gauge("damaged_objects", "Objects that a repository needs and its store lost", "repository")
    for fqrn, number in connection.execute(select(damaged.c.repository, func.count()).group_by(damaged.c.repository)):
        lost.add_metric([fqrn], number)
    unsent = select(func.count()).where(
        alerts.c.last_seen_at >= now - WINDOW, alerts.c.told_at.is_(None), alerts.c.fault.is_not(None)
    )
    failed = _gauge("notifications_failed", "Causes of the last 24 hours of which no message could be sent")
    failed.add_metric([], connection.scalar(unsent) or 0)
    yield from (lost, failed)


def of_transfers(connection: Connection, now: datetime) -> Iterator[Metric]:
    """Transfers that are not complete, by state; how long one of them is due; failures of the last day by class."""
    columns = stageout_transfers.c
    complete = (TransferState.CLEANED, TransferState.KEPT)
    states = [state.value for state in TransferState if state not in complete]
    counts = dict.fromkeys(states, 0)
    query = select(columns.state, func.count().label("files")).where(columns.state.in_(states))
    counts |= {row.state: row.files for row in connection.execute(query.group_by(columns.state))}
    yield _filled("transfers", "Transfers that are not complete, by state", ("state",), counts)
    ages = {state.value: max(0.0, (now - due).total_seconds()) for state, due in waiting_since(connection).items()}
    yield _filled("transfer_due_seconds", "For how long a transfer of the state is due at most", ("state",), ages)
    newest = select(columns.failure).where(columns.state == TransferState.FAILED.value, columns.due_at >= now - WINDOW)
    classes = Counter(row.failure or "unknown" for row in connection.execute(newest.limit(NEWEST)))
    yield _filled("transfer_failures", "Transfers that failed in the last 24 hours", ("failure",), classes)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{NAMESPACE}_{name}", text, labels=labels)


def _filled(name: str, text: str, labels: tuple[str, ...], values: Any) -> GaugeMetricFamily:
    """A gauge with these values, by their label or labels."""
    metric = _gauge(name, text, *labels)
    for key, value in sorted(values.items()):
        metric.add_metric([key] if isinstance(key, str) else list(key), float(value))
    return metric
