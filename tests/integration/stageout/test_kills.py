"""A component that is killed at any write loses nothing and doubles nothing."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy import event

from include.fts.states import FileState
from include.settings.stageout import StageoutSettings
from include.stageout.components.monitor import monitor
from include.stageout.components.retry_manager import kill_workflow
from include.stageout.places.facts import FileFacts
from tests.fakes.ftsservice import FtsService
from tests.fakes.transferloop import ADLER32


class Killed(BaseException):
    """Nothing that handles errors handles it."""


@contextmanager
def killed_at(ledger, write):
    """The process dies before the commit of this write; True if it came to that."""
    seen = []

    def count(connection):
        if connection.get_execution_options().get("nightshift_write"):
            seen.append(write)
            if len(seen) == write:
                raise Killed

    event.listen(ledger, "commit", count)
    try:
        yield seen
    except Killed:
        pass
    finally:
        event.remove(ledger, "commit", count)


def fts_ends(loop):
    """FTS finishes what it has; of the first attempts every third one fails."""
    for number, file in loop.fts_files().items():
        if file["file_state"] == "SUBMITTED":
            failed = number % 3 == 0 and loop.row(number).retries == 0
            reason = {"reason": "TRANSFER [5] copy broke"} if failed else {}
            loop.answer_files([number], "FAILED" if failed else "FINISHED", start_time="2026-11-23T12:00:01", **reason)
            if not failed:
                loop.places["bari"].files[loop.row(number).destination_name] = FileFacts(10, ADLER32)


def passes(loop):
    """One batch of each component."""
    loop.retry()
    loop.submit()
    fts_ends(loop)
    loop.later(seconds=11)
    monitor(loop.stageout, now=loop.now, limit=100)
    loop.report()


def test_a_kill_at_each_write_loses_and_doubles_nothing(loop):
    for write in range(1, 100):
        ids = loop.request(3)
        with killed_at(loop.ledger, write) as seen:
            passes(loop)
        for _ in range(6):
            if {loop.row(number).state for number in ids} == {"done"}:
                break
            loop.later(minutes=4)
            passes(loop)
            loop.later(hours=1)
        assert {loop.row(number).state for number in ids} == {"done"}, f"killed at write {write}"
        if len(seen) < write:
            break
    else:
        pytest.fail("the loop never came to its end")
    files = Counter(
        file["file_metadata"]["transfer"]
        for job in loop.server.jobs.values() for file in job["files"] if file["file_state"] == "FINISHED"
    )  # fmt: skip
    assert set(files.values()) == {1}
    assert set(files) == {row.id for row in loop.rows()}
    assert {row.state for row in loop.jobs()} <= {"finished", "failed", "finished-dirty", "refused"}


def test_two_halves_of_a_pass_at_the_same_time_take_each_file_once(loop):
    loop.settings = StageoutSettings(files_per_job=10)
    ids = loop.request(20)
    client = loop.stageout.fts("fts_default", "ann")
    sent = client.submit

    def meanwhile(job, name=None):
        # the other submitter runs while our request is on its way
        client.submit = sent
        loop.submit()
        return sent(job, name)

    client.submit = meanwhile
    loop.submit()
    assert loop.states() == ["submitted"] * 20
    assert len(loop.fts_files()) == sum(len(job["files"]) for job in loop.server.jobs.values()) == len(ids)


def test_a_kill_of_a_whole_workflow_is_ended_at_fts(loop, tmp_path):
    with FtsService(tmp_path, "--mean", "600") as service:
        loop.server, loop.at = service, datetime.now(UTC)
        loop.settings = StageoutSettings(files_per_job=20)
        loop.submitted(50)
        loop.monitor()
        assert {"submitted", "active"} >= set(loop.states())
        loop.request(5)
        done = kill_workflow(loop.ledger, "ann", "workflow", by="ann", now=loop.now())
        assert (len(done.killed), len(done.killing)) == (5, 50)
        for _ in range(500):
            loop.monitor()
            if set(loop.states()) == {"killed"}:
                break
            threading.Event().wait(0.02)
        assert loop.states() == ["killed"] * 55
        client = loop.stageout.fts("fts_default", "ann")
        answers = client.status([job.fts_id for job in loop.jobs()])
    files = [file.file_state for job in answers.jobs.values() for file in job.files]
    assert (len(files), set(files)) == (50, {FileState.CANCELED})
    assert {job.state for job in loop.jobs()} == {"canceled"}
