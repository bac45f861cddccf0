"""Claims of transfers and jobs: by many processes, by processes that are killed, and what a claim reads."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import event, select, text

import include
from include.ledger.engine import open_ledger, reading, writing
from include.ledger.migrate import migrate
from include.stageout.claims import (
    StageoutWorker,
    claim_jobs,
    claim_queue,
    claim_transfers,
    look_again,
    release_dead,
    waiting_queues,
)
from include.stageout.files import FileKind
from include.stageout.jobs import NewTransferJob, record_job, transfers_of_jobs
from include.stageout.moves import TransferJobMove, TransferMove, move_jobs, move_transfers
from include.stageout.requests import TransferAtFts
from include.stageout.states import StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_transfers
from tests.fakes.places import put_in
from tests.fakes.transfers import NOW, recorded, states

ROOT = Path(include.__path__[0]).parent
WORKER = StageoutWorker("worker-1")
LATE = NOW + WORKER.keeps + timedelta(seconds=1)
NEW, CLAIMED, COPIED, DONE = TransferState.NEW, TransferState.CLAIMED, TransferState.COPIED, TransferState.DONE
SUBMITTER = StageoutComponent.SUBMITTER

BEGIN = """
import json, os, sys
from datetime import datetime
from include.ledger.engine import open_ledger, writing
from include.stageout.claims import StageoutWorker, claim_queue, claim_transfers, lock_oldest, due, waiting_queues
from include.stageout.states import TransferState
from include.stageout.tables import stageout_transfers

now = datetime.fromisoformat(os.environ["NOW"])
"""
CLAIM_ALL = """
ready, go = os.pipe()
children = []
for number in range(4):  # each a process of its own; the imports are done once
    if (child := os.fork()) == 0:
        os.close(go)
        os.read(ready, 1)  # ends when the parent lets go of the other side: all begin at once
        ledger, mine = open_ledger(os.environ["URL"]), []
        worker = StageoutWorker(f"worker-{number}")
        while queues := waiting_queues(ledger, now=now):
            for queue in queues:
                mine += [row.id for row in claim_queue(ledger, queue, worker, limit=7, now=now).rows]
        while found := claim_transfers(ledger, TransferState.COPIED, worker, limit=7, now=now).rows:
            mine += [row.id for row in found]
        os.write(1, (json.dumps(mine) + "\\n").encode())  # in one piece: the children share the pipe
        os._exit(0)
    children.append(child)
os.close(go)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""
CLAIM_AND_HANG = """
ledger = open_ledger(os.environ["URL"])
(queue,) = waiting_queues(ledger, now=now)
print([row.id for row in claim_queue(ledger, queue, StageoutWorker("dead"), limit=5, now=now).rows], flush=True)
sys.stdin.read()
"""
LOCK_AND_HANG = """
def work(connection):
    where = due(stageout_transfers, TransferState.NEW, now)
    print(lock_oldest(connection, stageout_transfers, where, 5), flush=True)
    sys.stdin.read()

writing(open_ledger(os.environ["URL"]), work)
"""


def process(ledger, script, **options):
    url = ledger.url.render_as_string(hide_password=False)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "URL": url, "NOW": NOW.isoformat()}
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + script], env=environ, stdout=subprocess.PIPE, text=True, **options
    )


def move(ids, current, to, **more):
    return [TransferMove(number, current, to, "because", **more) for number in ids]


def test_claims_of_many_processes_are_disjoint_and_complete(ledger):
    ids = [*recorded(ledger, 120), *recorded(ledger, 120, owner="bob")]
    copied = recorded(ledger, 120, owner="cyd")
    put_in(ledger, copied, COPIED, NOW)
    with process(ledger, CLAIM_ALL) as claiming:
        output, _ = claiming.communicate(timeout=120)
    assert claiming.returncode == 0
    claimed = [number for line in output.splitlines() for number in json.loads(line)]
    assert len(output.splitlines()) == 4
    assert sorted(claimed) == sorted([*ids, *copied])
    assert states(ledger) == dict.fromkeys(ids, CLAIMED) | dict.fromkeys(copied, COPIED)


