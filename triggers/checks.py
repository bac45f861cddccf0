"""The waits of tasks. A kind of wait is one function here and one row of `CHECKS`.

A check looks once, takes nothing and changes nothing. The triggerer runs it in a thread; a sensor runs it itself first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from include.fts.errors import JobUnknown

if TYPE_CHECKING:
    from include.fts.jobs import JobStatus
    from include.site.site import Site


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a check: ready or not, the reason, and the value that a sensor returns."""

    ready: bool
    reason: str
    result: Any = None


Connect = Callable[[], "Site"]
"""Gives the clients of the site; a check that needs none does not call it."""


def lease_free(connect: Connect, repository: str, path: str, gateway_conn_id: str | None = None) -> Observation:
    """No lease overlaps `path`; an empty path means the whole repository."""
    from include.gateway.client.client import GatewayClient
    from include.settings.secrets import base_url

    site = connect()
    settings = site.settings
    gateway = gateway_conn_id or settings.repository(repository).gateway
    address = base_url(site.secrets.get(gateway), port=settings.gateway.port)
    place = f"{repository}{path or '/'}"
    # listing leases needs no key, so the client is given none
    with GatewayClient(address, "", "", retries=0) as client:
        holder = client.holder(repository, path)
    if holder is None:
        return Observation(True, f"{place} is free")
    return Observation(False, f"{place} is held by {holder.hostname!r} with key {holder.key_id}")


def object_stored(connect: Connect, store: str | None, key: str, store_conn_id: str | None = None) -> Observation:
    """The object `key` is in a store, configured or of a connection; the result is its URL."""
    opened = connect().chosen_store(store, store_conn_id)
    url = f"{opened.url}/{key}"
    meta = opened.head(key)
    reason = f"{url} does not exist" if meta is None else f"{url} has {meta.size} bytes"
    return Observation(meta is not None, reason, url)


def place_ready(connect: Connect, repository: str, path: str, wanted: str, replaces: bool = False) -> Observation:
    """The place of a tree is as `wanted`: `free` or `reserved`. Raises DestinationError if it can never be."""
    from include.site.changes import WantedPlace, look_at

    state = look_at(connect(), repository, path, WantedPlace(wanted), replaces=replaces)
    result = {"repository": repository, "path": state.path, "revision": state.revision, "reason": state.reason}
    return Observation(state.ready, state.reason, result)


def path_published(connect: Connect, fqrn: str, path: str, absent: bool = False) -> Observation:
    """Readers of a repository find something at `path`, or nothing any more; the result has the revision."""
    from include.cvmfs.sources.source import checked_destination

    repository, path = connect().repository(fqrn), checked_destination(path)
    exists, revision = repository.revision.lookup(path) is not None, repository.manifest.revision
    reason = f"{fqrn}{path} {'is' if exists else 'is not'} in revision {revision}"
    return Observation(exists is not absent, reason, {"fqrn": fqrn, "path": path, "revision": revision})


def revision_published(connect: Connect, fqrn: str, revision: int | None, tag: str | None) -> Observation:
    """Readers of a repository get at least this revision, and find this tag; the result has the revision."""
    repository = connect().repository(fqrn)
    head = repository.manifest.revision
    named = (
        next((entry.revision for entry in repository.tags() if entry.name == tag), None) if tag is not None else head
    )
    result = {"fqrn": fqrn, "revision": head if named is None else named, "root_hash": str(repository.manifest.root)}
    if named is None:
        return Observation(False, f"{fqrn} has no tag {tag!r} at revision {head}", result)
    ready = revision is None or named >= revision
    return Observation(ready, f"{fqrn}{f', tag {tag!r},' if tag else ''} is at revision {named}", result)


def unfrozen(connect: Connect, repository: str) -> Observation:
    """No freeze holds in the repository; it ends by a thaw or at its own end."""
    from include.cvmfs.coordination.freeze import look

    freeze = look(connect().repository_store(repository), datetime.now(UTC))
    return Observation(freeze is None, f"{repository} is {freeze or 'no longer frozen'}")


