"""Pools and queues of Airflow as the settings size them, and the time of the checks before a night."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    # not at run time: each of Airflow's processes imports the names of pools
    from include.settings.model import SiteSettings, Slot

NIGHTLY = frozenset({"prepare", "publish", "control", "collect"})
"""The pools that the DAGs name."""
BACKFILL = "backfill"
"""The pool of a backfill's tasks, whichever pool their DAG names; see hooks/shares.py."""
STAGEOUT = "stageout"
DATA_SETS = 16
"""Tasks with transfers of their own that one FTS server has at the same time."""
CAMPAIGN = timedelta(hours=25)
"""Time limit of the steps of a storage benchmark: the longest task whose limit is not in the configuration."""
BROKER_URL = "AIRFLOW__CELERY__BROKER_URL"
_MARGIN = timedelta(hours=1)  # to start the task, to end it after its time-out, and to acknowledge it
FALLBACK = ("0 22 * * *", "UTC")
"""For slots whose schedules name no hour."""
_AHEAD = timedelta(days=366)
_STEP = timedelta(minutes=30)  # clocks change at full and half hours


class Queue(Enum):
    """The queues of a deployment with Celery; other executors have none."""

    DEFAULT = "default"
    PUBLISH = "publish"
    TRANSFER = "transfer"
    BENCHMARK = "benchmark"
    """For the host that measures: campaigns keep their files there."""
    GATEWAY_HOST = "gateway-host"
    """For a host that has the keys that sign manifests, and those of the gateway, collections and administrators."""


_OF_DAGS = {
    "backup": Queue.GATEWAY_HOST,
    "federation_benchmark": Queue.BENCHMARK,
    "intervene": Queue.GATEWAY_HOST,  # a freeze is written with the gateway's key
    "leases": Queue.GATEWAY_HOST,  # ended with the administrator's key
    "nightly_gc": Queue.GATEWAY_HOST,
    "preflight": Queue.GATEWAY_HOST,  # it tries all keys
    "repository_care": Queue.GATEWAY_HOST,
    "rollback": Queue.GATEWAY_HOST,
    "storage_benchmark": Queue.BENCHMARK,
}
_OF_POOLS = {
    "prepare": Queue.PUBLISH,
    "publish": Queue.PUBLISH,
    BACKFILL: Queue.PUBLISH,
    "collect": Queue.GATEWAY_HOST,
    "benchmark": Queue.BENCHMARK,
    STAGEOUT: Queue.TRANSFER,
}


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A pool as Airflow's REST API and `airflow pools import` describe it."""

    name: str
    slots: int
    description: str
    include_deferred: bool = False


def pools(settings: SiteSettings, *, cores: int | None = None) -> tuple[PoolSettings, ...]:
    """The pools of a site: preparing is bound by cores, publishing by cores and by the gateways.

    Args:
        cores: Of all workers together; those of this machine if not given.
    """
    cores = cores or os.cpu_count() or 1
    stageout = _transfers(settings) if settings.sites else ()
    return (
        PoolSettings(
            "prepare", max(3, cores), "Reading, compressing and uploading artifacts: bound by the cores of a worker."
        ),
        PoolSettings(
            # most of a short task's time is its worker's, and the gateway commits together what waits for it
            "publish",
            max(2 + 2 * max(1, len(settings.repositories)), cores),
            "Short leases and commits: bound by the gateways, and by the cores of a worker.",
        ),
        PoolSettings("control", 16, "Looking into indices and the ledger: light."),
        PoolSettings(
            # in the pool `publish` removals would wait for all publications of a night
            "collect",
            1,
            "Garbage collections and their removals: one at a time; each takes what its store can do.",
        ),
        PoolSettings("benchmark", 1, "Storage benchmarks: one at a time, since each would measure the other."),
        PoolSettings(BACKFILL, max(1, cores // 2), "All that backfills do: what they never take from the nights."),
        *stageout,
    )


def consumer_timeout(settings: SiteSettings) -> timedelta:
    """RabbitMQ's `consumer_timeout`: a Celery worker acknowledges a task only when it has ended.

    A task that takes longer is handed to a second worker.
    """
    return max(CAMPAIGN, timedelta(hours=settings.stageout.read_back_hours)) + _MARGIN


def queue_of(dag_id: str, pool: str) -> Queue:
    """The queue of a task, by its DAG or else by its pool."""
    return _OF_DAGS.get(dag_id) or _OF_POOLS.get(pool, Queue.DEFAULT)


def _transfers(settings: SiteSettings) -> tuple[PoolSettings, ...]:
    """The passes of stage-out; and, by FTS server, the tasks that wait for transfers of their own."""
    # one more: a message to users, or a census of an hour, takes no slot of a pass
    slots = 4 * settings.stageout.shards + 1
    passes = "Passes of stage-out, one of each kind and shard at a time, and one other task; after tasks of nights."
    servers = (
        PoolSettings(name, DATA_SETS, "Tasks whose files this FTS server transfers, waiting ones included.", True)
        for name in settings.stageout.fts
    )
    return (PoolSettings(STAGEOUT, slots, passes), *servers)


def to_import(pools: Iterable[PoolSettings]) -> dict[str, dict[str, str | int | bool]]:
    """The document for `airflow pools import`: each pool by its name."""
    documents = (asdict(pool) for pool in pools)
    return {str(document.pop("name")): document for document in documents}


def left_out(schedule: str, timezone: str, now: datetime) -> datetime | None:
    """The first local time within a year at which a run is due and that does not exist; else None."""
    from croniter import croniter  # type: ignore[import-untyped]

    zone = ZoneInfo(timezone)
    moment = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    end, before = moment + _AHEAD, _offset(moment, zone)
    while moment < end:
        moment += _STEP
        after = _offset(moment, zone)
        if after > before:
            first = (moment + before).replace(tzinfo=None)
            due: datetime = croniter(schedule, first - timedelta(seconds=1)).get_next(datetime)
            if due < first + (after - before):
                return due
        before = after
    return None


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def hour_before_first(slots: Iterable[Slot]) -> tuple[str, str] | None:
    """A cron expression and its time zone; None if no slot has a schedule.

    Days of the schedule do not count: looking is cheap, and a night by hand is as glad of it.
    """
    scheduled = [(slot.schedule, slot.timezone) for slot in slots if slot.schedule]
    if not scheduled:
        return None
    times = []
    for schedule, zone in scheduled:
        minute, hour = schedule.split()[:2]
        if minute.isdigit() and hour.isdigit():
            # a night begins in the evening or after midnight: noon divides one from the next
            times.append(((int(hour) - 12) % 24, int(minute), int(hour), zone))
    if not times:
        return FALLBACK
    _, minute_of_hour, hour_of_day, zone = min(times)
    return f"{minute_of_hour} {(hour_of_day - 1) % 24} * * *", zone
