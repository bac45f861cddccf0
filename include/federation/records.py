"""Health of sites in the ledger: states, their history, holds by people, and results of probes, transfers, readers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
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
from sqlalchemy.exc import IntegrityError

from include.errors import ErrorRow, NightshiftError
from include.federation.states import (
    DAY,
    EvidenceSource,
    HealthRound,
    SiteHealth,
    SiteObservation,
    SiteState,
    judge_round,
    judge_site,
)
from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text, metadata

KEPT = timedelta(days=3)
"""For how long results stay; changes stay for ever, being few."""
LONGEST_ROUND = timedelta(hours=1)
"""Age above which results count no more, however long ago the last round was."""
MOST_SHOWN = 2000
MOST_REASON, MOST_NAME = 1000, 128
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
HOLD_REFUSED = ErrorRow(
    FederationError, "site-hold-refused", "give a reason with a hold; `nightshift site status` has what is held"
)
"""A hold without a reason, or a release of a site that is not held."""
NO_PROBE = ErrorRow(FederationError, "site-no-probe", "add `probe:` to the site (docs/federation.md)")
"""A site that cannot be probed."""
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
    Column("calm", Integer, nullable=False),
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
    Column("worse", Boolean, nullable=False),
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
site_rounds = Table(
    "site_rounds",
    metadata,
    # one row: the last round of all sites, the results up to which it counted, and since when our own network fails
    Column("id", ROW_ID, primary_key=True, autoincrement=False),
    Column("ended_at", UtcTime, nullable=False),
    Column("counted", ROW_ID, nullable=False),
    Column("own_network_since", UtcTime),
    Column("own_network_rounds", Integer, nullable=False),
    **TABLE_OPTIONS,
)
HELD, RELEASED = "held", "released"
_RANKS = [SiteState.OK, SiteState.DEGRADED, SiteState.FAILED]
_T = TypeVar("_T")


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


def results_of_readings(lines: Iterable[str], sites: Collection[str]) -> tuple[list[SiteObservation], int]:
    """Results of the lines that readers left in a log, and the number of damaged ones; other lines are left out."""
    results: list[SiteObservation] = []
    damaged = 0
    for line in lines:
        _, mark, text = line.partition(READ_LINE)
        if mark and '"file"' in text:
            try:
                results += results_of_reading(json.loads("{" + text), sites)
            except (FederationError, ValueError, RecursionError):
                damaged += 1
    return summed(results), damaged


def results_of_reading(report: Mapping[str, Any], sites: Collection[str]) -> list[SiteObservation]:
    """Results of the report of a reader on one file; sites that are not ours are left out.

    The site counts as good that the file was read from last, and each as failed that was given up before. Raises
    BAD_READING.
    """
    try:
        return [result for result in _results_of_reading(report) if result.site in sites]
    except (ValueError, TypeError, LookupError, AttributeError) as fault:
        raise BAD_READING("a reading", "it is no report of a reader") from fault


def summed(results: Iterable[SiteObservation]) -> list[SiteObservation]:
    """The results with those of one site, source and kind in one."""
    sums: dict[tuple[object, ...], SiteObservation] = {}
    for result in results:
        key = (result.site, result.source, result.what, result.kind)
        other = sums.get(key)
        added = {name: getattr(result, name) + getattr(other, name, 0) for name in (*_COUNTS, "seconds")}
        sums[key] = replace(result, **added)
    return list(sums.values())


def _results_of_reading(report: Mapping[str, Any]) -> Iterator[SiteObservation]:
    def count(name: str) -> float:
        value = report[name]
        if isinstance(value, bool) or not 0 <= value < 10**15:
            raise ValueError(name)
        return value  # type: ignore[no-any-return]

    ended = None if report["failed"] else str(report["sites"][-1])
    kinds: dict[str, tuple[int, str]] = {}
    for key, times in report["failures"].items():
        site, _, kind = str(key).rpartition(" ")
        if site != ended and kind in _OF_SITES:
            kinds[site] = max(kinds.get(site, (0, "")), (int(times), kind))
    for site, (_, kind) in kinds.items():
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
    probes: Mapping[str, Sequence[SiteObservation]],
    *,
    now: datetime,
    only: Collection[str] = (),
) -> HealthRound:
    """Judge sites by their probes and by what transfers and readers reported since the last round; record the states.

    Args:
        bind: The ledger.
        sites: All that are configured.
        probes: Results of the probes of this round.
        now: The end of the round.
        only: Judge these sites alone, by their probes alone; empty: all.
    """
    names = sorted(only or sites)
    results = [result for some in probes.values() for result in some]

    def work(connection: Connection) -> HealthRound:
        last = connection.execute(select(site_rounds).with_for_update()).first()
        before = _health(connection, names, lock=True)
        note_results(connection, results, now=now)
        upto = connection.scalar(select(func.max(site_results.c.id))) or 0
        reports = {} if only else _reports(connection, last.counted if last else 0, upto, now)
        judged = {name: judge_site([*probes.get(name, ()), *reports.get(name, ())]) for name in names}
        earlier = last.own_network_rounds if last else 0
        outcome = judge_round(before, judged, _worsened(connection, now - DAY), now, earlier)
        for name, health in outcome.health.items():
            if health != before[name]:
                _store(connection, health, now)
        changes = [
            _change(name, now, state.value, outcome.health[name].reason, before[name].state)
            for name, state in outcome.changed.items()
        ]
        if changes:
            connection.execute(insert(site_changes), changes)
        if only:
            return outcome
        connection.execute(delete(site_results).where(site_results.c.at < now - KEPT))
        since = (last.own_network_since if last and earlier else now) if outcome.own_network else None
        row = {
            "id": 1, "ended_at": now, "counted": upto, "own_network_since": since,
            "own_network_rounds": earlier + 1 if outcome.own_network else 0,
        }  # fmt: skip
        connection.execute(update(site_rounds).values(row) if last else insert(site_rounds).values(row))
        return replace(outcome, own_network_since=since)

    return _alone(bind, work)


def hold(bind: Bind, site: str, *, by: str, reason: str, now: datetime) -> SiteHealth:
    """Hold a site: nothing is sent to it until it is released, whatever its probes say. Raises HOLD_REFUSED."""
    if not reason.strip():
        raise HOLD_REFUSED(site, "a hold needs a reason")

    def work(connection: Connection) -> SiteHealth:
        before = _health(connection, [site], lock=True)[site]
        after = replace(before, held_by=by[:MOST_NAME], held_reason=reason.strip()[:MOST_REASON], held_at=now)
        _store(connection, after, now)
        row = _change(site, now, HELD, f"{by}: {reason.strip()}", after.state)
        connection.execute(insert(site_changes).values(row))
        return after

    return _alone(bind, work)


def release(bind: Bind, site: str, *, by: str, reason: str, now: datetime) -> SiteHealth:
    """End the hold of a site; of one that has failed, end that, too: the next rounds judge it afresh.

    Raises HOLD_REFUSED where there is nothing to end.
    """

    def work(connection: Connection) -> SiteHealth:
        current = _health(connection, [site], lock=True)[site]
        if current.obstacle is None:
            raise HOLD_REFUSED(site, "it is not held, and has not failed")
        after = replace(current, held_by=None, held_reason=None, held_at=None)
        rows = [_change(site, now, RELEASED, f"{by}: {reason.strip()}", current.state)]
        if current.held_by is None:
            why = f"released by {by}"
            after = replace(after, state=SiteState.DEGRADED, since=now, reason=why, good=0, calm=0, bad=0)
            rows.append(_change(site, now, SiteState.DEGRADED.value, why, current.state))
        _store(connection, after, now)
        connection.execute(insert(site_changes), rows)
        return after

    return _alone(bind, work)


def changes_of(bind: Bind, since: datetime) -> dict[str, list[SiteChange]]:
    """The history of each site, the newest first, and the last two changes of each before that time."""
    columns = site_changes.c
    listed = (columns.site, columns.at, columns.change, columns.reason)
    earlier = select(columns.site, func.max(columns.id)).where(columns.at < since)
    holds = columns.change.in_([HELD, RELEASED])
    changes: defaultdict[str, list[SiteChange]] = defaultdict(list)
    with reading(bind) as connection:
        recent = select(*listed).where(columns.at >= since).order_by(columns.id.desc()).limit(MOST_SHOWN)
        rows = list(connection.execute(recent))
        ids = [
            number for kind in (holds, ~holds)
            for _, number in connection.execute(earlier.where(kind).group_by(columns.site))
        ]  # fmt: skip
        rows += connection.execute(select(*listed).where(columns.id.in_(ids)).order_by(columns.id.desc()))
    for row in rows:
        changes[row.site].append(SiteChange(*row))
    return changes


def probes_since(bind: Bind, since: datetime, what: str | None = None) -> list[tuple[datetime, SiteObservation]]:
    """Results of probes with their times, the newest first; `what`: of this probe alone."""
    columns = site_results.c
    query = select(site_results).where(columns.at >= since, columns.source == EvidenceSource.PROBE.value)
    query = query if what is None else query.where(columns.what == what)
    with reading(bind) as connection:
        rows = connection.execute(query.order_by(columns.id.desc()).limit(20 * MOST_SHOWN)).mappings()
        return [(row["at"], _observation(row)) for row in rows]


def reports_since(bind: Bind, since: datetime) -> list[SiteObservation]:
    """Results of transfers and readers since then, summed by site and source."""
    columns = site_results.c
    same = (columns.site, columns.source)
    query = select(*same, *_sums()).where(columns.at >= since, columns.source != EvidenceSource.PROBE.value)
    with reading(bind) as connection:
        return [_observation(row) for row in connection.execute(query.group_by(*same)).mappings()]


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


def _change(site: str, now: datetime, change: str, reason: str, before: SiteState) -> dict[str, object]:
    states = {state.value: rank for rank, state in enumerate(_RANKS)}
    worse = states.get(change, 0) > _RANKS.index(before)
    return {"site": site, "at": now, "change": change, "reason": reason[:MOST_REASON], "worse": worse}


def _alone(bind: Bind, work: Callable[[Connection], _T]) -> _T:
    """The work as a transaction; where another process has made the same first row meanwhile, once more."""
    try:
        return writing(bind, work)
    except IntegrityError:
        return writing(bind, work)


def _reports(connection: Connection, counted: int, upto: int, now: datetime) -> dict[str, list[SiteObservation]]:
    """Results of transfers and readers of each site that no round has counted, summed."""
    columns = site_results.c
    same = (columns.site, columns.source, columns.what, columns.kind)
    new = (columns.id > counted, columns.id <= upto, columns.at > now - LONGEST_ROUND)
    query = select(*same, *_sums()).where(*new, columns.source != EvidenceSource.PROBE.value).group_by(*same)
    results: defaultdict[str, list[SiteObservation]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        results[row["site"]].append(_observation(row))
    return results


def _sums() -> list[ColumnElement[Any]]:
    return [func.sum(site_results.c[name]).label(name) for name in (*_COUNTS, "seconds")]


_COUNTS = ("good", "failed", "bytes", "requests", "retries")


def _observation(row: Mapping[Any, Any]) -> SiteObservation:
    counts = {name: int(row[name]) for name in _COUNTS}
    source, what, kind = EvidenceSource(row["source"]), row.get("what", ""), row.get("kind", "")
    return SiteObservation(row["site"], source, what, kind, **counts, seconds=float(row["seconds"]))


def _worsened(connection: Connection, since: datetime) -> dict[str, list[datetime]]:
    columns = site_changes.c
    query = select(columns.site, columns.at).where(columns.at > since, columns.worse.is_(True))
    times: defaultdict[str, list[datetime]] = defaultdict(list)
    for row in connection.execute(query):
        times[row.site].append(row.at)
    return times
