"""`/health` and `/metrics`, for the web application that is mounted in Airflow's API server.

Neither is open: both name stores, gateways and repositories, and a look costs requests to them. `/health` takes a login
of Airflow or the token, so that a probe can send the token, too; `/metrics` takes the token alone, since Prometheus has
no login. The token is the password of the connection `metrics_connection`; without one `/metrics` answers 401 always.
For a probe without any credentials there is Airflow's own `/api/v2/monitor/health`.
"""

from __future__ import annotations

import asyncio
import hmac
import shutil
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from sqlalchemy import Connection, RowMapping, and_, func, select
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from include.aliencache.records import CacheRunKind, last_runs
from include.errors import NightshiftError
from include.federation.records import health_of, probes_since, reports_since
from include.federation.states import EvidenceSource
from include.ledger.engine import reading
from include.monitoring.checks import Health, Outlook, look_ahead, look_at_health
from include.monitoring.findings import Severity
from include.monitoring.watch import lease_key
from include.nightlies.records.tables import artifacts, builds, collections, damaged, links, publications, quality
from include.nightlies.rules.build import LinkState
from include.nightlies.rules.publication import State
from include.notify import alerts, first_seen
from include.replicas.states import ReplicaLook, replicas
from include.settings.errors import SettingsError
from include.site.site import Site
from include.stageout.states import TransferState
from include.stageout.status import waiting_since
from include.stageout.sums import SumFilter, group_sums, group_times, percentile_s
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
    """Yield which parts can be reached."""
    up = _gauge("part_up", "Whether a part of the deployment answers", "part", "name")
    for finding in health.report.findings:
        up.add_metric([finding.check, finding.subject], float(finding.severity is not Severity.ERROR))
    yield up


def of_outlook(ahead: Outlook, now: datetime) -> Iterator[Metric]:
    """Yield how long whitelists last, and which DAGs are paused of those that a site needs."""
    days = {fqrn: (expires - now) / timedelta(days=1) for fqrn, expires in ahead.whitelists.items()}
    yield _filled("whitelist_days", "Days until the whitelist that readers get ends", ("repository",), days)
    yield _filled("dag_paused", "1 for a DAG that the site needs and that is paused", ("dag",), ahead.paused)


def of_leases(connection: Connection, health: Health, now: datetime) -> Iterator[Metric]:
    """Yield how many leases are held, and for how long; the DAG `night_watch` notes when it saw each first."""
    held = _gauge("leases", "Leases that the gateway lists", "repository")
    oldest = _gauge("lease_oldest_seconds", "Seconds since night_watch first saw the oldest lease", "repository")
    for fqrn, leases in sorted(health.leases.items()):
        seen = first_seen(connection, map(lease_key, leases))
        held.add_metric([fqrn], len(leases))
        oldest.add_metric([fqrn], max(((now - at).total_seconds() for at in seen), default=0.0))
    yield from (held, oldest)


