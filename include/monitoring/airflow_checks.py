"""Checks of what Airflow has and needs: connections, schedules, pools and how their slots bound a night, paused DAGs.

A task whose pool is missing waits for ever, without a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from include.airflow_api import site_api
from include.dag_runs import UNPAUSE
from include.monitoring.findings import Finding, Severity
from include.monitoring.store_checks import TIMEOUT_S, judged_skew
from include.nightlies.records.builds import preceding_build
from include.nightlies.records.publications import publications_of_build
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.passes import by_artifact
from include.nightlies.rules.publication import State
from include.notify import service_of
from include.settings.errors import MissingConnection, SettingsError
from include.settings.model import SiteSettings
from include.settings.scheduling import BROKER_URL, PoolSettings, Queue, consumer_timeout, left_out, pools as pools_of
from include.settings.secrets import ConnectionSecrets, Secrets, base_url
from include.site.site import Site

Asked = Callable[[str], bool | None]
"""Answer whether Airflow has a connection of this id; None where it cannot be asked."""
CANNOT_ASK = "not defined here, and Airflow cannot be asked whether it has it"
IN_AIRFLOW = "defined in Airflow; commands here cannot use it"
RABBITMQ = ("amqp", "pyamqp")
HEARTBEATS_S = 3.0


def airflow_has_all(_: str) -> bool:
    """For callers whose secrets come from Airflow: what they miss, it does not have."""
    return False


def named(settings: SiteSettings, fqrns: Iterable[str], store_checks: Iterable[str]) -> Mapping[str, str]:
    """Every connection that is needed, with what for."""
    found: dict[str, list[str]] = {}

    def need(name: str | None, what: str) -> None:
        if name:
            found.setdefault(name, []).append(what)

    for name in store_checks:
        need(settings.store(name).connection, f"store {name}")
        need(settings.store(name).gateway_connection, f"gateways to store {name}")
        need(settings.store(name).collector_connection, f"collections in store {name}")
    for fqrn in fqrns:
        repository = settings.repository(fqrn)
        need(repository.gateway, f"gateway of {fqrn}")
        need(repository.gateway_admin, f"administrator of the gateway of {fqrn}")
        need(repository.server.connection if repository.server else None, f"key of the node of {fqrn}")
        for replica in repository.replicas:
            need(replica.node.connection if replica.node else None, f"key of replica {replica.name} of {fqrn}")
    need(settings.ledger_connection, "ledger")
    need(settings.backup.connection, "passphrase of backups")
    need(settings.airflow_connection, "Airflow's API")
    need(settings.metrics_connection, "token of Prometheus")
    need(settings.stageout.catalogue.connection if settings.sites else None, "catalogue in Rucio")
    for name, what in _notifying(settings).items():
        need(name, what)
    return {name: ", ".join(what) for name, what in sorted(found.items())}


def look_at_connections(
    settings: SiteSettings,
    secrets: Secrets,
    names: Mapping[str, str],
    asked: Asked = airflow_has_all,
    *,
    logins: bool = False,
) -> Iterator[Finding]:
    """Tell whether each is defined, with `logins` also as whom it logs in where.

    `asked`: whether Airflow has one that is not defined in this environment.
    """
    notifying = _notifying(settings)
    for name, what in names.items():
        try:
            found = secrets.get(name)
            if settings.notify.apprise is not None and name in settings.notify.apprise.connections:
                service_of(found)
            login = f"{_login(settings, found)}, " if logins else ""
        except MissingConnection as error:
            yield _missing(name, what, error, asked(name), needed_here=name not in notifying)
        except SettingsError as error:
            yield Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))
        else:
            yield Finding("connection", name, Severity.OK, f"{login}for {what}")


def _missing(name: str, what: str, error: MissingConnection, there: bool | None, *, needed_here: bool) -> Finding:
    if there and not needed_here:
        return Finding("connection", name, Severity.OK, f"for {what}: defined in Airflow")
    if there:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {IN_AIRFLOW}", str(error))
    if there is None and not needed_here:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {CANNOT_ASK}", str(error))
    return Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))


def _notifying(settings: SiteSettings) -> Mapping[str, str]:
    """Return what only Airflow's tasks use."""
    services = settings.notify.apprise
    return dict.fromkeys(services.connections if services else (), "apprise")


