"""What has ended is archived and counted once, and what is of no use any more is deleted."""

from __future__ import annotations

import csv
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert, select, update

from include.ledger.engine import writing
from include.settings.stageout import StageoutSettings
from include.stageout.archive import KEYS_KEPT, OTHER_LINKS, ArchiveReport, archive, summarise
from include.stageout.blocks import close_workflow
from include.stageout.claims import StageoutWorker
from include.stageout.files import digest_of
from include.stageout.moves import note_moves
from include.stageout.requests import record_request
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.status import TransferFilter, count_archived, sum_counts
from include.stageout.sums import export_csv, read_sums
from include.stageout.tables import (
    stageout_archive,
    stageout_blocks,
    stageout_jobs,
    stageout_queues,
    stageout_requests,
    stageout_transfers,
    stageout_workflows,
)
from tests.fakes.places import stageout_of
from tests.fakes.transfers import NOW, count_rows, recorded, request_of, states

T = TransferState
HOURS, DAYS = timedelta(hours=24), timedelta(days=7)
END = NOW + timedelta(days=1)


@pytest.fixture
def stageout(ledger):
    return stageout_of(ledger, place=None, worker=StageoutWorker("worker-1"))


def ended(ledger, count, state, at, *, failure=None, **fields):
    """The ids of so many transfers that ended then."""
    ids = recorded(ledger, count, **{"size": 10, **fields})
    submitted = {"state": T.SUBMITTED.value, "reason": "in a job", "moved_at": NOW + timedelta(seconds=10)}
    values = {
        "state": state.value,
        "due_at": at,
        "moved_at": at,
        "failure": failure,
        "copied_at": NOW + timedelta(seconds=20),
    }

    def work(connection):
        theirs = update(stageout_transfers).where(stageout_transfers.c.id.in_(ids))
        connection.execute(theirs.values(submitted))
        note_moves(connection, stageout_transfers, ids, T.CLAIMED, StageoutComponent.SUBMITTER)
        connection.execute(theirs.values(values))

    writing(ledger, work)
    return ids


def test_an_id_is_never_used_again(stageout, ledger):
    ids = ended(ledger, 2, T.KEPT, NOW)
    assert archive(stageout, now=lambda: NOW + HOURS, limit=100).transfers == 2
    assert min(recorded(ledger, 2)) > max(ids)


def test_complete_transfers_are_archived_after_hours_and_failed_ones_after_days(stageout, ledger):
    for state in (T.CLEANED, T.KEPT, T.FAILED, T.KILLED):
        ended(ledger, 2, state, END)
    waiting = recorded(ledger, 1)
    early = END + HOURS - timedelta(seconds=1)
    assert archive(stageout, now=lambda: early, limit=100).transfers == 0
    assert archive(stageout, now=lambda: END + HOURS, limit=3).transfers == 3
    assert archive(stageout, now=lambda: END + HOURS, limit=3).transfers == 1
    assert set(states(ledger).values()) == {T.FAILED, T.KILLED, T.NEW}
    assert archive(stageout, now=lambda: END + DAYS, limit=100).transfers == 4
    assert states(ledger) == dict.fromkeys(waiting, T.NEW)
    counts = count_archived(ledger, TransferFilter(owner="ann"))
    assert sum_counts(counts, lambda count: count.state) == dict.fromkeys((T.CLEANED, T.KEPT, T.FAILED, T.KILLED), 2)


def test_each_transfer_is_counted_once_by_archivists_in_parallel(stageout, ledger):
    for owner in ("ann", "bob", "eve"):
        ended(ledger, 50, T.CLEANED, END, owner=owner)
        ended(ledger, 10, T.FAILED, END, owner=owner, failure="quota")
    together = threading.Barrier(4, timeout=60)

    def work(_):
        together.wait()
        return sum(archive(stageout, now=lambda: END + DAYS, limit=20).transfers for _ in range(12))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 180
    day = END.replace(hour=0, minute=0, second=0, microsecond=0)
    found = list(read_sums(ledger, since=day, until=day + timedelta(days=1)))
    assert len(found) == 6
    assert sum(sums.files for _, sums in found) == 180
    assert {(key.failure, sums.files, sums.bytes) for key, sums in found} == {(None, 50, 500), ("quota", 10, 100)}
    complete = next(sums for key, sums in found if key.state == "cleaned")
    assert (complete.waited_s, complete.copied_s) == (500.0, 1000.0)
    assert list(read_sums(ledger, since=day + timedelta(days=1), until=day + timedelta(days=9))) == []


