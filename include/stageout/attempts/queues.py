"""The queues that are submitted from, in which order and how much of each, and FTS's optimizer."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select

from include.errors import NightshiftError
from include.fts.jobs import OptimizerDecision
from include.fts.open import connected_credential, open_client
from include.ledger.engine import Bind, reading
from include.settings.sites import RemoteSite
from include.site.site import Site
from include.stageout.claims import waiting_queues
from include.stageout.files import FileKind, digest_of
from include.stageout.requests import rows_in
from include.stageout.states import TransferState
from include.stageout.tables import stageout_queues, stageout_transfers
from include.stageout.transfers import TransferJob, columns_of, from_rows
from include.stageout.urls import storage_of

TIMEOUT_S = 10.0
ServerDecisions = Mapping[str, Sequence[OptimizerDecision] | NightshiftError]
"""By the id of the server's connection; an error where the server did not answer."""


def ask_optimizers(site: Site) -> ServerDecisions:
    """Ask each FTS server of stage-out, with the credential of its connection."""
    found: dict[str, Sequence[OptimizerDecision] | NightshiftError] = {}
    for server in site.settings.stageout.fts:
        try:
            connection = site.secrets.get(server)
            with open_client(connection, connected_credential(connection), timeout_s=TIMEOUT_S, retries=0) as client:
                found[server] = client.link_decisions()
        except NightshiftError as error:
            found[server] = error
    return found


def decisions_by_link(
    links: Iterable[Link], sites: Mapping[str, RemoteSite], decisions: ServerDecisions
) -> dict[Link, OptimizerDecision]:
    """The decision of each link that its server has one of.

    `decisions`: of all FTS servers, in the order of the configuration.
    """
    servers = list(decisions)
    known: dict[str, dict[tuple[str, str], OptimizerDecision]] = {}
    for server, answer in decisions.items():
        of_server = () if isinstance(answer, NightshiftError) else answer
        # the newest comes first, and stays
        known[server] = {
            (decided.source.lower(), decided.destination.lower()): decided for decided in reversed(of_server)
        }
    found: dict[Link, OptimizerDecision] = {}
    for link in links:
        storages = _storages(link, sites)
        decision = known[server_of(link, servers)].get(storages) if storages else None
        if decision is not None:
            found[link] = decision
    return found


def _storages(link: Link, sites: Mapping[str, RemoteSite]) -> tuple[str, str] | None:
    """The storages that FTS copies between: those of the first protocol of the source that both sites have."""
    source, destination = (sites[name].third_party if name in sites else () for name in link)
    here = {rule.protocol: storage_of(rule.url) for rule in reversed(destination)}
    return next(((storage_of(rule.url), here[rule.protocol]) for rule in source if rule.protocol in here), None)


LOGS_WAIT = timedelta(minutes=15)
"""For how long log files wait for the outputs of their user and link."""
_QUEUED = (TransferState.SUBMITTED, TransferState.ACTIVE, TransferState.KILLING)
Link = tuple[str, str]
"""Source and destination site."""


@dataclass(frozen=True, slots=True)
class TransferQueue:
    """A row of the queues."""

    id: int
    owner: str
    source: str
    destination: str
    kind: FileKind
    fts: str | None = None

    @property
    def link(self) -> Link:
        return self.source, self.destination

    @classmethod
    def of_job(cls, job: TransferJob) -> TransferQueue:
        """From a claimed job, which has the columns of its queue."""
        return cls(job.queue, job.owner, job.source, job.destination, job.kind, job.fts)


def due_queues(bind: Bind, *, now: datetime, limit: int, start: float) -> list[TransferQueue]:
    """Queues that have new transfers that are due.

    `start`: from 0 to 1: where in the table the search begins, so that each queue is found where there are too many.
    """
    with reading(bind) as connection:
        last = connection.scalar(select(func.max(stageout_queues.c.id))) or 0
        after = int(start * last)
        ids = waiting_queues(connection, now=now, after=after, limit=limit)
        if len(ids) < limit and after:
            first = waiting_queues(connection, now=now, limit=limit - len(ids))
            ids += [number for number in first if number <= after]
        return list(queues_of(connection, ids).values())


def queues_of(bind: Bind, ids: Iterable[int]) -> dict[int, TransferQueue]:
    """Queues by number."""
    query = select(*columns_of(TransferQueue, stageout_queues))
    with reading(bind) as connection:
        queues = from_rows(TransferQueue, rows_in(connection, query, stageout_queues.c.id, ids))
    return {queue.id: queue for queue in queues}


def queued_files(bind: Bind) -> Counter[Link]:
    """Return how many files FTS has of each link."""
    columns = stageout_transfers.c
    counted = select(columns.queue, func.count()).where(columns.state.in_([state.value for state in _QUEUED]))
    with reading(bind) as connection:
        counts = {row[0]: row[1] for row in connection.execute(counted.group_by(columns.queue))}
        found: Counter[Link] = Counter()
        for number, queue in queues_of(connection, counts).items():
            found[queue.link] += counts[number]
    return found


def in_turns(queues: Collection[TransferQueue], chance: random.Random) -> deque[deque[TransferQueue]]:
    """The queues of each user, outputs before log files; users and queues in the order of chance.

    One queue of each user is served in a turn, so a user with many queues or files does not hold up the others.
    """
    by_owner: defaultdict[str, list[TransferQueue]] = defaultdict(list)
    for queue in chance.sample(sorted(queues, key=lambda queue: queue.id), len(queues)):
        by_owner[queue.owner].append(queue)
    return deque(deque(sorted(owned, key=lambda queue: queue.kind is FileKind.LOG)) for owned in by_owner.values())


def held_for(queue: TransferQueue, waiting: Collection[TransferQueue]) -> timedelta:
    """For how long transfers of a queue have to have been due: log files wait while outputs of their link do."""
    outputs = any(
        other.kind is FileKind.OUTPUT and (other.owner, other.link) == (queue.owner, queue.link) for other in waiting
    )
    return LOGS_WAIT if queue.kind is FileKind.LOG and outputs else timedelta()


def server_of(link: Link, servers: Sequence[str]) -> str:
    """The FTS server of a link: always the same one, so that it alone decides what is active there."""
    return servers[int(digest_of(*link)[:8], 16) % len(servers)]


def banned_site(link: Link, sites: Mapping[str, RemoteSite], banned: Collection[str]) -> str | None:
    """The first site of the link all of whose storages for third-party copies are banned, if there is one.

    `banned`: what FTS bans, as `scheme://host`.
    """
    for name in link:
        # the site of a bare URL is its storage
        storages = [storage_of(rule.url) for rule in sites[name].third_party] if name in sites else [name]
        if storages and all(storage in banned for storage in storages):
            return name
    return None