@contextmanager
def killed(ledger, script):
    """A process that has written a line, and is killed when the block has begun; gives what it wrote."""
    with process(ledger, script, stdin=subprocess.PIPE) as running:
        ids = json.loads(running.stdout.readline())
        running.send_signal(signal.SIGKILL)
        running.wait(60)
        yield ids


def test_what_a_killed_process_had_claimed_comes_back_when_its_claim_ends(ledger):
    ids = recorded(ledger, 8)
    with killed(ledger, CLAIM_AND_HANG) as lost:
        assert len(lost) == 5
    assert release_dead(ledger, limit=100, now=NOW) == frozenset()
    (queue,) = waiting_queues(ledger, now=NOW)
    rest = claim_queue(ledger, queue, WORKER, limit=100, now=LATE - timedelta(seconds=2))
    assert sorted([*lost, *(row.id for row in rest.rows)]) == ids
    assert release_dead(ledger, limit=100, now=NOW + WORKER.keeps) == frozenset(lost)
    again = claim_queue(ledger, queue, WORKER, limit=100, now=LATE)
    assert sorted(row.id for row in again.rows) == sorted(lost)


def test_a_process_that_is_killed_within_a_claim_has_claimed_nothing(ledger):
    ids = recorded(ledger, 8)
    with killed(ledger, LOCK_AND_HANG) as locked:
        assert len(locked) == 5
    (queue,) = waiting_queues(ledger, now=NOW)
    claimed: set[int] = set()
    while len(claimed) < len(ids):  # the server notices the end of the connection in a moment of its own
        claimed |= {row.id for row in claim_queue(ledger, queue, WORKER, limit=100, now=NOW).rows}
    assert sorted(claimed) == ids


def test_a_claim_ends_by_itself_and_then_its_moves_are_refused(ledger):
    ids = recorded(ledger, 3)
    put_in(ledger, ids, COPIED, NOW)
    slow = claim_transfers(ledger, COPIED, WORKER, limit=2, now=NOW)
    assert [row.id for row in slow.rows] == ids[:2]
    assert [row.id for row in claim_transfers(ledger, COPIED, WORKER, limit=9, now=NOW).rows] == ids[2:]
    late = claim_transfers(ledger, COPIED, StageoutWorker("worker-2"), limit=1, now=LATE)
    assert [(row.id, row.owner) for row in late.rows] == [(ids[0], "ann")]
    with reading(ledger) as connection:
        holder = select(stageout_transfers.c.claimed_by).where(stageout_transfers.c.id == ids[0])
        assert connection.scalar(holder) == "worker-2"
    moves = move(ids[:2], COPIED, DONE)
    done = move_transfers(ledger, moves, StageoutComponent.REPORTER, now=LATE, claim=slow.claim)
    assert done == {ids[1]}, "the other worker has the first; nobody has taken the second meanwhile"
    assert claim_transfers(ledger, DONE, WORKER, limit=9, now=LATE).rows[0].id == ids[1]


def test_queues_wait_with_due_transfers_only_and_the_oldest_come_first(ledger):
    late = recorded(ledger, 2, owner="ann", now=NOW + timedelta(hours=1))
    soon = recorded(ledger, 3, owner="ann", now=NOW)
    other = recorded(ledger, 1, owner="bob", now=NOW)
    logs = recorded(ledger, 1, owner="ann", kind=FileKind.LOG, now=NOW)
    queues = waiting_queues(ledger, now=NOW)
    assert len(queues) == 3
    assert waiting_queues(ledger, now=NOW, limit=2) == queues[:2]
    assert waiting_queues(ledger, now=NOW, after=queues[1]) == queues[2:]
    claimed = [claim_queue(ledger, queue, WORKER, limit=2, now=NOW) for queue in queues]
    assert [[row.id for row in one.rows] for one in claimed] == [soon[:2], other, logs]
    assert waiting_queues(ledger, now=NOW) == queues[:1]
    claim_queue(ledger, queues[0], WORKER, limit=2, now=NOW)
    assert waiting_queues(ledger, now=NOW) == []
    assert {number for number, state in states(ledger).items() if state is NEW} == set(late)


