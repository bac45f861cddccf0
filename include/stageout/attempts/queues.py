"""The queues that are submitted from, in which order and how much of each; the FTS jobs that their transfers become.

Also the optimizer of FTS, and what a refused submission means for jobs.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum

from sqlalchemy import func, select

from include.errors import NightshiftError
from include.fts import errors as fts_errors
from include.fts.jobs import FtsFile, FtsJob, JobParams, OptimizerDecision, VerifyChecksum
from include.fts.open import connected_credential, open_client
from include.ledger.engine import Bind, reading
from include.settings.sites import ChecksumMode, RemoteSite
from include.site.site import Site
from include.stageout.claims import waiting_queues
from include.stageout.errors import FILE_REFUSED, StageoutError
from include.stageout.files import FileKind, digest_of, storage_of, third_party_urls
from include.stageout.requests import Transfer, TransferJob, columns_of, from_rows, rows_in
from include.stageout.states import TransferState
from include.stageout.tables import stageout_queues, stageout_transfers

TIMEOUT_S = 10.0
ServerDecisions = Mapping[str, Sequence[OptimizerDecision] | NightshiftError]
"""By the id of the server's connection; an error where the server did not answer."""
LOGS_WAIT = timedelta(minutes=15)
"""For how long log files wait for the outputs of their user and link."""
_QUEUED = (TransferState.SUBMITTED, TransferState.ACTIVE, TransferState.KILLING)
Link = tuple[str, str]
"""Source and destination site."""
METADATA_BYTES = 550
"""The longest list of names in a job's metadata, in bytes; FTS takes 2048 for all of it."""
TRANSFER_KEY = "transfer"
"""Names the transfer in the metadata of a file."""
REFUSED_WAIT, LONGEST_REFUSED_WAIT = timedelta(minutes=10), timedelta(hours=3)
"""After which a submission that FTS does not allow now is tried again."""
UNCLEAR_WAIT, LONGEST_UNCLEAR_WAIT = timedelta(seconds=20), timedelta(minutes=10)
"""After which FTS is asked for a job whose submission had no clear reply; the wait doubles with each."""
IN_FLIGHT = timedelta(minutes=10)
"""For how long a request whose reply was lost may still be worked on."""
SUBMISSIONS, ALL_SUBMISSIONS = 3, 12
"""So many without a clear reply, and the job is taken apart: at a server that takes other jobs, and at any."""
UNCLEAR_JOBS = 3
"""Jobs of one user without a clear reply, after which the batch leaves the user's queues."""
UNCLEAR_USERS = 3
"""Users with such jobs in a row, after which the server is the cause."""
_REPORTED = {ChecksumMode.ADLER32: "adler32", ChecksumMode.CRC32C: "crc32c"}


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


