"""The submitter: new transfers become FTS jobs, each recorded with its id before its request is sent."""

from __future__ import annotations

import errno
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update

from include.fts.client import BanOf, FtsClient
from include.fts.errors import DESTINATION_QUEUED, CredentialNeeded, FtsError, FtsForbidden, JobUnknown
from include.fts.jobs import Ban, JobName
from include.fts.states import FailureReason
from include.ledger.engine import reading, writing
from include.stageout.attempts.answers import HELD, note_held_queue
from include.stageout.attempts.queues import (
    ALL_SUBMISSIONS,
    SUBMISSIONS,
    DraftJob,
    Link,
    SubmitOutcome,
    TransferQueue,
    UnclearSubmissions,
    banned_site,
    draft_jobs,
    due_queues,
    held_for,
    in_turns,
    outcome_of,
    queued_files,
    refused_wait,
    server_of,
    unclear_wait,
)
from include.stageout.claims import ClaimedRows, claim_jobs, claim_queue, look_again, release_dead
from include.stageout.errors import NO_SITE_URL, StageoutError
from include.stageout.jobs import NewTransferJob, note_unclear, record_job, took_others, transfers_of_jobs
from include.stageout.moves import TransferJobMove, TransferMove, move_jobs, move_transfers
from include.stageout.opening import Stageout
from include.stageout.requests import Transfer, TransferJob, rows_in
from include.stageout.retry import SUBMISSION_FAILED, TransferFailureClass, failure_class
from include.stageout.states import StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_requests, stageout_transfers

MOST_QUEUES = 1000
FIRST_LOOK = timedelta(seconds=10)
"""After which the monitor asks for a new job."""
CREDENTIAL_LOOK = timedelta(minutes=2)
CONFIGURATION_WAIT = timedelta(minutes=30)
OUTAGE_WAIT = timedelta(minutes=1)
BEFORE = timedelta(minutes=1)
"""What a server took in this time before a job counts as taken beside it."""
_T, _J = TransferState, TransferJobState


@dataclass(frozen=True, slots=True)
class SubmitReport:
    """The work of one batch of the submitter.

    `rows`: transfers and jobs that it took; 0: nothing is due. `jobs`: jobs that FTS has now. `outcomes`: transfers by
    the state that they are in now; those of jobs with an unclear outcome are `claimed`. `held`: queues that it left, by
    the reason.
    """

    rows: int
    jobs: int
    outcomes: Mapping[str, int]
    held: Mapping[str, int]


