"""Health of sites in the ledger: states, their history, holds by people, and results of probes, transfers, readers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from include.errors import ErrorRow, NightshiftError
from include.federation.states import (
    DAY,
    EvidenceSource,
    HealthRound,
    SiteHealth,
    SiteJudgement,
    SiteObservation,
    SiteState,
    judge_round,
)
from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text, metadata

KEPT = timedelta(days=31)
"""For how long results and changes stay."""
MOST_SHOWN = 2000
MOST_REASON = 1000
READ_LINE = "read {"
"""Begins what a reader leaves in a log, after what the log puts before it."""


class FederationError(NightshiftError):
    """`site` is the site that it is about."""

    code = "federation-error"

    def __init__(self, site: str, what: str) -> None:
        self.site = site
        super().__init__(f"{site}: {what}." + (f" Hint: {self.hint}." if self.hint else ""))


SITE_FAILED = ErrorRow(
    FederationError, "site-failed", "see the page Sites; the site is used again when its probes succeed, or by release",
    retryable=True,
)  # fmt: skip
"""The site has failed, or is held: nothing is sent to it."""
HOLD_REFUSED = ErrorRow(FederationError, "site-hold-refused", "see the page Sites")
"""A hold without a reason, or a release of a site that is not held."""
BAD_READING = ErrorRow(
    FederationError, "site-bad-reading", "pass lines of the log of include.reading, as they were written"
)
"""A line that is no report of a reader."""

site_states = Table(
    "site_states",
    metadata,
    Column("site", exact(128), primary_key=True),
    Column("state", exact(16), nullable=False),
    Column("since", UtcTime, nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("checked_at", UtcTime),
    Column("good", Integer, nullable=False),
    Column("bad", Integer, nullable=False),
    Column("held_by", exact(128)),
    Column("held_reason", long_text()),
    Column("held_at", UtcTime),
    **TABLE_OPTIONS,
)
site_changes = Table(
    "site_changes",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("site", exact(128), nullable=False),
    Column("at", UtcTime, nullable=False),
    # a state, or `held` and `released`
    Column("change", exact(16), nullable=False),
    Column("reason", long_text(), nullable=False),
    Index(None, "site", "at"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)
site_results = Table(
    "site_results",
    metadata,
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("site", exact(128), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("source", exact(16), nullable=False),
    Column("what", exact(32), nullable=False),
    Column("kind", exact(32), nullable=False),
    Column("good", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("retries", BigInteger, nullable=False),
    Index(None, "at"),
    Index(None, "site", "at"),
    sqlite_autoincrement=True,
    **TABLE_OPTIONS,
)
HELD, RELEASED = "held", "released"


@dataclass(frozen=True, slots=True)
class SiteChange:
    """A row of the history: a new state, `held` or `released`."""

    site: str
    at: datetime
    change: str
    reason: str


def note_results(bind: Bind, results: Iterable[SiteObservation], *, now: datetime) -> None:
    """Record results; those with no count are left out."""
    rows = [
        asdict(result) | {"source": result.source.value, "at": now, "kind": result.kind[:32], "what": result.what[:32]}
        for result in results if result.good or result.failed
    ]  # fmt: skip
    if rows:
        writing(bind, lambda connection: connection.execute(insert(site_results), rows))


def results_of_readings(lines: Iterable[str], sites: Collection[str]) -> list[SiteObservation]:
    """Results of the lines that readers left in a log; other lines are left out.

    Raises BAD_READING for a line that begins as that of a reader and is not.
    """
    results: list[SiteObservation] = []
    for number, line in enumerate(lines, 1):
        _, mark, text = line.partition(READ_LINE)
        if mark:
            try:
                report = json.loads("{" + text)
            except (ValueError, RecursionError):
                report = {}
            results += results_of_reading(report, sites, f"line {number}")
    return results


def results_of_reading(
    report: Mapping[str, Any], sites: Collection[str], name: str = "a reading"
) -> list[SiteObservation]:
    """Results of the report of a reader on one file; sites that are not ours are left out.

    The site counts as good that the file was read from last, and each as failed that was given up before. Raises
    BAD_READING.
    """
    try:
        return [result for result in _results_of_reading(report) if result.site in sites]
    except (ValueError, TypeError, LookupError, AttributeError) as fault:
        raise BAD_READING(name, "it is no report of a reader") from fault


def _results_of_reading(report: Mapping[str, Any]) -> Iterator[SiteObservation]:
    def count(name: str) -> float:
        value = report[name]
        if isinstance(value, bool) or not 0 <= value < 10**15:
            raise ValueError(name)
        return value  # type: ignore[no-any-return]

    ended = None if report["failed"] else str(report["sites"][-1])
    for key in report["failures"]:
        site, _, kind = str(key).rpartition(" ")
        if site != ended and kind in _OF_SITES:
            yield SiteObservation(site, EvidenceSource.READER, kind=kind, failed=1)
    if ended is not None:
        yield SiteObservation(
            ended, EvidenceSource.READER, good=1, bytes=int(count("received")), seconds=count("waited_s"),
            requests=int(count("requests")), retries=int(count("retries")),
        )  # fmt: skip


_OF_SITES = frozenset({"unreachable", "silent", "cut", "busy", "distrusted", "wrong"})
"""Kinds of failures by which a site is judged; others are of a file or a credential."""


def health_of(bind: Bind, sites: Iterable[str]) -> dict[str, SiteHealth]:
    """The health of each of the sites; one that no round has judged is ok."""
    with reading(bind) as connection:
        return _health(connection, sites)


def obstacles(bind: Bind) -> dict[str, str]:
    """Sites to which nothing is sent, each with the reason."""
    columns = site_states.c
    with reading(bind) as connection:
        query = select(site_states).where((columns.state == SiteState.FAILED.value) | columns.held_by.is_not(None))
        judged = [_of_row(row) for row in connection.execute(query).mappings()]
    return {health.site: health.obstacle for health in judged if health.obstacle is not None}


def conclude_round(
    bind: Bind,
    sites: Iterable[str],
    judge: Callable[[Mapping[str, Sequence[SiteObservation]]], Mapping[str, SiteJudgement]],
    *,
    since: datetime,
    now: datetime,
) -> HealthRound:
    """Judge all sites by the results since the last round, and record their states.

    Args:
        bind: The ledger.
        sites: All that are configured.
        judge: Gives the judgement of each site by its results.
        since: Results before that are not counted.
        now: The end of the round.
    """
    names = sorted(sites)

    def work(connection: Connection) -> HealthRound:
        before = _health(connection, names, lock=True)
        round_ = judge_round(before, judge(_results(connection, since)), _worsened(connection, now - DAY), now)
        for name, health in round_.health.items():
            if health != before[name]:
                _store(connection, health, now)
        rows = [
            {"site": name, "at": now, "change": state.value, "reason": round_.health[name].reason[:MOST_REASON]}
            for name, state in round_.changed.items()
        ]
        if rows:
            connection.execute(insert(site_changes), rows)
        for table in (site_results, site_changes):
            connection.execute(delete(table).where(table.c.at < now - KEPT))
        return round_

    return writing(bind, work)


def hold(bind: Bind, site: str, *, by: str, reason: str, now: datetime) -> SiteHealth:
    """Hold a site: nothing is sent to it until it is released, whatever its probes say. Raises HOLD_REFUSED."""
    if not reason.strip():
        raise HOLD_REFUSED(site, "a hold needs a reason")
    held = {"held_by": by, "held_reason": reason.strip()[:MOST_REASON], "held_at": now}
    return _held(bind, site, held, HELD, f"{by}: {reason.strip()}", now)


def release(bind: Bind, site: str, *, by: str, reason: str, now: datetime) -> SiteHealth:
    """End the hold of a site; of one that has failed, end that, too: the next rounds judge it afresh.

    Raises HOLD_REFUSED where there is nothing to end.
    """
    current = health_of(bind, [site])[site]
    if current.obstacle is None:
        raise HOLD_REFUSED(site, "it is not held, and has not failed")
    free: dict[str, object] = {"held_by": None, "held_reason": None, "held_at": None}
    if current.held_by is None:
        free |= {"state": SiteState.DEGRADED.value, "since": now, "reason": f"released by {by}", "good": 0, "bad": 0}
    return _held(bind, site, free, RELEASED, f"{by}: {reason.strip()}", now)


def changes_of(bind: Bind, since: datetime) -> dict[str, list[SiteChange]]:
    """The history of each site, the newest first."""
    columns = site_changes.c
    query = select(columns.site, columns.at, columns.change, columns.reason).where(columns.at >= since)
    changes: defaultdict[str, list[SiteChange]] = defaultdict(list)
    with reading(bind) as connection:
        for row in connection.execute(query.order_by(columns.id.desc()).limit(MOST_SHOWN)):
            changes[row.site].append(SiteChange(*row))
    return changes


def results_since(bind: Bind, since: datetime) -> dict[str, list[tuple[datetime, SiteObservation]]]:
    """Results of each site with their times, the newest first."""
    columns = site_results.c
    query = select(site_results).where(columns.at >= since).order_by(columns.id.desc()).limit(20 * MOST_SHOWN)
    results: defaultdict[str, list[tuple[datetime, SiteObservation]]] = defaultdict(list)
    with reading(bind) as connection:
        for row in connection.execute(query).mappings():
            results[row["site"]].append((row["at"], _observation(dict(row))))
    return results


def last_round(bind: Bind) -> datetime | None:
    """The end of the last round."""
    with reading(bind) as connection:
        ended: datetime | None = connection.scalar(select(func.max(site_states.c.checked_at)))
        return ended


def _health(connection: Connection, sites: Iterable[str], *, lock: bool = False) -> dict[str, SiteHealth]:
    query = select(site_states).with_for_update() if lock else select(site_states)
    rows = {row["site"]: _of_row(row) for row in connection.execute(query).mappings()}
    return {name: rows.get(name, SiteHealth(name)) for name in sites}


def _of_row(row: Mapping[Any, Any]) -> SiteHealth:
    return SiteHealth(**{**row, "state": SiteState(row["state"])})


def _store(connection: Connection, health: SiteHealth, now: datetime) -> None:
    values = asdict(health) | {"state": health.state.value, "since": health.since or now}
    values["reason"] = health.reason[:MOST_REASON]
    changed = connection.execute(update(site_states).where(site_states.c.site == health.site).values(values))
    if not changed.rowcount:
        connection.execute(insert(site_states).values(values))


def _held(bind: Bind, site: str, values: Mapping[str, object], change: str, reason: str, now: datetime) -> SiteHealth:
    def work(connection: Connection) -> SiteHealth:
        before = _health(connection, [site], lock=True)[site]
        after = _of_row({**asdict(before), "state": before.state.value, **values})
        _store(connection, after, now)
        row = {"site": site, "at": now, "change": change, "reason": reason[:MOST_REASON]}
        connection.execute(insert(site_changes).values(row))
        return after

    return writing(bind, work)


def _results(connection: Connection, since: datetime) -> dict[str, list[SiteObservation]]:
    """Results of each site since then, summed."""
    columns = site_results.c
    same = (columns.site, columns.source, columns.what, columns.kind)
    summed = [func.sum(columns[name]).label(name) for name in ("good", "failed")]
    query = select(*same, *summed).where(columns.at > since).group_by(*same)
    results: defaultdict[str, list[SiteObservation]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        results[row["site"]].append(_observation(dict(row)))
    return results


def _observation(row: dict[str, object]) -> SiteObservation:
    counts = {name: int(str(row[name])) for name in ("good", "failed", "bytes", "requests", "retries") if name in row}
    seconds = float(str(row.get("seconds", 0.0)))
    source = EvidenceSource(row["source"])
    return SiteObservation(str(row["site"]), source, str(row["what"]), str(row["kind"]), **counts, seconds=seconds)


def _worsened(connection: Connection, since: datetime) -> dict[str, list[datetime]]:
    columns = site_changes.c
    worse = [SiteState.DEGRADED.value, SiteState.FAILED.value]
    query = select(columns.site, columns.at).where(columns.at > since, columns.change.in_(worse))
    times: defaultdict[str, list[datetime]] = defaultdict(list)
    for row in connection.execute(query):
        times[row.site].append(row.at)
    return times
