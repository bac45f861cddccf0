"""Moves of transfers with their history, and the archive, on every kind of database."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from include.ledger.engine import reading, writing
from include.stageout.archive import MoveRecord, archive_transfers, forget_jobs, history
from include.stageout.claims import StageoutWorker, claim_queue, waiting_queues
from include.stageout.errors import MOVE_REFUSED
from include.stageout.jobs import NewTransferJob, record_job
from include.stageout.moves import TransferJobMove, TransferMove, move_jobs, move_transfers
from include.stageout.retry import TransferFailureClass
from include.stageout.states import StageoutComponent, TransferJobState, TransferState
from include.stageout.tables import stageout_archive, stageout_jobs, stageout_transfers
from tests.fakes.refused import refused
from tests.fakes.transfers import NOW, recorded, row_of, states

T, J, C, F = TransferState, TransferJobState, StageoutComponent, TransferFailureClass
WORKER = StageoutWorker("worker-1")


def minutes(number):
    return NOW + timedelta(minutes=number)


def go(ledger, ids, current, to, by, *, at=0, reason="because", wait=timedelta()):
    moves = [TransferMove(number, current, to, reason, wait) for number in ids]
    return move_transfers(ledger, moves, by, now=minutes(at))


def submitted(ledger, count=2, **fields):
    ids = recorded(ledger, count, **fields)
    (queue,) = waiting_queues(ledger, now=NOW)
    claimed = claim_queue(ledger, queue, WORKER, limit=count, now=NOW)
    job, _ = record_job(
        ledger, NewTransferJob(queue, "fts", "ab" * 16, f"{ids[0]:036x}"), ids, WORKER, claim=claimed.claim, now=NOW
    )
    go(ledger, ids, T.CLAIMED, T.SUBMITTED, C.SUBMITTER, reason="accepted")
    move_jobs(ledger, [TransferJobMove(job, J.SUBMITTING, J.SUBMITTED, "accepted")], C.SUBMITTER, now=NOW)
    return ids, job


def test_each_move_is_stamped_with_component_time_and_reason(ledger):
    (number, other), _ = submitted(ledger)
    go(ledger, [number], T.SUBMITTED, T.RETRY_WAIT, C.MONITOR, at=1, reason="TRANSFER [110] " + "x" * 3000)
    found = history(ledger, number)
    assert [(one.before, one.state, one.component, one.moved_at) for one in found] == [
        ("new", "claimed", "submitter", NOW),
        ("claimed", "submitted", "submitter", NOW),
        ("submitted", "retry-wait", "monitor", minutes(1)),
    ]
    assert found[-1].reason == ("TRANSFER [110] " + "x" * 3000)[:2048]
    assert len(history(ledger, other)) == 2


def test_a_move_ends_the_claim_and_says_when_something_happens_next(ledger):
    (number, _), job = submitted(ledger)
    before = row_of(ledger, number)
    assert (before.claim, before.claimed_by, before.job) == (None, None, job)
    go(ledger, [number], T.SUBMITTED, T.RETRY_WAIT, C.MONITOR, at=1, wait=timedelta(minutes=20))
    waiting = row_of(ledger, number)
    assert (waiting.due_at, waiting.moved_at, waiting.retries) == (minutes(21), minutes(1), 1)
    go(ledger, [number], T.RETRY_WAIT, T.NEW, C.RETRY, at=21)
    again = row_of(ledger, number)
    assert (again.retries, again.job, again.state) == (1, None, "new")


def test_a_missing_credential_spends_no_retry_and_a_resubmit_gives_them_back(ledger):
    (number, other), _ = submitted(ledger)
    go(ledger, [number], T.SUBMITTED, T.NEEDS_CREDENTIAL, C.MONITOR)
    go(ledger, [number], T.NEEDS_CREDENTIAL, T.NEW, C.RETRY)
    assert row_of(ledger, number).retries == 0
    go(ledger, [other], T.SUBMITTED, T.RETRY_WAIT, C.MONITOR)
    go(ledger, [other], T.RETRY_WAIT, T.KILLED, C.PERSON)
    go(ledger, [other], T.KILLED, T.NEW, C.PERSON)
    assert row_of(ledger, other).retries == 0


def test_a_move_from_a_state_of_before_changes_nothing_and_the_others_are_made(ledger):
    ids, _ = submitted(ledger)
    go(ledger, ids[:1], T.SUBMITTED, T.KILLING, C.PERSON)
    assert go(ledger, ids, T.SUBMITTED, T.ACTIVE, C.MONITOR) == {ids[1]}
    assert go(ledger, ids, T.SUBMITTED, T.ACTIVE, C.MONITOR) == frozenset(), "the answer was lost, and it is made again"
    assert states(ledger) == {ids[0]: T.KILLING, ids[1]: T.ACTIVE}
    assert [len(history(ledger, number)) for number in ids] == [3, 3]


def test_an_illegal_move_refuses_all_of_them(ledger):
    ids, job = submitted(ledger)
    moves = [
        TransferMove(ids[0], T.SUBMITTED, T.ACTIVE, "legal"),
        TransferMove(ids[1], T.SUBMITTED, T.CLEANED, "illegal"),
    ]
    with refused(MOVE_REFUSED):
        move_transfers(ledger, moves, C.MONITOR, now=NOW)
    with refused(MOVE_REFUSED):
        move_jobs(ledger, [TransferJobMove(job, J.SUBMITTED, J.SUBMITTING, "back")], C.MONITOR, now=NOW)
    assert set(states(ledger).values()) == {T.SUBMITTED}


@pytest.mark.parametrize("dataset", ["/a/b/USER", None])
def test_only_what_needs_no_registration_is_cleaned_without_it(ledger, dataset):
    ids, _ = submitted(ledger, dataset=dataset)
    go(ledger, ids, T.SUBMITTED, T.COPIED, C.MONITOR)
    go(ledger, ids, T.COPIED, T.DONE, C.REPORTER)
    right, wrong = (T.REGISTERED, T.CLEANING) if dataset else (T.CLEANING, T.REGISTERED)
    with refused(MOVE_REFUSED, subject=f"transfer {ids[0]}"):
        go(ledger, ids, T.DONE, wrong, C.REGISTER)
    assert go(ledger, ids, T.DONE, right, C.REGISTER) == frozenset(ids)


def failed(ledger):
    ids, job = submitted(ledger, dataset="/a/b/USER")
    go(ledger, ids[:1], T.SUBMITTED, T.FAILED, C.MONITOR, at=1, reason="SOURCE [2] gone")
    go(ledger, ids[1:], T.SUBMITTED, T.FAILED, C.MONITOR, at=30, reason="SOURCE [2] gone")
    move_jobs(ledger, [TransferJobMove(job, J.SUBMITTED, J.FAILED, "all failed")], C.MONITOR, now=minutes(30))
    return ids, job


def test_what_ended_long_ago_is_archived_with_its_history(ledger):
    ids, _ = failed(ledger)
    before, kept = history(ledger, ids[0]), row_of(ledger, ids[0])
    assert archive_transfers(ledger, T.FAILED, before=minutes(10), limit=10) == 1
    assert states(ledger) == {ids[1]: T.FAILED}
    assert history(ledger, ids[0]) == before
    assert isinstance(before[0], MoveRecord)
    with reading(ledger) as connection:
        archived = connection.execute(select(stageout_archive)).one()._mapping
    same = ("id", "request", "source_name", "destination_name", "dataset", "state", "reason", "created_at", "moved_at")
    assert {name: archived[name] for name in same} == {name: kept._mapping[name] for name in same}
    assert (archived["owner"], archived["source"], archived["fts_id"]) == ("ann", "pisa", f"{ids[0]:036x}")
    assert archive_transfers(ledger, T.FAILED, before=minutes(60), limit=10) == 1
    assert archive_transfers(ledger, T.FAILED, before=minutes(60), limit=10) == 0


def test_the_destination_of_a_transfer_is_free_only_when_no_copy_of_it_can_write_any_more(ledger):
    ids, _ = failed(ledger)
    changes = update(stageout_transfers).values(may_write_until=minutes(90))
    writing(ledger, lambda connection: connection.execute(changes))
    assert archive_transfers(ledger, T.FAILED, before=minutes(89), limit=10) == 0
    assert archive_transfers(ledger, T.FAILED, before=minutes(90), limit=10) == len(ids)


def test_a_job_is_deleted_after_all_its_transfers_are_archived(ledger):
    _, job = failed(ledger)
    archive_transfers(ledger, T.FAILED, before=minutes(10), limit=10)
    kept = select(stageout_jobs.c.id).where(stageout_jobs.c.id == job)
    # checked, and again a day later
    assert [forget_jobs(ledger, J.FAILED, before=minutes(60), limit=10) for _ in range(2)] == [1, 0]
    with reading(ledger) as connection:
        assert connection.scalars(kept).all() == [job]
    archive_transfers(ledger, T.FAILED, before=minutes(60), limit=10)
    assert forget_jobs(ledger, J.FAILED, before=minutes(60 + 24 * 60), limit=10) == 1
    with reading(ledger) as connection:
        assert connection.scalars(kept).all() == []


def test_what_has_not_ended_is_not_archived(ledger):
    for state in set(T) - {T.CLEANED, T.KEPT, T.FAILED, T.KILLED, T.RETRACTED}:
        with refused(MOVE_REFUSED):
            archive_transfers(ledger, state, before=NOW, limit=10)
    with refused(MOVE_REFUSED):
        forget_jobs(ledger, J.SUBMITTING, before=NOW, limit=10)


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.server("mariadbd"))], indirect=True)
def test_a_move_that_deadlocks_is_made_again(ledger):
    """The two transactions lock two rows in opposite order: the server ends one, which is repeated."""
    ids, _ = submitted(ledger)
    others = recorded(ledger, 100)
    both = threading.Barrier(2, timeout=60)
    tries: list[int] = []
    columns = stageout_transfers.c

    def opposite():
        with ledger.connect() as connection, connection.begin():
            # it changes more rows than the move: the server ends the transaction that has changed less
            more = columns.id.in_([*others, ids[1]])
            connection.execute(update(stageout_transfers).where(more).values(user_job="other"))
            both.wait()
            connection.execute(update(stageout_transfers).where(columns.id == ids[0]).values(user_job="other"))

    def work(connection):
        tries.append(len(tries))
        first = [TransferMove(ids[0], T.SUBMITTED, T.ACTIVE, "first")]
        moved = move_transfers(connection, first, C.MONITOR, now=NOW)
        if len(tries) == 1:
            both.wait()
        second = [TransferMove(ids[1], T.SUBMITTED, T.ACTIVE, "second")]
        return moved | move_transfers(connection, second, C.MONITOR, now=NOW)

    thread = threading.Thread(target=opposite, daemon=True)
    thread.start()
    assert writing(ledger, work) == frozenset(ids)
    thread.join(60)
    assert len(tries) == 2
    assert {states(ledger)[number] for number in ids} == {T.ACTIVE}
    assert [len(history(ledger, number)) for number in ids] == [3, 3], "recorded once"


def test_moves_that_differ_in_everything_are_recorded_together(ledger):
    ids, _ = submitted(ledger, 4)
    moves = [
        TransferMove(ids[0], T.SUBMITTED, T.RETRY_WAIT, "one", timedelta(minutes=1), failure=F.TIMEOUT),
        TransferMove(ids[1], T.SUBMITTED, T.RETRY_WAIT, "two", timedelta(minutes=2), may_overwrite=True),
        TransferMove(ids[2], T.SUBMITTED, T.RETRY_WAIT, "three", spends=False),
        TransferMove(ids[3], T.SUBMITTED, T.COPIED, "four", copied_at=minutes(-1), size=7, checksum="adler32:00000007"),
    ]
    assert move_transfers(ledger, moves, C.MONITOR, now=NOW) == set(ids)
    found = [row_of(ledger, number) for number in ids]
    assert [one.reason for one in found] == ["one", "two", "three", "four"]
    assert [one.due_at for one in found] == [minutes(1), minutes(2), NOW, NOW]
    assert [one.failure for one in found] == ["timeout", None, None, None]
    assert [bool(one.may_overwrite) for one in found] == [False, True, False, False]
    assert [one.retries for one in found] == [1, 1, 0, 0]
    assert (found[3].copied_at, found[3].size, found[3].checksum) == (minutes(-1), 7, "adler32:00000007")