def _login(settings: SiteSettings, connection: ConnectionSecrets) -> str:
    login = f"login {connection.login}" if connection.login else "no login"
    gateways = {repository.gateway for repository in settings.repositories.values()}
    return f"{login} at {base_url(connection, port=settings.gateway.port)}" if connection.id in gateways else login


def look_at_schedules(settings: SiteSettings) -> Iterator[Finding]:
    """Yield the slots whose night has no beginning on the day on which the clock is put forward."""
    for slot in settings.slots.values():
        if slot.schedule and (missing := left_out(slot.schedule, slot.timezone, datetime.now(UTC))):
            seen = f"{slot.schedule} in {slot.timezone}"
            note = (
                f"{missing:%Y-%m-%d %H:%M} does not exist there, since the clock is put forward over it; "
                "that night begins as much later. Choose a time of day outside of the change."
            )
            yield Finding("schedule", slot.name, Severity.WARNING, seen, note)


def look_at_workers(settings: SiteSettings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Ask the broker of the environment who serves which queue, and compare how long it waits for a task."""
    url = environ.get(BROKER_URL)
    if not url:
        cure = f"Set {BROKER_URL} here, too."
        yield Finding("workers", "", Severity.WARNING, "not checked: the broker is not known here", cure)
        return
    queues = {queue.value for queue in Queue} | {cache.queue for cache in settings.caches.values()}
    served = consumers(url, sorted(queues))
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
    """Yield how far the clocks of workers are off ours: leases and schedules compare times of several machines."""
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
    """Return how many workers take from each queue; none from one that is not there. Raises OSError: no broker
    answers."""
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
    """Return how many seconds the clock of each worker is ahead of ours, by a heartbeat that it is asked for.

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


def needed(settings: SiteSettings, slots: Iterable[str] | None = None) -> dict[str, str]:
    """The DAGs that have to be unpaused, with what does not happen while they are not; of these slots only."""
    found = {}
    for name in sorted(settings.slots if slots is None else slots):
        slot = settings.slot(name)
        if slot.schedule:
            found[f"nightly_install_{name}"] = f"no night of slot {name} begins"
        if by_artifact(slot):
            found[f"nightly_install_{name}"] = f"no night of slot {name} begins"
            found[f"index_events_{name}"] = f"no artifact begins a night of slot {name}"
    if settings.slots:
        found["night_watch"] = "no alert is sent for a night that is late or did not start"
        found["preflight"] = "no check before a night whether it could run"
    if settings.collection_schedule and any(
        repository.garbage_collectable for repository in settings.repositories.values()
    ):
        found["nightly_gc"] = "no build expires and no garbage is collected"
    if settings.backup.store is not None and settings.backup.schedule:
        found["backup"] = "no backup is made"
    if settings.repositories:
        found["leases"] = "leases of dead tasks are not ended"
        found["repository_care"] = "no alert is sent for damage or for a whitelist that ends"
    if settings.sites:
        found["stage_out_submit"] = "no file is handed to FTS"
        found["stage_out_monitor"] = "no transfer is verified or tried again"
        found["stage_out_read_back"] = "no large copy of a site without checksums is verified"
        found["stage_out_finish"] = "no file is registered and no source is removed"
        found["stage_out_census"] = "nothing finds what is stuck, and runs of every minute stay"
        found["stage_out_analytics"] = "no figures of transfers are kept"
    return found


def started_by_hand(settings: SiteSettings) -> dict[str, str]:
    """The DAGs that people and pages start, with what does not happen while they are paused."""
    found = {
        f"nightly_install_{name}": f"a run of slot {name} that is started by hand stays queued"
        for name, slot in settings.slots.items()
        if not slot.schedule and not by_artifact(slot)
    }
    if settings.slots:
        found["nightly_install"] = "a night that is installed again by the page stays queued"
        found["undo_build"] = "a build that is undone by the page stays"
    if settings.repositories:
        found["intervene"] = "a freeze, thaw or redo by the page changes nothing"
        found["publication"] = "what is published by hand stays queued"
        found["rollback"] = "a rollback that is started stays queued"
    return found


def look_at_paused(settings: SiteSettings, secrets: Secrets, slots: Iterable[str] | None = None) -> Iterator[Finding]:
    """Compare what has to be unpaused with Airflow. Where it cannot be asked, the check of pools reports that."""
    if settings.airflow_connection is None:
        return
    paused = site_api(settings, secrets, timeout_s=TIMEOUT_S).paused()
    by_hand = {dag_id: what for dag_id, what in started_by_hand(settings).items() if paused.get(dag_id)}
    yield from judged_paused(needed(settings, slots) | by_hand, paused)


def judged_paused(wanted: Mapping[str, str], paused: Mapping[str, bool]) -> Iterator[Finding]:
    """Yield what is paused. A DAG that Airflow has not read yet is paused once it has."""
    for dag_id, what in wanted.items():
        if paused.get(dag_id, True):
            yield Finding("dag", dag_id, Severity.WARNING, f"is paused: {what}", f"Run: {UNPAUSE} {dag_id}")
        else:
            yield Finding("dag", dag_id, Severity.OK, "is not paused")


PREPARING = "prepare"
"""The phase of a publication that takes a slot of the pool of that name; all others take one of `publish`."""
BUILDS = 14
"""Builds of a slot that are read: one that has only begun, or was unchanged, shows no bound."""
CURE = (
    "Run `nightshift settings pools --json > pools.json` and import the file, as `airflow pools import pools.json` "
    "or, in a lab, `nightshift lab airflow pools import pools.json`"
)


def look_at_pools(settings: SiteSettings, secrets: Secrets) -> Iterator[Finding]:
    """Compare the pools of the site with those that Airflow has."""
    if settings.airflow_connection is None:
        cure = "Name a connection to Airflow's API in `airflow_connection`."
        yield Finding("pools", "", Severity.WARNING, "not checked: no access to Airflow is configured", cure)
        return
    yield from judged_pools(pools_of(settings), site_api(settings, secrets, timeout_s=TIMEOUT_S).pool_slots())


def judged_pools(wanted: Iterable[PoolSettings], there: Mapping[str, int]) -> Iterator[Finding]:
    """Yield what is missing, and what is smaller than it should be; larger is the operator's affair."""
    for pool in wanted:
        slots = there.get(pool.name)
        if slots is None:
            yield Finding("pool", pool.name, Severity.ERROR, "missing: its tasks would never start", CURE)
        elif slots < 1:
            yield Finding("pool", pool.name, Severity.ERROR, "has no slots: its tasks would never start", CURE)
        elif slots < pool.slots:
            yield Finding("pool", pool.name, Severity.WARNING, f"has {slots} slots, {pool.slots} are meant", CURE)
        else:
            yield Finding("pool", pool.name, Severity.OK, f"{slots} slots")


def look_at_bounds(site: Site, slot: str) -> Iterator[Finding]:
    """Say what bounds the nights of a slot, by the newest of its builds of which something was published."""
    slots = {pool.name: pool.slots for pool in pools_of(site.settings)}
    before = BuildKey(date.max, "")
    for _ in range(BUILDS):
        build = preceding_build(site.ledger, slot, before)
        if build is None:
            break
        done = publications_of_build(site.ledger, build.id)
        work = [
            publication.seconds for publication in done if publication.state is State.PUBLISHED and publication.seconds
        ]
        if work:
            shown = ", ".join(f"{name} {seconds / 60:.1f} min" for name, seconds in night_bounds(work, slots))
            yield Finding("bounds", slot, Severity.OK, f"{len(work)} artifacts of {build.key} take at least: {shown}")
            return
        before = build.key
    yield Finding("bounds", slot, Severity.OK, f"not known: nothing of its last {BUILDS} builds was published")


def night_bounds(work: Sequence[Mapping[str, float]], slots: Mapping[str, int]) -> list[tuple[str, float]]:
    """Return what bounds a night, and for how many seconds it takes at least by each bound; the longest first.

    Args:
        work: Seconds by phase of each artifact.
        slots: Of Airflow's pools, by name.
    """
    preparing = [seconds.get(PREPARING, 0.0) for seconds in work]
    publishing = [sum(seconds.values()) - seconds.get(PREPARING, 0.0) for seconds in work]
    bounds = {
        f"preparing in {slots['prepare']} slots": sum(preparing) / slots["prepare"],
        f"publishing in {slots['publish']} slots": sum(publishing) / slots["publish"],
        "the longest artifact": max(map(sum, zip(preparing, publishing, strict=True))),
    }
    return sorted(bounds.items(), key=lambda bound: -bound[1])