def submitting(ledger, count=3):
    ids = recorded(ledger, count)
    (queue,) = waiting_queues(ledger, now=NOW)
    claimed = claim_queue(ledger, queue, WORKER, limit=count, now=NOW)
    job = NewTransferJob(queue, "fts_default", "ab" * 16, "12345678-1234-5678-1234-567812345678")
    return ids, claimed.claim, job


def test_a_job_has_the_claim_of_its_transfers_and_another_submitter_takes_both_over(ledger):
    ids, claim, job = submitting(ledger)
    number, taken = record_job(ledger, job, ids, WORKER, claim=claim, now=NOW)
    assert taken == frozenset(ids)
    assert release_dead(ledger, limit=9, now=LATE) == frozenset(), "their request may have been sent"
    assert claim_jobs(ledger, TransferJobState.SUBMITTING, WORKER, limit=9, now=NOW).rows == ()
    over = claim_jobs(ledger, TransferJobState.SUBMITTING, StageoutWorker("worker-2"), limit=9, now=LATE)
    assert [(row.id, row.fts_id, row.files) for row in over.rows] == [(number, job.fts_id, 3)]
    theirs = transfers_of_jobs(ledger, [number], TransferAtFts, states=[CLAIMED], claim=over.claim)
    assert [transfer.id for transfer in theirs] == ids

    def submitted(claim):
        def work(connection):
            moves = move(ids, CLAIMED, TransferState.SUBMITTED)
            jobs = [TransferJobMove(number, TransferJobState.SUBMITTING, TransferJobState.SUBMITTED, "accepted")]
            return (
                move_transfers(connection, moves, SUBMITTER, now=LATE, claim=claim),
                move_jobs(connection, jobs, SUBMITTER, now=LATE, claim=claim),
            )

        return writing(ledger, work)

    assert submitted(claim) == (frozenset(), frozenset()), "the first submitter is too late"
    assert submitted(over.claim) == (frozenset(ids), {number})


def test_a_job_has_no_transfer_that_was_killed_or_whose_claim_is_lost(ledger):
    ids, claim, job = submitting(ledger)
    person = StageoutComponent.PERSON
    assert move_transfers(ledger, move(ids[:1], CLAIMED, TransferState.KILLING), person, now=NOW) == {ids[0]}
    release_dead(ledger, limit=1, now=LATE)
    _, taken = record_job(ledger, job, ids, WORKER, claim=claim, now=LATE)
    assert taken == {ids[2]}
    again = NewTransferJob(job.queue, job.server, "cd" * 16, "22345678-1234-5678-1234-567812345678")
    assert record_job(ledger, again, ids, WORKER, claim=claim, now=LATE) == (None, frozenset())


MARIADB = pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))


@pytest.fixture(scope="module", params=["sqlite", MARIADB])
def filled(request, tmp_path_factory):
    """A ledger in which most transfers and jobs are in other states, and many queues wait; claims take few of them."""
    url, password = f"sqlite:///{tmp_path_factory.mktemp('filled')}/ledger.db", None
    if request.param == "mariadb":
        server = request.getfixturevalue("mariadb")
        url, password = server.create_database("nightshift_filled"), server.password
    ledger = open_ledger(url, password=password)
    migrate(ledger)
    for owner in range(20):
        recorded(ledger, 50, owner=f"user-{owner}")
    ids = recorded(ledger, 4000, owner="ann")
    put_in(ledger, ids[:3000], TransferState.CLEANED, NOW)
    put_in(ledger, ids[3000:3900], COPIED, NOW)
    put_in(ledger, ids[3900:], CLAIMED, NOW)
    with ledger.begin() as connection:
        queue = connection.scalar(select(stageout_transfers.c.queue).limit(1))
        jobs = [
            {"sid": f"{number:032x}", "fts_id": f"{number:036x}", "server": "fts", "queue": queue, "files": 1,
             "state": "finished" if number % 10 else "submitted", "reason": "", "due_at": NOW, "created_at": NOW,
             "moved_at": NOW}
            for number in range(2000)
        ]  # fmt: skip
        connection.execute(stageout_jobs.insert(), jobs)
        if ledger.dialect.name == "mysql":
            for table in (stageout_transfers, stageout_jobs):
                connection.execute(text(f"ANALYZE TABLE {table.name}")).all()
        else:
            connection.execute(text("ANALYZE"))
    yield ledger
    ledger.dispose()