def of_nights(connection: Connection, slots: Iterable[str], now: datetime) -> Iterator[Metric]:
    """Yield of each slot how its newest build stands, how old the builds of its links are, and what quality says."""
    artifact, states, ages = artifacts.c, dict[tuple[str, str], int](), dict[str, float]()
    names = sorted(slots)
    for slot in names:
        newest = select(builds).where(builds.c.slot == slot).order_by(builds.c.build_date.desc(), builds.c.id.desc())
        build = connection.execute(newest.limit(1)).one_or_none()
        if build is None:
            continue
        last = select(func.max(publications.c.id)).join(artifacts, artifact.id == publications.c.artifact)
        ids = last.where(artifact.build == build.id).group_by(publications.c.artifact)
        counts = Counter(connection.scalars(select(publications.c.state).where(publications.c.id.in_(ids))))
        states |= {(slot, state): number for state, number in counts.items()}
        states[slot, "not begun"] = build.artifacts - counts.total()
        ages[slot] = (now.date() - build.build_date).total_seconds()
    yield _filled("night_artifacts", "Artifacts of the newest build of a slot", ("slot", "state"), states)
    yield _filled("night_build_age_seconds", "From the day of the newest build until today", ("slot",), ages)
    columns = links.c
    led = select(columns.slot, columns.path, func.max(columns.build_date).label("day")).where(
        columns.kind == "link", columns.state == LinkState.MOVED.value, columns.slot.in_(names)
    )
    rows = connection.execute(led.group_by(columns.slot, columns.path))
    of_links = {(row.slot, row.path): (now.date() - row.day).total_seconds() for row in rows}
    text = "From the day of the newest build that the link led to until today"
    yield _filled("link_build_age_seconds", text, ("slot", "path"), of_links)
    newest_day = select(quality.c.slot, quality.c.suite, func.max(quality.c.build_date).label("day")).where(
        quality.c.slot.in_(names)
    )
    day = newest_day.group_by(quality.c.slot, quality.c.suite).subquery()
    same = and_(day.c.slot == quality.c.slot, day.c.suite == quality.c.suite, day.c.day == quality.c.build_date)
    ids = select(func.max(quality.c.id)).join(day, same).group_by(quality.c.slot, quality.c.suite)
    rows = connection.execute(select(quality).where(quality.c.id.in_(ids)))
    verdicts = {(row.slot, row.suite, row.verdict): 1 for row in rows}
    yield _filled(
        "quality_verdict",
        "1 for the last verdict of a suite on the newest build",
        ("slot", "suite", "verdict"),
        verdicts,
    )


def of_disk(folder: Path) -> Iterator[Metric]:
    """Yield the free bytes of the file system with the state of the deployment."""
    free: dict[str, int] = {}
    with suppress(OSError):
        free[str(folder)] = shutil.disk_usage(folder).free
    yield _filled("disk_free_bytes", "Free bytes of the file system of `paths.var`", ("path",), free)


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
            newest, (newest.c.repository == collections.c.repository) & (newest.c.last == collections.c.ended_at)
        )
    ).mappings()
    last = {row["repository"]: row for row in rows}
    ends = {fqrn: row["ended_at"].timestamp() for fqrn, row in last.items()}
    yield _filled("collection_last_timestamp_seconds", "End of the last collection", labels, ends)
    for column, name, text in _LAST:
        yield _filled(name, text, labels, {fqrn: row[column] for fqrn, row in last.items()})


def of_replicas(connection: Connection, now: datetime) -> Iterator[Metric]:
    """Yield how far replicas are, by the last look at each."""
    labels = ("repository", "replica")
    lag = _gauge("replica_lag_seconds", "Seconds since the revision of the replica was superseded", *labels)
    trusted = _gauge("replica_trusted", "Whether readers of the replica get a revision of the repository", *labels)
    looked = _gauge("replica_look_age_seconds", "Seconds since the replica was checked", *labels)
    for row in connection.execute(select(replicas)).mappings():
        look = ReplicaLook.from_json(row)
        names = [look.repository, look.replica]
        lag.add_metric(names, 0.0 if look.behind_since is None else (now - look.behind_since).total_seconds())
        trusted.add_metric(names, float(look.state.trusted))
        looked.add_metric(names, (now - look.looked_at).total_seconds())
    yield from (lag, trusted, looked)


def of_trouble(connection: Connection, now: datetime) -> Iterator[Metric]:
    """Yield what the ledger knows to be damaged, and messages that could not be sent."""
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
    yield from _of_archived(connection, now)