def swept(connect: Connect, repository: str, number: int, shards: list[int]) -> Observation:
    """The collection of that number has swept these shards of its list, or has ended; without shards it has to end."""
    from include.cvmfs.coordination.generation import look

    generation = look(connect().repository_store(repository)).generation
    if generation is None or generation.has_swept(number):
        return Observation(True, f"collection {number} of {repository} has ended")
    ready = generation.has_swept(number, shards)
    what = f"collection {number} of {repository} is {generation.phase.value}, {generation.swept} of 256 shards swept"
    return Observation(ready, f"{what}; needed: {max(shards) + 1 if shards else 'its end'}")


def replicas_in_sync(connect: Connect, repository: str, replicas: list[str], revision: int | None) -> Observation:
    """These replicas (none named: all) have `revision`, or what stratum 0 has; the result is their looks."""
    from include.replicas.look import look_at_replicas

    looks = look_at_replicas(connect(), repository, datetime.now(UTC), replicas)
    late = [look for look in looks if not look.has(look.head_revision if revision is None else revision)]
    reason = "; ".join(map(str, late)) or f"{len(looks)} replicas of {repository} are in sync"
    return Observation(not late, reason, [look.to_json() for look in looks])


def replicas_quiet(connect: Connect, repository: str) -> Observation:
    """A collection need not wait for a replica; the result is what it does about them, and their looks."""
    from include.replicas.look import look_at_replicas, rules_of
    from include.replicas.states import CollectionTurn, wait_for_replicas

    site, now = connect(), datetime.now(UTC)
    looks = look_at_replicas(site, repository, now)
    decision = wait_for_replicas(looks, rules_of(site, repository), now)
    result = {
        "turn": decision.turn.value,
        "reason": decision.reason,
        "without": list(decision.without),
        "looks": [look.to_json() for look in looks],
    }
    return Observation(decision.turn is not CollectionTurn.WAIT, decision.reason, result)


def replica_job_ended(connect: Connect, repository: str, replica: str, verb: str) -> Observation:
    """The job `snapshot` or `gc` of a replica's machine runs no more; the result is its exit code and last lines."""
    from include.publishers.server.maintenance import Stage
    from include.replicas.look import job_on

    job = job_on(connect(), repository, replica, verb).look()
    reason = f"{verb} of {repository} on {replica} {'runs' if job.stage is Stage.RUNNING else 'has ended'}"
    return Observation(job.stage is not Stage.RUNNING, reason, job.to_json())


def fts_jobs_ended(connect: Connect, fts_conn_id: str, job_ids: list[str]) -> Observation:
    """All jobs of an FTS server have ended; the result is the state of each, None of one that FTS does not know."""
    from include.fts.open import connected_client

    site = connect()
    jobs: dict[str, JobStatus | None] = {}
    with connected_client(site.secrets.get(fts_conn_id)) as client:
        answers = client.status(job_ids, files=())
        for job_id, error in answers.errors.items():
            if not isinstance(error, JobUnknown):
                raise error
            try:
                jobs[job_id] = client.archived(job_id)
            except JobUnknown:
                jobs[job_id] = None
    jobs |= answers.jobs
    states = {job_id: job and job.job_state.value for job_id, job in jobs.items() if not job or job.job_state.terminal}
    if len(states) < len(jobs):
        return Observation(False, f"{len(jobs) - len(states)} of {len(jobs)} FTS jobs have not ended", states)
    return Observation(True, f"{len(states)} FTS jobs have ended", states)


def transfers_ended(connect: Connect, request: int, since: str) -> Observation:
    """All files of a task's request have ended. It never comes where no pass of stage-out is at work."""
    from include.stageout.direct import look

    progress = look(connect().ledger, request, since=datetime.fromisoformat(since), now=datetime.now(UTC))
    return Observation(not progress.running, progress.text)