CLAIMS = {
    "queues": lambda ledger: waiting_queues(ledger, now=NOW),
    "queue": lambda ledger: claim_queue(ledger, queue_of(ledger), WORKER, limit=10, now=NOW),
    "copied": lambda ledger: claim_transfers(ledger, COPIED, WORKER, limit=10, now=NOW),
    "jobs": lambda ledger: claim_jobs(ledger, TransferJobState.SUBMITTED, WORKER, limit=10, now=NOW),
    "dead": lambda ledger: release_dead(ledger, limit=10, now=NOW),
}


def queue_of(ledger):
    with reading(ledger) as connection:
        return connection.scalar(select(stageout_transfers.c.queue).where(stageout_transfers.c.state == "new").limit(1))


@pytest.mark.parametrize("claim", CLAIMS)
def test_no_statement_of_a_claim_sorts_or_reads_a_table(filled, claim):
    statements: list[tuple[str, object]] = []

    def before(connection, cursor, statement, parameters, context, executemany):
        if re.match("SELECT|UPDATE|WITH", statement) and "stageout_" in statement:
            statements.append((statement, parameters))

    event.listen(filled, "before_cursor_execute", before)
    CLAIMS[claim](filled)
    event.remove(filled, "before_cursor_execute", before)
    assert statements
    explain = "EXPLAIN" if filled.dialect.name == "mysql" else "EXPLAIN QUERY PLAN"
    for statement, parameters in statements:
        with filled.connect() as connection:
            plan = connection.exec_driver_sql(f"{explain} {statement}", parameters).mappings().all()
        for step in plan:
            shown = f"{statement}\n{[dict(row) for row in plan]}"
            if filled.dialect.name == "mysql":
                assert "filesort" not in (step["Extra"] or ""), shown
                assert step["type"] != "ALL" or not (step["table"] or "").startswith("stageout_"), shown
            else:
                assert "TEMP B-TREE" not in step["detail"], shown
                assert not re.match("SCAN stageout_", step["detail"]), shown


@pytest.mark.parametrize("filled", [MARIADB], indirect=True)
@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_reads_as_many_rows_as_it_takes_however_many_there_are(filled, claim):
    """By the server's own counters of the connection."""
    with filled.connect() as connection:
        before = reads(connection)
        CLAIMS[claim](connection)
        read = reads(connection) - before
    # 20 queues, each with a step through the index; a batch of 10 rows, which each statement of the claim finds again
    assert 0 < read < 200


def reads(connection):
    rows = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'")).all()
    return sum(int(value) for _, value in rows)


def test_what_is_looked_at_again_is_due_later_and_free(ledger):
    first, second, third = recorded(ledger, 3)
    (queue,) = waiting_queues(ledger, now=NOW)
    claimed = claim_queue(ledger, queue, WORKER, limit=3, now=NOW)
    waits = {first: timedelta(minutes=1), second: timedelta(minutes=2)}
    look_again(ledger, stageout_transfers, waits, claimed.claim, now=NOW, reasons={first: "the site does not answer"})
    look_again(ledger, stageout_transfers, {third: timedelta(hours=1)}, "of another", now=NOW)
    with reading(ledger) as connection:
        rows = {row.id: row for row in connection.execute(select(stageout_transfers))}
    assert {number: (rows[number].due_at - NOW, rows[number].claim) for number in waits} == {
        number: (wait, None) for number, wait in waits.items()
    }
    assert (rows[first].reason, rows[third].claim) == ("the site does not answer", claimed.claim)


def test_held_transfers_are_claimed_when_they_were_due_for_long_enough(ledger):
    recorded(ledger, 2)
    (queue,) = waiting_queues(ledger, now=NOW)
    held = timedelta(minutes=10)
    assert claim_queue(ledger, queue, WORKER, limit=2, now=NOW, held=held).rows == ()
    assert len(claim_queue(ledger, queue, WORKER, limit=2, now=NOW + held, held=held).rows) == 2