def test_sums_are_read_in_pieces_and_written_as_csv(stageout, ledger, monkeypatch):
    monkeypatch.setattr("include.stageout.sums.AT_ONCE", 2)
    for number in range(5):
        ended(ledger, 1, T.CLEANED, END + timedelta(days=number % 2), owner=f"=user{number}")
    archive(stageout, now=lambda: END + DAYS, limit=100)
    lines = list(export_csv(ledger, since=NOW - DAYS, until=NOW + DAYS))
    found = list(csv.DictReader(lines))
    assert [row["day"] for row in found] == ["2026-11-24"] * 3 + ["2026-11-25"] * 2
    assert {row["owner"] for row in found} == {f"'=user{number}" for number in range(5)}
    assert (found[0]["files"], found[0]["waited_s"], found[0]["bytes_per_s"]) == ("1", "10.000", "1")
    own = list(export_csv(ledger, since=NOW - DAYS, until=NOW + DAYS, owner="=user3"))
    assert len(own) == 2


def test_a_day_is_summarised_when_its_complete_transfers_are_archived(stageout, ledger):
    ended(ledger, 3, T.CLEANED, END)
    ended(ledger, 1, T.CLEANED, END, source="bari", destination="pisa")
    ended(ledger, 2, T.FAILED, END, failure="quota")
    archive(replace(stageout, settings=StageoutSettings(resubmit_days=0)), now=lambda: END + HOURS, limit=100)
    later = END.replace(hour=0) + timedelta(days=2, hours=1)
    summary = summarise(stageout, now=lambda: later, limit=1)
    assert summary.day.date() == END.date()
    assert (summary.complete.files, summary.complete.bytes, summary.failed) == (4, 40, {"quota": 2})
    assert {link: sums.files for link, sums in summary.links.items()} == {("pisa", "bari"): 3, OTHER_LINKS: 1}
    assert summarise(stageout, now=lambda: NOW, limit=1).links == {}


def test_jobs_blocks_requests_and_workflows_go_after_their_transfers(stageout, ledger):
    request = request_of(1)
    record_request(ledger, request, now=NOW)
    close_workflow(ledger, "ann", "workflow", now=NOW)

    def work(connection):
        queue = connection.scalar(select(stageout_queues.c.id))
        common = {"reason": "", "due_at": END, "created_at": NOW, "moved_at": END, "files": 1}
        job = {"sid": "0" * 32, "fts_id": "1" * 36, "server": "fts", "queue": queue, "state": "finished"}
        block = {
            "digest": digest_of("x"),
            "owner": "ann",
            "workflow": "workflow",
            "dataset": "d",
            "name": "d#1",
            "bytes": 1,
        }
        job_id = connection.execute(insert(stageout_jobs).values(job | common)).lastrowid
        block_id = connection.execute(
            insert(stageout_blocks).values(block | common | {"state": "registered"})
        ).lastrowid
        values = {"state": "failed", "due_at": END, "moved_at": END, "job": job_id, "block": block_id}
        connection.execute(update(stageout_transfers).values(values))

    writing(ledger, work)
    # checked once a day until the transfer is archived, and not by every pass
    for looked_at in (1, 0):
        early = archive(stageout, now=lambda: END + DAYS - HOURS, limit=10)
        assert (early, count_rows(ledger, stageout_jobs)) == (ArchiveReport(jobs=looked_at), 1)
    assert archive(stageout, now=lambda: END + DAYS, limit=10) == ArchiveReport(transfers=1, jobs=1, blocks=1)
    assert record_request(ledger, request, now=END + DAYS).repeated
    over = NOW + DAYS + KEYS_KEPT + timedelta(seconds=1)
    assert archive(stageout, now=lambda: over, limit=10) == ArchiveReport(requests=1, workflows=1)
    assert [count_rows(ledger, table) for table in (stageout_requests, stageout_workflows, stageout_archive)] == [
        0,
        0,
        1,
    ]


def test_a_request_with_a_transfer_that_waits_is_kept(stageout, ledger):
    recorded(ledger, 1)
    assert archive(stageout, now=lambda: NOW + 10 * DAYS, limit=10) == ArchiveReport()
    assert count_rows(ledger, stageout_requests) == 1