def sites_usable(connect: Connect, sites: list[str]) -> Observation:
    """None of these sites (none named: of all) has failed or is held; the result is the state of each."""
    from include.federation.records import health_of

    site = connect()
    health = health_of(site.ledger, [site.settings.remote_site(name).name for name in sites or site.settings.sites])
    out = {name: current.obstacle for name, current in health.items() if current.obstacle is not None}
    reason = "; ".join(f"{name}: {why}" for name, why in out.items()) or f"{len(health)} sites are used"
    return Observation(not out, reason, {name: current.state.value for name, current in health.items()})


def workflow_registered(connect: Connect, owner: str, workflow: str, allow_failed: bool = False) -> Observation:
    """Every file of the workflow is registered, or needs no registration; the result is how many are in each state."""
    from include.stageout.states import TransferState
    from include.stageout.status import TransferFilter, count_archived, count_transfers

    ledger, chosen = connect().ledger, TransferFilter(owner=owner, workflow=workflow)
    states: Counter[TransferState] = Counter()
    for count in (*count_transfers(ledger, chosen), *count_archived(ledger, chosen)):
        states[count.state] += count.files
    ended = {TransferState.REGISTERED, TransferState.CLEANING, TransferState.CLEANED, TransferState.KEPT}
    if allow_failed:
        ended |= {TransferState.FAILED, TransferState.KILLED, TransferState.RETRACTED}
    left = {state.value: files for state, files in states.items() if state not in ended}
    reason = ", ".join(f"{files} {state}" for state, files in sorted(left.items()))
    if not states:
        reason = f"no file of workflow {workflow} of {owner} was requested"
    counts = {state.value: files for state, files in states.items()}
    return Observation(bool(states) and not left, reason or f"{states.total()} files have ended their way", counts)


def ceph_clean(connect: Connect, target: str) -> Observation:
    """The cluster of a benchmark's target is well, and nothing is left to recover; the result is its state."""
    from include.benchmarks.campaign.campaigns import cluster_of

    cluster = cluster_of(connect(), target)
    if cluster is None:
        return Observation(True, f"no cluster is configured for {target}")
    health = cluster.health()
    facts = {"osds_down": health.osds_down, "unclean": health.unclean, "stopping": list(health.stopping)}
    what = f"{health.osds_down} OSDs are down, {health.unclean} placement groups are not active and clean"
    return Observation(health.clean and not health.stopping, "; ".join([what, *health.stopping]), facts)


def paused(connect: Connect) -> Observation:  # noqa: ARG001
    """Nothing shows when it is over: the deadline ends the wait, and the task looks itself."""
    return Observation(False, "the pause is over")


class WaitCheck(NamedTuple):
    """A row of `CHECKS`: the function, and the seconds between two looks where the task does not say."""

    look: Callable[..., Observation]
    poll_s: float


CHECKS: Mapping[str, WaitCheck] = {
    "lease-free": WaitCheck(lease_free, 2.0),
    "object": WaitCheck(object_stored, 30.0),
    "place": WaitCheck(place_ready, 5.0),
    "thaw": WaitCheck(unfrozen, 15.0),
    "path": WaitCheck(path_published, 30.0),
    "revision": WaitCheck(revision_published, 30.0),
    "collection": WaitCheck(swept, 5.0),
    "pause": WaitCheck(paused, 300.0),
    "replicas-in-sync": WaitCheck(replicas_in_sync, 60.0),
    "replicas-quiet": WaitCheck(replicas_quiet, 60.0),
    "replica-job": WaitCheck(replica_job_ended, 60.0),
    "fts-jobs": WaitCheck(fts_jobs_ended, 30.0),
    "transfers": WaitCheck(transfers_ended, 30.0),
    "sites-usable": WaitCheck(sites_usable, 60.0),
    "workflow-registered": WaitCheck(workflow_registered, 60.0),
    "ceph-clean": WaitCheck(ceph_clean, 15.0),
}
"""By the key that Airflow's database stores for a deferred task: keys and the names of arguments never change."""
