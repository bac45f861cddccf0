"""Celery's queues: tasks are put into one by what they need, and a worker serves those of its `--queues`."""

from __future__ import annotations

from enum import Enum

from include.settings.pools import BACKFILL, STAGEOUT

BROKER_URL = "AIRFLOW__CELERY__BROKER_URL"


class Queue(Enum):
    """The queues of a deployment with Celery; other executors have none."""

    DEFAULT = "default"
    PUBLISH = "publish"
    TRANSFER = "transfer"
    BENCHMARK = "benchmark"
    """For the host that measures: campaigns keep their files there."""
    GATEWAY_HOST = "gateway-host"
    """For a host that has the keys by which manifests are signed."""


_OF_DAGS = {
    "nightly_gc": Queue.GATEWAY_HOST,
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


def queue_of(dag_id: str, pool: str) -> Queue:
    """The queue of a task, by its DAG or else by its pool."""
    return _OF_DAGS.get(dag_id) or _OF_POOLS.get(pool, Queue.DEFAULT)