@dataclass(frozen=True, slots=True)
class DraftJob:
    """Files that one job may have, by the ids of their transfers.

    Attributes:
        overwrites: The files may replace what is at their destinations.
        verify: Which checksums FTS compares.
        files: At least one.
        workflows: Those that the files belong to.
        user_jobs: Those that wrote the files.
        priority: At FTS; None: the server's default.
    """

    overwrites: bool
    verify: VerifyChecksum
    files: Mapping[int, FtsFile]
    workflows: frozenset[str] = frozenset()
    user_jobs: frozenset[str] = frozenset()
    priority: int | None = None

    def only(self, transfers: Collection[int]) -> DraftJob:
        """The same job with some of the files."""
        return replace(self, files={number: file for number, file in self.files.items() if number in transfers})

    def halves(self) -> tuple[DraftJob, DraftJob]:
        """Two jobs of at least one file each, of a job of at least two."""
        ids = list(self.files)
        return self.only(ids[: len(ids) // 2]), self.only(ids[len(ids) // 2 :])

    def job(self, number: int, owner: str, queue_time: timedelta) -> FtsJob:
        """Return what is submitted.

        FTS tries each file once: after a second try of its own, a file that it finds at the destination could be what
        its first try left there, or what was there before.

        `queue_time`: FTS cancels a file that waits longer.
        """
        metadata = {
            "job": number,
            "owner": "".join(_fitting([owner])),
            "workflows": _fitting(self.workflows),
            "user_jobs": _fitting(self.user_jobs),
        }
        params = JobParams(
            verify_checksum=self.verify,
            overwrite=self.overwrites,
            retry=-1,
            priority=self.priority,
            max_time_in_queue_s=int(queue_time.total_seconds()),
            metadata=metadata,
        )
        return FtsJob(tuple(self.files.values()), params)


@dataclass(frozen=True, slots=True)
class DraftedJobs:
    """The jobs, and the transfers that cannot be in one, each with its error."""

    jobs: tuple[DraftJob, ...]
    refused: Mapping[int, StageoutError]


def draft_jobs(
    rows: Sequence[Transfer], source: RemoteSite | None, destination: RemoteSite | None, *, workflows: Mapping[int, str]
) -> DraftedJobs:
    """Return what transfers of one queue become. A job has one rule for overwriting and one for checksums.

    `source`: their site; None: it is not configured any more, or a bare URL has none. `destination`: the same.
    """
    files: defaultdict[tuple[bool, VerifyChecksum], dict[int, FtsFile]] = defaultdict(dict)
    refused: dict[int, StageoutError] = {}
    for row in rows:
        try:
            compared, file = _file(row, source, destination)
        except StageoutError as error:
            refused[row.id] = error
        else:
            files[row.may_overwrite, compared][row.id] = file
    flows = {row.id: workflows.get(row.request, "") for row in rows}
    user_jobs = {row.id: row.user_job for row in rows}
    drafts = [
        DraftJob(
            overwrites, compared, together,
            frozenset(flows[number] for number in together) - {""},
            frozenset(filter(None, (user_jobs[number] for number in together))),
            rows[0].priority,
        )
        for (overwrites, compared), together in files.items()
    ]  # fmt: skip
    return DraftedJobs(tuple(drafts), refused)


def _file(row: Transfer, source: RemoteSite | None, destination: RemoteSite | None) -> tuple[VerifyChecksum, FtsFile]:
    urls = third_party_urls((source, row.source_name), (destination, row.destination_name))
    if row.verify is None and source and destination:
        compared, checksum = compared_by_fts(source, destination, row.checksum)
    else:
        compared, checksum = VerifyChecksum(row.verify or "none"), row.checksum
    file = FtsFile(*urls, size=row.size, checksum=checksum, activity=row.activity, metadata={TRANSFER_KEY: row.id})
    fault = file.fault()
    if fault:
        raise FILE_REFUSED(f"transfer {row.id}", fault)
    return compared, file


def compared_by_fts(
    source: RemoteSite, destination: RemoteSite, declared: str | None
) -> tuple[VerifyChecksum, str | None]:
    """Return which checksums FTS is to compare, and the file's checksum for it. It compares only what sites report."""
    ends = _REPORTED.get(source.checksum), _REPORTED.get(destination.checksum)
    if declared is None:
        same = ends[0] is not None and ends[0] == ends[1]
        return (VerifyChecksum.BOTH, str(ends[0]).upper()) if same else (VerifyChecksum.NONE, None)
    algorithm = declared.partition(":")[0]
    verify = {
        (True, True): VerifyChecksum.BOTH,
        (True, False): VerifyChecksum.SOURCE,
        (False, True): VerifyChecksum.TARGET,
        (False, False): VerifyChecksum.NONE,
    }[ends[0] == algorithm, ends[1] == algorithm]
    return verify, None if verify is VerifyChecksum.NONE else declared


class SubmitOutcome(Enum):
    """The fate of a job whose submission ended in an error."""

    ADOPTED = "adopted"
    """FTS has it."""
    UNCLEAR = "unclear"
    """FTS may have it: it is asked for by its id."""
    NEEDS_CREDENTIAL = "needs-credential"
    SPLIT = "split"
    """FTS refuses a file of it, and the error does not say which."""
    RETRIED = "retried"
    """FTS does not allow it now."""
    WAITS = "waits"
    """FTS has nothing of it, and the files are not the cause."""


_OUTCOMES: Mapping[str, SubmitOutcome] = {
    fts_errors.JobExists.code: SubmitOutcome.ADOPTED,
    fts_errors.FtsForbidden.code: SubmitOutcome.RETRIED,
    fts_errors.StorageBanned.code: SubmitOutcome.WAITS,
    fts_errors.UserBanned.code: SubmitOutcome.WAITS,
    fts_errors.FtsUnreachable.code: SubmitOutcome.WAITS,
    fts_errors.FTS_TLS_FAILED.code: SubmitOutcome.WAITS,
    fts_errors.VOMS_FAILED.code: SubmitOutcome.WAITS,
    fts_errors.FTS_REQUEST_INVALID.code: SubmitOutcome.SPLIT,
    fts_errors.FTS_JOB_INVALID.code: SubmitOutcome.SPLIT,
    fts_errors.DESTINATION_QUEUED.code: SubmitOutcome.SPLIT,
}


def outcome_of(error: fts_errors.FtsError) -> SubmitOutcome:
    """By the error's code; whatever does not say that FTS has nothing of the job is unclear."""
    if isinstance(error, fts_errors.CredentialNeeded):
        return SubmitOutcome.NEEDS_CREDENTIAL
    return _OUTCOMES.get(error.code, SubmitOutcome.UNCLEAR)


def refused_wait(age: timedelta) -> timedelta:
    """The longer a transfer waits, the less often it is tried: each try adds to its history."""
    return min(max(REFUSED_WAIT, age // 4 // REFUSED_WAIT * REFUSED_WAIT), LONGEST_REFUSED_WAIT)


def unclear_wait(tries: int, error: fts_errors.FtsError) -> timedelta:
    """After how long FTS is asked for a job that was submitted so often without a clear reply."""
    wait = min(UNCLEAR_WAIT * (1 << min(tries - 1, 30)), LONGEST_UNCLEAR_WAIT)
    # after HTTP 500 the server has ended its work; other replies may be those of a proxy before it
    return wait if tries < SUBMISSIONS or error.status == 500 else max(wait, IN_FLIGHT)


@dataclass(slots=True)
class UnclearSubmissions:
    """Submissions of one batch without a clear reply: faults of their jobs, until several users have them in a row."""

    jobs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By server and user."""
    users: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By server, since it took a job."""

    def failed(self, server: str, owner: str, *, again: bool) -> bool:
        """Count one; True if the server is the cause. A job that failed before says nothing new of its server."""
        self.jobs[server, owner] += 1
        if not again:
            self.users[server].add(owner)
        return len(self.users[server]) >= UNCLEAR_USERS

    def taken(self, server: str) -> None:
        """Note that the server took a job."""
        self.users.pop(server, None)

    def hold(self, server: str, owner: str) -> bool:
        """Tell whether no more of the user's jobs are sent in this batch."""
        return self.jobs[server, owner] >= UNCLEAR_JOBS


def _fitting(names: Iterable[str]) -> list[str]:
    """The first names, as many as the metadata of a job has room for."""
    found: list[str] = []
    room = METADATA_BYTES
    for name in sorted(names):
        room -= len(json.dumps(name)) + 2
        if room < 0:
            break
        found.append(name)
    return found