def _of_archived(connection: Connection, now: datetime) -> Iterator[Metric]:
    """Sums of the transfers that were archived today and yesterday, and their times until registration, by link."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    chosen, link = SumFilter(midnight - timedelta(days=1), now), ("source", "destination")
    sums = group_sums(connection, (*link, "state"), chosen)
    names, text = (*link, "state"), "of transfers that ended today or yesterday (UTC) and are archived"
    yield _filled("transfers_archived", f"Number {text}", names, {key: row.files for key, row in sums.items()})
    yield _filled("transfer_archived_bytes", f"Bytes {text}", names, {key: row.bytes for key, row in sums.items()})
    yield _filled("transfer_retries", f"Retries {text}", names, {key: row.retries for key, row in sums.items()})
    seconds = {
        (*key, str(share)): percentile_s(files, share) or 0.0
        for key, files in group_times(connection, link, chosen).items()
        for share in (0.5, 0.95)
    }
    text = "Seconds from request to registration within which a share of them came, right within a tenth"
    yield _filled("transfer_registered_seconds", text, (*link, "quantile"), seconds)


def of_caches(connection: Connection, now: datetime) -> Iterator[Metric]:
    """Size and space of shared caches by the last look at each, and what the last trim and verification left."""
    labels = ("cache",)
    looks = last_runs(connection, CacheRunKind.LOOK)
    for key, name, text in _CACHE_FIGURES:
        yield _filled(name, text, labels, {cache: float(run.report[key]) for cache, run in looks.items()})
    ages = {cache: (now - run.ended_at).total_seconds() for cache, run in looks.items()}
    yield _filled("cache_look_age_seconds", "Seconds since the last look at the cache", labels, ages)
    damaged_now = {
        cache: float(run.report["damaged_count"]) for cache, run in last_runs(connection, CacheRunKind.VERIFY).items()
    }
    yield _filled("cache_damaged_objects", "Damaged objects that the last verification found", labels, damaged_now)


_CACHE_FIGURES = (
    ("objects", "cache_objects", "Objects of the cache"),
    ("bytes", "cache_bytes", "Bytes of the cache"),
    ("bytes_free", "cache_free_bytes", "Free bytes of the file system of the cache"),
    ("above", "cache_above_mark", "Whether a mark is passed, so that a trim is due"),
    ("unreadable", "cache_unreadable_objects", "Objects that the group of the clients cannot read"),
)


def of_sites(connection: Connection, sites: Iterable[str], now: datetime) -> Iterator[Metric]:
    """State of each site, its last probes, and what readers report of the last hour."""
    names = sorted(sites)
    states: dict[tuple[str, str], float] = {}
    for name, health in health_of(connection, names).items():
        current = "held" if health.held_by is not None else health.state.value
        states |= {(name, state): float(state == current) for state in ("ok", "degraded", "failed", "held")}
    yield _filled("site_state", "1 for the state in which a site is", ("site", "state"), states)
    probes: dict[tuple[str, str], float] = {}
    good: dict[tuple[str, str], float] = {}
    since = now - timedelta(hours=1)
    for _, result in probes_since(connection, since):
        if result.site in names:
            probes.setdefault((result.site, result.what), result.seconds)
            good.setdefault((result.site, result.what), float(result.good))
    yield _filled("site_probe_seconds", "Duration of the last probe", ("site", "probe"), probes)
    yield _filled("site_probe_good", "1 if the last probe succeeded", ("site", "probe"), good)
    readers = [
        result for result in reports_since(connection, since)
        if result.source is EvidenceSource.READER and result.site in names
    ]  # fmt: skip
    for key, text in _READER_FIGURES.items():
        values = {result.site: float(getattr(result, key)) for result in readers}
        yield _filled(f"site_readers_{key}", f"{text}, in the last hour", ("site",), values)


_READER_FIGURES = {
    "good": "Files that readers read", "failed": "Files that readers could not read here", "bytes": "Bytes read",
    "seconds": "Seconds that readers waited", "requests": "Requests of readers", "retries": "Retries of readers",
}  # fmt: skip


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


REMEMBERED_S, OUTLOOK_S = 10.0, 300.0
"""However many ask, the parts are checked and the ledger is read no more often; and whitelists and Airflow."""

T = TypeVar("T")


class CachedAnswer(Generic[T]):
    """Remembered result of a function; of several who ask at once one calls it, the others wait for its result."""

    def __init__(
        self, made: Callable[[], T], *, kept_s: float = REMEMBERED_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._made, self._kept_s, self._clock = made, kept_s, clock
        self._lock = threading.Lock()
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        with self._lock:
            if self._kept is None or self._clock() - self._kept[0] >= self._kept_s:
                value = self._made()
                self._kept = self._clock(), value
            return self._kept[1]


class SiteFigures(Collector):
    """Collects all figures of one moment. Without a ledger only the parts are reported."""

    def __init__(self, site: Site, health: Health, now: datetime, ahead: Outlook | None = None) -> None:
        self._site, self._health, self._now, self._ahead = site, health, now, ahead or Outlook()

    def collect(self) -> Iterator[Metric]:
        """The metrics. Raises LedgerError if the ledger was there a moment ago and is not now."""
        yield from of_health(self._health)
        yield from of_disk(self._site.settings.paths.var)
        yield from of_outlook(self._ahead, self._now)
        if any(
            finding.severity is Severity.ERROR for finding in self._health.report.findings if finding.check == "ledger"
        ):
            return
        with reading(self._site.ledger) as connection:
            yield from of_leases(connection, self._health, self._now)
            yield from of_nights(connection, self._site.settings.slots, self._now)
            yield from of_publications(connection, self._now)
            yield from of_collections(connection)
            yield from of_replicas(connection, self._now)
            yield from of_trouble(connection, self._now)
            yield from of_transfers(connection, self._now)
            yield from of_caches(connection, self._now)
            yield from of_sites(connection, self._site.settings.sites, self._now)


class Scrape:
    """Health and page of a deployment, both remembered for some seconds. Raises what opening the deployment raises."""

    def __init__(self, site: Callable[[], Site]) -> None:
        self._site = site
        self.health: CachedAnswer[Health] = CachedAnswer(lambda: look_at_health(site()))
        self.ahead: CachedAnswer[Outlook] = CachedAnswer(lambda: look_ahead(site()), kept_s=OUTLOOK_S)
        self.page: CachedAnswer[bytes] = CachedAnswer(self._page)

    def _page(self) -> bytes:
        registry = CollectorRegistry()
        with ThreadPoolExecutor(1) as beside:  # both may wait for their whole limit: one after the other is too late
            ahead = beside.submit(self.ahead)
            health = self.health()
            registry.register(SiteFigures(self._site(), health, datetime.now(UTC), ahead.result()))
        return generate_latest(registry)


_NOT_KEPT = {"Cache-Control": "no-store"}


def routes(site: Callable[[], Site], logged_in: Callable[[Request], Awaitable[bool]]) -> list[Route]:
    """The routes.

    Args:
        site: Gives the deployment; called in a thread.
        logged_in: Whether a request comes from a user of Airflow.
    """
    calls = _Calls(site, logged_in)
    return [Route("/health", calls.health), Route("/metrics", calls.metrics)]


class _Calls:
    def __init__(self, site: Callable[[], Site], logged_in: Callable[[Request], Awaitable[bool]]) -> None:
        self._site, self._logged_in = site, logged_in
        self._scrape = Scrape(site)

    async def health(self, request: Request) -> Response:
        """Tell whether every part answers: HTTP 200, or 503, with a finding for each."""
        if not await self._has_token(request) and not await self._logged_in(request):
            return _refused()
        try:
            report = (await asyncio.to_thread(self._scrape.health)).report
        except NightshiftError as error:
            return _failed(error)
        status = "ok" if report.ready else "failed"
        return JSONResponse({"status": status, **report.to_json()}, 200 if report.ready else 503, _NOT_KEPT)

    async def metrics(self, request: Request) -> Response:
        """The figures, in the text format of Prometheus."""
        if not await self._has_token(request):
            return _refused()
        try:
            page = await asyncio.to_thread(self._scrape.page)
        except NightshiftError as error:
            return _failed(error)
        return Response(page, headers={**_NOT_KEPT, "Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            return False
        token = await asyncio.to_thread(self._token)
        return token is not None and hmac.compare_digest(given.strip().encode("latin-1"), token.encode())

    def _token(self) -> str | None:
        try:
            site = self._site()
            name = site.settings.metrics_connection
            return site.secrets.get(name).password or None if name else None
        except SettingsError:
            return None


def _refused() -> Response:
    return JSONResponse({"detail": "Not authenticated"}, 401, {"WWW-Authenticate": "Bearer", **_NOT_KEPT})


def _failed(error: NightshiftError) -> Response:
    return JSONResponse({"status": "failed", "detail": str(error)}, 503, _NOT_KEPT)
