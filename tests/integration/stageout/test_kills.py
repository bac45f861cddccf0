"""A component that is killed at any write loses nothing and doubles nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from include.stageout.components.monitor import monitor
from include.stageout.places.facts import FileFacts
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
