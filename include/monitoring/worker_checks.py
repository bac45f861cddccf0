"""Celery's workers before a night: each queue has one, their clocks agree, and the broker waits for their tasks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

from include.monitoring.findings import Finding, Severity
from include.monitoring.store_checks import TIMEOUT_S, judged_skew
from include.settings.model import SiteSettings
from include.settings.pools import BROKER_URL, Queue, consumer_timeout

RABBITMQ = ("amqp", "pyamqp")
HEARTBEATS_S = 3.0


def look_at_workers(settings: SiteSettings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Ask the broker of the environment who serves which queue, and compare how long it waits for a task."""
    url = environ.get(BROKER_URL)
    if not url:
        cure = f"Set {BROKER_URL} here, too."
        yield Finding("workers", "", Severity.WARNING, "not checked: the broker is not known here", cure)
        return
    served = consumers(url, [queue.value for queue in Queue])
    yield from judged_queues(served)
    yield from judged_clocks(clocks(url))
    if url.partition(":")[0].removesuffix("s") in RABBITMQ:
        yield judged_timeout(settings)


def judged_queues(served: Mapping[str, int]) -> Iterator[Finding]:
    """Queues without a worker; their tasks would not start."""
    for name, workers in served.items():
        if workers:
            yield Finding("queue", name, Severity.OK, f"{workers} workers")
        else:
            cure = f"Start a worker: airflow celery worker --queues {name}"
            yield Finding("queue", name, Severity.ERROR, "no worker serves it: its tasks would never start", cure)


def judged_clocks(ahead_s: Mapping[str, float]) -> Iterator[Finding]:
    """How far the clocks of workers are off ours: leases and schedules compare times of several machines."""
    for name, seconds in sorted(ahead_s.items()):
        yield judged_skew(f"worker {name}", seconds)


def judged_timeout(settings: SiteSettings) -> Finding:
    """RabbitMQ hands a task that takes longer to a second worker; it does not tell its clients after how long."""
    needed = consumer_timeout(settings)
    if settings.consumer_timeout_hours is None:
        text = "not known; 30 minutes by default"
    else:
        given = timedelta(hours=settings.consumer_timeout_hours)
        if given >= needed:
            return Finding("consumer_timeout", "rabbitmq", Severity.OK, f"{given / timedelta(hours=1):g} h")
        text = f"{given / timedelta(hours=1):g} h: longer tasks would be handed to a second worker"
    milliseconds = needed // timedelta(milliseconds=1)
    cure = (
        f"Set `consumer_timeout = {milliseconds}` in rabbitmq.conf,"
        f" and `consumer_timeout_hours: {needed / timedelta(hours=1):g}` in the configuration."
    )
    return Finding("consumer_timeout", "rabbitmq", Severity.ERROR, text, cure)


def consumers(url: str, queues: Iterable[str]) -> dict[str, int]:
    """How many workers take from each queue; none from one that is not there. Raises OSError: no broker answers."""
    found = {}
    with _connected(url) as (_, connection):
        for name in queues:
            try:
                # a channel does not outlive a question for a queue that is not there
                found[name] = connection.channel().queue_declare(name, passive=True).consumer_count
            except connection.channel_errors:
                found[name] = 0
    return found


def clocks(url: str) -> dict[str, float]:
    """How many seconds the clock of each worker is ahead of ours, by a heartbeat that it is asked for.

    A worker that does not answer within seconds is left out: its queues are judged apart. Raises OSError: no broker
    answers.
    """
    ahead_s: dict[str, float] = {}

    def heard(event: Mapping[str, Any]) -> None:
        ahead_s[event["hostname"]] = event["timestamp"] - event["local_received"]

    with _connected(url) as (app, connection):
        receiver = app.events.Receiver(connection, handlers={"worker-heartbeat": heard})
        # both times count from 1970: a time zone is no difference
        receiver.event_from_message = partial(receiver.event_from_message, localize=False)
        deadline = time.monotonic() + HEARTBEATS_S
        with suppress(TimeoutError):  # a second without an event
            for _ in receiver.itercapture(timeout=1):
                if time.monotonic() > deadline:
                    break
    return ahead_s


@contextmanager
def _connected(url: str) -> Iterator[tuple[Any, Any]]:
    """Celery's application and its connection to the broker."""
    from celery import Celery

    app = Celery(broker=url)
    with app.connection_for_read(connect_timeout=TIMEOUT_S) as connection:
        try:
            connection.connect()
            yield app, connection
        except (*connection.connection_errors, *connection.channel_errors) as error:
            raise OSError(f"the broker does not answer: {error}") from error