def submit(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> SubmitReport:
    """Submit new transfers, and settle submissions whose outcome is not known; one batch."""
    batch = _SubmitBatch(stageout, now)
    batch.rows += len(release_dead(stageout.ledger, limit=limit, now=now()))
    most = max(1, limit // stageout.settings.files_per_job)
    batch.settle(claim_jobs(stageout.ledger, _J.SUBMITTING, stageout.worker, limit=most, now=now()))
    batch.submit_queues(limit)
    return SubmitReport(batch.rows, batch.jobs, batch.outcomes, batch.held)


@dataclass(frozen=True, slots=True)
class _Submission:
    """A recorded job whose request is about to be sent: its row, queue, claim and files."""

    number: int
    name: JobName
    queue: TransferQueue
    server: str
    claim: str
    draft: DraftJob
    rows: Mapping[int, Transfer]
    """As they were claimed."""
    tries: int
    """Earlier submissions without a clear reply."""


@dataclass
class _SubmitBatch:
    """A batch. What it learns of servers holds until its end."""

    stageout: Stageout
    now: Callable[[], datetime]
    rows: int = 0
    jobs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    obstacles: Mapping[str, str] = field(default_factory=dict)
    """Sites to which nothing is sent."""
    banned: dict[str, tuple[Ban, ...]] = field(default_factory=dict)
    """Storages by server."""
    faults: dict[str, FtsError] = field(default_factory=dict)
    """Servers that cannot be used now."""
    unclear: UnclearSubmissions = field(default_factory=UnclearSubmissions)
    chance: random.Random = field(default_factory=random.Random)

    # -- new transfers

    def submit_queues(self, limit: int) -> None:
        """Submit from each user's queues in turns, until so many transfers are taken or none is left."""
        self.obstacles = self.stageout.obstacles()
        most = min(limit, MOST_QUEUES)
        queues = due_queues(self.stageout.ledger, now=self.now(), limit=most, start=self.chance.random())
        queued = queued_files(self.stageout.ledger) if queues else Counter[Link]()
        turns = in_turns(queues, self.chance)
        left = limit
        # what is left of the batch makes no part of a job: the next batch takes the queue as a whole
        while turns and left >= min(self.stageout.settings.files_per_job, limit):
            own = turns.popleft()
            queue = own.popleft()
            room = self.stageout.settings.queued_limit(*queue.link) - queued[queue.link]
            wanted = min(self.stageout.settings.files_per_job, room, left)
            taken = self._from_queue(queue, wanted, held_for(queue, queues))
            queued[queue.link] += taken
            left -= taken
            if taken == wanted > 0:
                own.append(queue)
            if own:
                turns.append(own)

    def _from_queue(self, queue: TransferQueue, wanted: int, held: timedelta) -> int:
        """Submit from one queue; how many transfers were taken."""
        server = queue.fts or server_of(queue.link, self.stageout.settings.fts)
        shunned = next((name for name in queue.link if name in self.obstacles), None)
        if shunned is not None:
            why = f"{shunned}: {self.obstacles[shunned]}"
            self.held[why] += 1
            note_held_queue(self.stageout.ledger, queue.id, why)
            return 0
        reason = self._obstacle(queue, server, wanted)
        if reason is not None:
            self.held[reason] += 1
            return 0
        try:
            client = self._client(queue, server)
        except CredentialNeeded as error:
            claimed = claim_queue(self.stageout.ledger, queue.id, self.stageout.worker, limit=wanted, now=self.now())
            self.rows += len(claimed.rows)
            self._move([_needs_credential(row.id, error) for row in claimed.rows], claimed.claim)
            return len(claimed.rows)
        except FtsError as error:
            self._faulty(server, error)
            self.held[error.code] += 1
            if isinstance(error, FtsForbidden):
                note_held_queue(self.stageout.ledger, queue.id, str(error))
            return 0
        banned = {ban.name.lower() for ban in self.banned[server] if ban.holds(client.identity())}
        site = banned_site(queue.link, self.stageout.sites, banned)
        if site is not None:
            reason = f"the storage of {site} is banned at {server}"
            self.held[reason] += 1
            note_held_queue(self.stageout.ledger, queue.id, reason)
            return 0
        ledger, worker = self.stageout.ledger, self.stageout.worker
        claimed = claim_queue(ledger, queue.id, worker, limit=wanted, now=self.now(), held=held)
        self.rows += len(claimed.rows)
        if not claimed.rows:
            return 0
        rows = {row.id: row for row in claimed.rows}
        for draft in self._drafts(queue, claimed.rows, claimed.claim):
            self._record(queue, server, client, draft, claimed.claim, rows)
        return len(rows)

    def _obstacle(self, queue: TransferQueue, server: str, wanted: int) -> str | None:
        """Return why nothing of the queue is submitted now."""
        if wanted <= 0:
            return f"the limit of the link {' to '.join(queue.link)} is reached"
        if server not in self.faults and server not in self.banned:
            try:
                self.banned[server] = self.stageout.fts(server, "").bans(BanOf.STORAGE)
            except FtsError as error:
                # the list needs a right of its own; without it a banned storage is refused with the job
                self._faulty(server, error)
                self.banned[server] = ()
        if server in self.faults:
            return self.faults[server].code
        if self.unclear.hold(server, queue.owner):
            return f"{server} gives no clear reply to jobs of {queue.owner}"
        return None

    def _faulty(self, server: str, error: FtsError) -> None:
        if error.outage:
            self.faults[server] = error

    def _client(self, queue: TransferQueue, server: str) -> FtsClient:
        client = self.stageout.fts(server, queue.owner, *queue.link)
        client.keep_delegated(now=self.now())
        client.job_name("0")  # asks who we are before anything is claimed, and whether jobs get names
        return client

    def _drafts(self, queue: TransferQueue, rows: Sequence[Transfer], claim: str) -> tuple[DraftJob, ...]:
        """The jobs of these transfers; those that can be in none are moved."""
        source, destination = map(self.stageout.sites.get, queue.link)
        drafted = draft_jobs(rows, source, destination, workflows=self._workflows(rows))
        self._move([_not_drafted(number, error) for number, error in drafted.refused.items()], claim)
        return drafted.jobs

    def _workflows(self, rows: Sequence[Transfer]) -> dict[int, str]:
        columns = stageout_requests.c
        query, requests = select(columns.id, columns.workflow), (row.request for row in rows)
        with reading(self.stageout.ledger) as connection:
            return {row.id: row.workflow for row in rows_in(connection, query, columns.id, requests)}

    def _record(
        self,
        queue: TransferQueue,
        server: str,
        client: FtsClient,
        draft: DraftJob,
        claim: str,
        rows: Mapping[int, Transfer],
        tries: int = 0,
    ) -> None:
        name = client.job_name(secrets.token_hex(16))
        job = NewTransferJob(queue.id, server, name.sid, name.job_id, draft.overwrites, tries)
        number, taken = record_job(
            self.stageout.ledger, job, list(draft.files), self.stageout.worker, claim=claim, now=self.now()
        )
        if number is not None:
            self._send(client, _Submission(number, name, queue, server, claim, draft.only(taken), rows, tries))

    # -- the request

    def _send(self, client: FtsClient, job: _Submission) -> None:
        """Send the request, and record what became of it."""
        asked = job.draft.job(job.number, job.queue.owner, self.stageout.settings.queue_time)
        try:
            found = client.submit(asked, job.name)
        except FtsError as error:
            self._failed(client, job, error)
        else:
            self._accept(job.number, found, job.server, job.draft.files, job.claim)

    def _failed(self, client: FtsClient, job: _Submission, error: FtsError) -> None:
        self._faulty(job.server, error)
        outcome = outcome_of(error)
        files = list(job.draft.files)
        if outcome is SubmitOutcome.ADOPTED:
            self._accept(job.number, job.name.job_id, job.server, files, job.claim)
        elif outcome is SubmitOutcome.UNCLEAR:
            self._unclear(job, error)
        elif outcome is SubmitOutcome.SPLIT and len(files) > 1:
            self._split(client, job, str(error))
        else:
            moves = [self._refused(job.rows[number], outcome, error) for number in files]
            self._refuse(job.number, moves, job.claim, error)

    def _unclear(self, job: _Submission, error: FtsError) -> None:
        """Leave the job until FTS is asked for it; the users of its files read why."""
        if self.unclear.failed(job.server, job.queue.owner, again=job.tries > 0):
            self.faults[job.server] = error
        # a server that says that it has too much to do says nothing of the job
        tries = job.tries if error.outage else job.tries + 1
        wait = OUTAGE_WAIT if error.outage else unclear_wait(tries, error)
        what = str(error).removesuffix(f"; {error.hint}")
        reason = f"{what}; sent {tries} times, looked for again at {self.now() + wait:%H:%M:%S} UTC"
        files = list(job.draft.files)
        self.outcomes[_T.CLAIMED.value] += len(files)
        ledger, now = self.stageout.ledger, self.now()
        note_unclear(ledger, job.number, files, job.claim, tries=tries, wait=wait, reason=reason, now=now)

    def _refused(self, row: Transfer, outcome: SubmitOutcome, error: FtsError) -> TransferMove:
        number = row.id
        if outcome is SubmitOutcome.NEEDS_CREDENTIAL and isinstance(error, CredentialNeeded):
            return _needs_credential(number, error)
        if outcome is SubmitOutcome.WAITS:
            wait = OUTAGE_WAIT if error.outage else refused_wait(self.now() - row.created_at)
            why = f"{HELD}{error}" if isinstance(error, FtsForbidden) else str(error)
            return TransferMove(number, _T.CLAIMED, _T.NEW, why, wait)
        if outcome is SubmitOutcome.SPLIT and error.code != DESTINATION_QUEUED.code:
            return TransferMove(number, _T.CLAIMED, _T.FAILED, str(error), failure=TransferFailureClass.INVALID)
        refused = errno.EACCES if outcome is SubmitOutcome.RETRIED else None
        return self._judged(row, FailureReason(None, refused, str(error)))

    def _judged(self, row: Transfer, failure: FailureReason) -> TransferMove:
        """By the rule of the failure's class."""
        decision = self.stageout.retry(failure, row.retries, self.chance.random())
        kind = failure_class(failure)
        return TransferMove(row.id, _T.CLAIMED, decision.to, decision.reason, decision.wait, failure=kind)

    def _split(self, client: FtsClient, job: _Submission, why: str, tries: int = 0) -> None:
        """Submit each half as a job of its own: in the end the refused file is alone."""
        columns = stageout_transfers.c

        def work(connection: Connection) -> None:
            move = TransferJobMove(job.number, _J.SUBMITTING, _J.REFUSED, why)
            if move_jobs(connection, [move], StageoutComponent.SUBMITTER, now=self.now(), claim=job.claim):
                ours = (columns.job == job.number, columns.claim == job.claim, columns.state == _T.CLAIMED.value)
                connection.execute(update(stageout_transfers).where(*ours).values(job=None))

        writing(self.stageout.ledger, work)
        for half in job.draft.halves():
            self._record(job.queue, job.server, client, half, job.claim, job.rows, tries)

    # -- submissions of unknown outcome

    def settle(self, claimed: ClaimedRows[TransferJob]) -> None:
        """Ask FTS for jobs that may have arrived; submit those again, under the same sid, that did not."""
        self.rows += len(claimed.rows)
        self.obstacles = self.stageout.obstacles()
        for row in claimed.rows:
            if self.obstacles.keys() & {row.source, row.destination}:
                # if it did not arrive it would be sent again
                look_again(self.stageout.ledger, stageout_jobs, {row.id: OUTAGE_WAIT}, claimed.claim, now=self.now())
                continue
            try:
                self._settle_job(row, claimed.claim)
            except FtsError as error:
                self._faulty(row.server, error)
                self.held[error.code] += 1
                wait = CREDENTIAL_LOOK if isinstance(error, CredentialNeeded) else OUTAGE_WAIT
                look_again(self.stageout.ledger, stageout_jobs, {row.id: wait}, claimed.claim, now=self.now())

    def _settle_job(self, row: TransferJob, claim: str) -> None:
        if row.server in self.faults:
            raise self.faults[row.server]
        client = self.stageout.fts(row.server, row.owner, row.source, row.destination)
        ours = transfers_of_jobs(self.stageout.ledger, [row.id], Transfer, states=[_T.CLAIMED], claim=claim)
        if _is_known(client, row.fts_id):
            self._accept(row.id, row.fts_id, row.server, (transfer.id for transfer in ours), claim)
        else:
            self._again(client, row, ours, claim)

    def _again(self, client: FtsClient, row: TransferJob, ours: Sequence[Transfer], claim: str) -> None:
        queue = TransferQueue.of_job(row)
        drafts = self._drafts(queue, ours, claim) if ours else ()
        if not drafts:
            self._refuse(row.id, [], claim, "none of its files is to be transferred any more")
            return
        # more than one where the configuration changed meanwhile: the rest becomes new
        most = max(drafts, key=lambda draft: len(draft.files))
        rest = [number for draft in drafts if draft is not most for number in draft.files]
        self._move(
            [TransferMove(remaining, _T.CLAIMED, _T.NEW, "the configuration changed") for remaining in rest], claim
        )
        rows = {transfer.id: transfer for transfer in ours}
        name = JobName(row.sid, row.fts_id)
        job = _Submission(row.id, name, queue, row.server, claim, most, rows, row.tries)
        beside = took_others(self.stageout.ledger, row.server, row.created_at - BEFORE)
        if row.tries >= (SUBMISSIONS if beside else ALL_SUBMISSIONS):
            self._take_apart(client, job, row.reason)
        else:
            self._send(client, job)

    def _take_apart(self, client: FtsClient, job: _Submission, reason: str) -> None:
        """Submit the halves of a job that FTS fails with, and does not have; a file that is alone is tried later."""
        (first, *others) = job.draft.files
        why = f"{SUBMISSION_FAILED}: {reason}"
        if others:
            # the next one without a clear reply is enough for a half
            self._split(client, job, why, SUBMISSIONS - 1)
            return
        self._refuse(job.number, [self._judged(job.rows[first], FailureReason(None, None, why))], job.claim, why)

    # -- the ledger

    def _accept(self, number: int, fts_id: str, server: str, transfers: Iterable[int], claim: str) -> None:
        reason = f"in FTS job {fts_id} at {server}"
        moves = [TransferMove(transfer, _T.CLAIMED, _T.SUBMITTED, reason) for transfer in transfers]
        job = TransferJobMove(number, _J.SUBMITTING, _J.SUBMITTED, reason, FIRST_LOOK, fts_id)
        self._end_submission(job, moves, claim)
        self.jobs += 1
        self.unclear.taken(server)

    def _refuse(self, number: int, moves: Sequence[TransferMove], claim: str, why: FtsError | str) -> None:
        self._end_submission(TransferJobMove(number, _J.SUBMITTING, _J.REFUSED, str(why)), moves, claim)

    def _end_submission(self, job: TransferJobMove, moves: Sequence[TransferMove], claim: str) -> None:
        """Move a job and its transfers, unless another process has the job by now."""
        by, now = StageoutComponent.SUBMITTER, self.now()

        def work(connection: Connection) -> frozenset[int]:
            ours = move_jobs(connection, [job], by, now=now, claim=claim)
            return move_transfers(connection, moves, by, now=now, claim=claim) if ours else ours

        self._count(moves, writing(self.stageout.ledger, work))

    def _move(self, moves: Sequence[TransferMove], claim: str) -> None:
        if moves:
            moved = move_transfers(
                self.stageout.ledger, moves, StageoutComponent.SUBMITTER, now=self.now(), claim=claim
            )
            self._count(moves, moved)

    def _count(self, moves: Sequence[TransferMove], moved: frozenset[int]) -> None:
        self.outcomes.update(move.to.value for move in moves if move.id in moved)


def _is_known(client: FtsClient, fts_id: str) -> bool:
    """Tell whether FTS has the job, or had it. Raises FtsError where it cannot be asked."""
    answers = client.status([fts_id], files=())
    error = answers.errors.get(fts_id)
    if error is None:
        return True
    if not isinstance(error, JobUnknown):
        raise error
    try:
        client.archived(fts_id)
    except JobUnknown:
        return False
    return True


def _needs_credential(number: int, error: CredentialNeeded) -> TransferMove:
    failure = TransferFailureClass.CREDENTIAL
    return TransferMove(number, _T.CLAIMED, _T.NEEDS_CREDENTIAL, str(error), CREDENTIAL_LOOK, failure=failure)


def _not_drafted(number: int, error: StageoutError) -> TransferMove:
    """Return what no URL can be made of fails; where a rule is missing, it waits for the configuration, at no cost."""
    if error.code == NO_SITE_URL.code:
        return TransferMove(number, _T.CLAIMED, _T.RETRY_WAIT, str(error), CONFIGURATION_WAIT, spends=False)
    return TransferMove(number, _T.CLAIMED, _T.FAILED, str(error), failure=TransferFailureClass.INVALID)
