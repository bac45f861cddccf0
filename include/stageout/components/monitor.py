"""The monitor: asks FTS for many jobs at once, and moves each transfer as soon as something happened to its file."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, select

from include.errors import NightshiftError
from include.federation.records import note_results
from include.federation.states import LINK, EvidenceSource, SiteObservation
from include.fts.client import MOST_JOBS, FtsClient
from include.fts.errors import FtsError, FtsForbidden, JobUnknown
from include.fts.jobs import JobStatus
from include.fts.states import FailureReason, FailureScope, JobState
from include.ledger.engine import reading, writing
from include.stageout.attempts import answers as judging
from include.stageout.claims import ClaimedRows, claim_jobs, claim_transfers, keep_claim, look_again
from include.stageout.files import is_bare
from include.stageout.jobs import transfers_of_jobs
from include.stageout.moves import TransferJobMove, TransferMove, move_jobs, move_transfers, note_writing
from include.stageout.opening import Stageout
from include.stageout.places.verify import CopyDecision, CopyVerdict, judge_copies
from include.stageout.requests import Transfer, TransferAtFts, TransferJob, rows_in
from include.stageout.retry import TransferFailureClass
from include.stageout.states import JOB_ENDED, StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_transfers

SHORTEST_LOOK, LONGEST_LOOK = timedelta(seconds=10), timedelta(minutes=2)
CANCEL_LOOK = timedelta(seconds=5)
"""After FTS was asked to cancel something."""
OUTAGE_LOOK = timedelta(seconds=30)
ASKED = (
    "file_id", "file_state", "reason", "start_time", "finish_time", "throughput", "transfer_host", "pid",
    "file_metadata", "filesize", "checksum",
)  # fmt: skip
"""The fields of a file that FTS is asked for: those that an `AttemptJudge` reads."""
_T, _J = TransferState, TransferJobState
_OF_SITES = frozenset(
    {
        TransferFailureClass.CONNECTION, TransferFailureClass.TIMEOUT, TransferFailureClass.NO_SPACE,
        TransferFailureClass.DESTINATION_CHECKSUM, TransferFailureClass.OTHER,
    }
)  # fmt: skip
"""Classes of failures by which a site is judged; others are of a file, a user or FTS."""


@dataclass(frozen=True, slots=True)
class MonitorReport:
    """The work of one batch of the monitor.

    `rows`: jobs, and transfers that are being killed, that it took; 0: nothing is due. `moved`: transfers by the state
    that they are in now. `ended`: jobs that ended. `faults`: jobs that could not be asked for, by the code of the
    error.
    """

    rows: int
    moved: Mapping[str, int]
    ended: int
    faults: Mapping[str, int]


def monitor(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> MonitorReport:
    """Ask FTS for the jobs that are due, and move their transfers; one batch.

    `limit`: jobs of each state, and transfers that are being killed, that are taken at most.
    """
    batch = _MonitorBatch(stageout, now)
    for state in (_J.SUBMITTED, _J.ACTIVE):
        claimed = claim_jobs(stageout.ledger, state, stageout.worker, limit=limit, now=now())
        batch.rows += len(claimed.rows)
        batch.look(claimed)
    batch.end_kills(claim_transfers(stageout.ledger, _T.KILLING, stageout.worker, limit=limit, now=now()))
    return MonitorReport(batch.rows, batch.moved, batch.ended, batch.faults)


@dataclass
class _Findings:
    """Findings that are recorded in one transaction: all are about jobs of one claim."""

    moves: defaultdict[int, list[TransferMove]] = field(default_factory=lambda: defaultdict(list))
    """By job."""
    jobs: dict[int, TransferJobMove] = field(default_factory=dict)
    waits: dict[int, timedelta] = field(default_factory=dict)
    """Of jobs that do not move."""
    writing: defaultdict[int, dict[int, datetime]] = field(default_factory=lambda: defaultdict(dict))
    """By job: transfers that are being killed, and until when their copies may still write."""


@dataclass
class _MonitorBatch:
    """A batch. What it learns of servers holds until its end."""

    stageout: Stageout
    now: Callable[[], datetime]
    rows: int = 0
    ended: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    down: dict[str, FtsError] = field(default_factory=dict)
    chance: random.Random = field(default_factory=random.Random)
    links: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Source and destination of each job."""
    left: set[int] = field(default_factory=set)
    """Claimed jobs of which nothing is recorded yet, and since when they are claimed."""
    since: datetime | None = None

    def look(self, claimed: ClaimedRows[TransferJob]) -> None:
        """Ask for all claimed jobs, many in a request."""
        self.left, self.since = {row.id for row in claimed.rows}, self.now()
        self.links = {row.id: (row.source, row.destination) for row in claimed.rows}
        for client, rows in self._by_client(claimed):
            for start in range(0, len(rows), MOST_JOBS):
                self._look_at(client, rows[start : start + MOST_JOBS], claimed.claim)

    def _by_client(self, claimed: ClaimedRows[TransferJob]) -> Iterable[tuple[FtsClient, list[TransferJob]]]:
        """The jobs of each identity at each server; those that cannot be asked for are due again later."""
        groups: dict[FtsClient, list[TransferJob]] = {}
        left: list[TransferJob] = []
        for row in claimed.rows:
            try:
                client = self.stageout.fts(row.server, row.owner, row.source, row.destination)
            except NightshiftError as error:
                self.faults[error.code] += 1
                left.append(row)
            else:
                groups.setdefault(client, []).append(row)
        self._leave(left, claimed.claim)
        return groups.items()

    def _look_at(self, client: FtsClient, rows: Sequence[TransferJob], claim: str) -> None:
        try:
            if rows[0].server in self.down:
                raise self.down[rows[0].server]
            answers = client.status([row.fts_id for row in rows], files=ASKED)
        except FtsError as error:
            if error.outage:
                self.down[rows[0].server] = error
            self.faults[error.code] += len(rows)
            if isinstance(error, FtsForbidden):
                judging.note_held_jobs(self.stageout.ledger, [row.id for row in rows], str(error))
            self._leave(rows, claim)
            return
        judging.end_held_jobs(self.stageout.ledger, [row.id for row in rows])
        transfers: defaultdict[int | None, list[TransferAtFts]] = defaultdict(list)
        for transfer in transfers_of_jobs(
            self.stageout.ledger, [row.id for row in rows], TransferAtFts, states=judging.AT_FTS
        ):
            transfers[transfer.job].append(transfer)
        findings = _Findings()
        for row in rows:
            self._keep(claim)
            try:
                if row.fts_id in answers.jobs:
                    self._judge(client, row, answers.jobs[row.fts_id], transfers[row.id], findings)
                elif isinstance(answers.errors[row.fts_id], JobUnknown):
                    self._unknown(client, row, transfers[row.id], findings)
                else:
                    raise answers.errors[row.fts_id]
            except NightshiftError as error:
                # of this job alone
                self.faults[error.code] += 1
                findings.waits[row.id] = _next_look(row, self.now(), changed=False)
        self._record(findings, claim)

    # -- a job that FTS knows

    def _judge(
        self,
        client: FtsClient,
        row: TransferJob,
        status: JobStatus,
        transfers: Sequence[TransferAtFts],
        findings: _Findings,
    ) -> None:
        now = self.now()
        answer = judging.JobAnswer.of(status, overwrites=row.overwrites, now=now)
        files = judging.files_by_transfer(status.files)
        attempts = self._attempts()
        judged = {transfer.id: attempts.judge(transfer, files.get(transfer.id), answer) for transfer in transfers}
        cancels = [files[number].file_id for number, judgement in judged.items() if judgement.cancel]
        if cancels:
            running = {file.file_id for file in status.files if not file.file_state.terminal}
            self._cancel(client, row.fts_id, cancels, whole=running <= set(cancels))
        moves = self._found(row, judged, findings)
        result = judging.JOB_RESULTS.get(status.job_state)
        if result is not None and all(judgement.settled for judgement in judged.values()):
            text = status.reason or f"FTS: {status.job_state.value}"
            findings.jobs[row.id] = TransferJobMove(row.id, row.state, result, text)
            return
        wait = CANCEL_LOOK if cancels else _next_look(row, now, changed=bool(moves))
        to = {JobState.ACTIVE: _J.ACTIVE, JobState.SUBMITTED: _J.SUBMITTED}.get(status.job_state)
        if to is not None and row.state in (_J.SUBMITTED, _J.ACTIVE) and row.state is not to:
            text = f"FTS: {status.job_state.value}"
            findings.jobs[row.id] = TransferJobMove(row.id, row.state, to, text, wait)
        else:
            findings.waits[row.id] = wait

    def _found(
        self, row: TransferJob, judged: Mapping[int, judging.FileJudgement], findings: _Findings
    ) -> Sequence[TransferMove]:
        moves = [judgement.move for judgement in judged.values() if judgement.move is not None]
        findings.moves[row.id] += moves
        findings.writing[row.id] |= {
            number: judgement.until for number, judgement in judged.items() if judgement.until is not None
        }
        return moves

    def _cancel(self, client: FtsClient, fts_id: str, files: Sequence[int], *, whole: bool) -> None:
        """Ask FTS to cancel files; the next look shows what became of them.

        `client`: of the job's server. `fts_id`: the job. `files`: the ids of its files. `whole`: all that the job still
        does: FTS kills copies only of jobs that are canceled as a whole.
        """
        try:
            if whole:
                client.cancel([fts_id])
            else:
                client.cancel_files(fts_id, files)
        except FtsError as error:
            self.faults[error.code] += 1

    def _attempts(self) -> judging.AttemptJudge:
        return judging.AttemptJudge(
            self.stageout.retry, self.now(), self.chance.random(), self.stageout.settings.copy_margin
        )

    # -- a job that FTS does not know

    def _unknown(
        self, client: FtsClient, row: TransferJob, transfers: Sequence[TransferAtFts], findings: _Findings
    ) -> None:
        """Look in the archive of FTS, then at the destinations; only then the transfers are tried again."""
        try:
            status = client.archived(row.fts_id)
        except JobUnknown:
            status = None
        if status is not None and (status.files or not transfers):
            self._judge(client, row, status, transfers, findings)
            return
        decisions = self._compared(row, transfers) if transfers else {}
        judged = {transfer.id: self._lost(row, transfer, decisions[transfer.id]) for transfer in transfers}
        self._found(row, judged, findings)
        if all(judgement.settled for judgement in judged.values()):
            text = "FTS does not know it any more; its destinations were compared"
            findings.jobs[row.id] = TransferJobMove(row.id, row.state, _J.LOST, text)
        else:
            findings.waits[row.id] = _next_look(row, self.now(), changed=False)

    def _compared(self, row: TransferJob, transfers: Sequence[TransferAtFts]) -> dict[int, CopyDecision]:
        if is_bare(transfers[0].destination_name):
            reason = FailureReason(FailureScope.DESTINATION, None, "a destination without a site cannot be compared")
            return {transfer.id: CopyDecision(CopyVerdict.MISSING, reason) for transfer in transfers}
        return judge_copies(
            self.stageout.site(row.destination),
            transfers,
            destination=self.stageout.place(row.destination, row.owner),
            source=lambda _: self.stageout.place(row.source, row.owner),
        )

    def _lost(self, row: TransferJob, transfer: TransferAtFts, decision: CopyDecision) -> judging.FileJudgement:
        attempts = self._attempts()
        until = attempts.lost_until(transfer)
        if decision.verdict is CopyVerdict.VERIFIED:
            return attempts.copied(transfer, "its FTS job is lost; the destination is as requested", until=until)
        if decision.verdict is CopyVerdict.LOOK:
            # too large to be read here: the reporter has it read, and a copy that differs is never replaced
            text = "its FTS job is lost; the destination is as large as requested"
            return attempts.copied(transfer, text, until=until)
        if decision.verdict is CopyVerdict.CANNOT_TELL:
            return judging.FileJudgement()
        text = f"its FTS job is lost; {decision.reason.text}"
        began = judging.seen_to_copy(transfer, overwrites=row.overwrites)
        return attempts.failed(transfer, replace(decision.reason, text=text), until=until, began=began)

    # -- the ledger

    def end_kills(self, claimed: ClaimedRows[Transfer]) -> None:
        """Kill what is in no job of FTS; the rest waits for its job."""
        self.rows += len(claimed.rows)
        columns = stageout_jobs.c
        jobs = (row.job for row in claimed.rows if row.job is not None)
        with reading(self.stageout.ledger) as connection:
            states = rows_in(connection, select(columns.id, columns.state), columns.id, jobs)
            running = {job.id for job in states if _J(job.state) not in JOB_ENDED}
        ledger, now = self.stageout.ledger, self.now()
        waits = {row.id: LONGEST_LOOK for row in claimed.rows if row.job in running}
        waits |= {
            row.id: row.may_write_until - now
            for row in claimed.rows if row.id not in waits and row.may_write_until and row.may_write_until > now
        }  # fmt: skip
        moves = [
            TransferMove(row.id, _T.KILLING, _T.KILLED, "FTS has nothing of it")
            for row in claimed.rows if row.id not in waits
        ]  # fmt: skip
        moved = move_transfers(ledger, moves, StageoutComponent.MONITOR, now=now, claim=claimed.claim)
        self.moved.update([_T.KILLED.value] * len(moved))
        look_again(ledger, stageout_transfers, waits, claimed.claim, now=now)

    def _record(self, findings: _Findings, claim: str) -> None:
        """Record what was found about the jobs that are still ours.

        The claim of a job covers its transfers: what a slower process found out is not recorded, since a transfer may
        be in its next job by then.
        """
        now = self.now()
        self.left -= {*findings.jobs, *findings.waits}

        def work(connection: Connection) -> tuple[Counter[str], int]:
            ours = _held(connection, [*findings.jobs, *findings.waits], claim)
            moves = [move for job, theirs in findings.moves.items() if job in ours for move in theirs]
            moved = move_transfers(connection, moves, StageoutComponent.MONITOR, now=now)
            by_link = [
                (self.links[job], move)
                for job, some in findings.moves.items() if job in ours for move in some if move.id in moved
            ]  # fmt: skip
            note_results(connection, _results(by_link, self.stageout.sites), now=now)
            note_writing(connection, {n: t for job in ours for n, t in findings.writing.get(job, {}).items()})
            jobs = [move for job, move in findings.jobs.items() if job in ours]
            move_jobs(connection, jobs, StageoutComponent.MONITOR, now=now, claim=claim)
            look_again(connection, stageout_jobs, findings.waits, claim, now=now)
            ended = sum(move.to in JOB_ENDED for move in jobs)
            return Counter(move.to.value for move in moves if move.id in moved), ended

        moved, ended = writing(self.stageout.ledger, work)
        self.moved += moved
        self.ended += ended

    def _keep(self, claim: str) -> None:
        """Renew the claim in time: destinations of lost jobs may be slow to compare."""
        worker, now = self.stageout.worker, self.now()
        if self.since is not None and now - self.since >= worker.keeps / 3:
            keep_claim(self.stageout.ledger, stageout_jobs, self.left, claim, worker, now=now)
            self.since = now

    def _leave(self, rows: Collection[TransferJob], claim: str) -> None:
        """Ask again later: the jobs stay with their server."""
        now = self.now()
        waits = {row.id: max(OUTAGE_LOOK, _next_look(row, now, changed=False)) for row in rows}
        look_again(self.stageout.ledger, stageout_jobs, waits, claim, now=now)


def _results(
    moves: Iterable[tuple[tuple[str, str], TransferMove]], sites: Collection[str]
) -> Iterable[SiteObservation]:
    """Results of transfers for the health of sites: a failure counts for the side that FTS names, or for both."""
    counts: Counter[SiteObservation] = Counter()
    for link, move in moves:
        named = dict(zip((FailureScope.SOURCE, FailureScope.DESTINATION), link, strict=True))
        sides, what = ([named[move.scope]], "") if move.scope in named else (list(link), LINK)
        if move.to is _T.COPIED and move.failure is None:
            counts.update(SiteObservation(site, EvidenceSource.TRANSFER, good=1) for site in {*link})
        elif move.failure in _OF_SITES:
            kind = move.failure.value
            counts.update(SiteObservation(site, EvidenceSource.TRANSFER, what, kind, failed=1) for site in {*sides})
    for result, count in counts.items():
        if result.site in sites:
            yield replace(result, good=result.good * count, failed=result.failed * count)


def _held(connection: Connection, jobs: Collection[int], claim: str) -> frozenset[int]:
    """Return those of the jobs that the claim still has, locked."""
    columns = stageout_jobs.c
    query = select(columns.id).where(columns.claim == claim).order_by(columns.id).with_for_update()
    return frozenset(row.id for row in rows_in(connection, query, columns.id, jobs))


def _next_look(row: TransferJob, now: datetime, *, changed: bool) -> timedelta:
    """The older a job and the less happens to it, the later; in steps, so that few statements record them all."""
    if changed:
        return SHORTEST_LOOK
    age = now - row.created_at
    steps = max(1, min(age // (4 * SHORTEST_LOOK), LONGEST_LOOK // SHORTEST_LOOK))
    return steps * SHORTEST_LOOK
