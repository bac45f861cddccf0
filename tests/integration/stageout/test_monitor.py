"""The monitor against an FTS server: each state of a file, kills, and servers that forget, fail or talk nonsense."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.fts.states import FailureReason
from include.settings.sites import ChecksumMode
from include.settings.stageout import StageoutSettings
from include.stageout.claims import StageoutWorker, claim_jobs
from include.stageout.components.monitor import monitor
from include.stageout.components.retry_manager import kill
from include.stageout.errors import MOVE_REFUSED
from include.stageout.jobs import declare_dead
from include.stageout.places.facts import FileFacts
from include.stageout.places.verify import READ_IN_PASS
from include.stageout.states import TransferJobState as J
from tests.fakes.refused import refused
from tests.fakes.transferloop import ADLER32, mock_site

BEGAN, ENDED = "2026-11-23T12:00:01", "2026-11-23T12:00:09"
EXISTS = "DESTINATION [17] Destination file exists and overwrite is not enabled"


def test_files_are_followed_long_before_their_job_ends(loop):
    first, second, _ = loop.submitted(3)
    loop.answer_files([first], "FINISHED", finish_time=ENDED)
    loop.answer_files([second], "ACTIVE", start_time=BEGAN)
    report = loop.monitor()
    assert loop.states() == ["copied", "active", "submitted"]
    assert (report.moved, report.ended) == ({"copied": 1, "active": 1}, 0)
    assert loop.row(first).copied_at == datetime(2026, 11, 23, 12, 0, 9, tzinfo=UTC)
    assert loop.jobs()[0].state == "active"


def test_a_job_ends_with_its_files(loop):
    ids = loop.submitted(4)
    loop.answer_files(ids[:2], "FINISHED", finish_time=ENDED)
    loop.answer_files(ids[2:], "FAILED", reason="SOURCE [2] Result HTTP 404 : File not found  after 1 attempts")
    report = loop.monitor()
    assert (loop.states(), report.ended) == (["copied", "copied", "failed", "failed"], 1)
    assert (loop.jobs()[0].state, loop.row(ids[2]).failure) == ("finished-dirty", "source-missing")
    assert loop.monitor().rows == 0


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("FAILED", "TRANSFER [5] copy broke", ("retry-wait", "other", 1, True)),
        ("FAILED", "SOURCE [112] Result Could not connect", ("retry-wait", "connection", 1, False)),
        ("FAILED", "TRANSFER [5] the proxy has expired", ("needs-credential", "credential", 0, True)),
        ("CANCELED", "Job has been canceled because it stayed in the queue for too long",
         ("retry-wait", "queue-timeout", 1, False)),
    ],
    ids=["a copy that broke", "before the copy", "an expired proxy", "too long in the queue"],
)  # fmt: skip
def test_the_reason_decides_what_follows_and_whether_the_next_attempt_may_overwrite(loop, state, reason, expected):
    (number,) = loop.submitted()
    started = {} if state == "CANCELED" else {"start_time": BEGAN}
    loop.answer_files([number], state, reason=reason, **started)
    loop.monitor()
    row = loop.row(number)
    assert (row.state, row.failure, row.retries, bool(row.may_overwrite)) == expected


@pytest.mark.parametrize(
    ("facts", "checksum", "state"),
    [
        (FileFacts(10, ADLER32), ChecksumMode.ADLER32, "done"),
        (FileFacts(10, "adler32:0a1b2c3e"), ChecksumMode.ADLER32, "failed"),
        (FileFacts(10, None), ChecksumMode.NONE, "failed"),
        (None, ChecksumMode.ADLER32, "retry-wait"),
    ],
)
def test_an_existing_destination_is_adopted_only_if_its_storage_says_that_it_is_the_same(loop, facts, checksum, state):
    """FTS reports nothing of what it found there."""
    loop.sites["bari"] = mock_site("bari", checksum=checksum)
    (number,) = loop.submitted()
    if facts is not None:
        loop.places["bari"].files[loop.row(number).destination_name] = facts
    loop.answer_files([number], "FAILED", reason=EXISTS, start_time=BEGAN)
    loop.monitor()
    assert loop.row(number).state == "copied"
    loop.report()
    assert (loop.row(number).state, bool(loop.row(number).may_overwrite)) == (state, False)


def test_a_kill_of_all_that_a_job_still_does_cancels_the_job(loop):
    ids = loop.submitted(2)
    loop.answer_files(ids, "ACTIVE", start_time=BEGAN)
    loop.monitor()
    kill(loop.ledger, by="ann", now=loop.now(), ids=ids[:1])
    loop.monitor()
    paths = [request.path for request in loop.server.asked if request.method == "DELETE"]
    assert [path.count("/files/") for path in paths] == [1], "the other file goes on"
    kill(loop.ledger, by="ann", now=loop.now(), ids=ids[1:])
    loop.server.asked.clear()
    loop.monitor()
    paths = [request.path for request in loop.server.asked if request.method == "DELETE"]
    assert [path.count("/files/") for path in paths] == [0], "FTS kills only copies of whole jobs"


def test_a_canceled_copy_is_retried_when_it_has_ended(loop):
    (number,) = loop.submitted()
    loop.answer_files([number], "CANCELED", start_time=BEGAN)
    (job,) = loop.server.jobs.values()
    job["job_finished"] = f"{loop.at + timedelta(seconds=5):%Y-%m-%dT%H:%M:%S}"
    loop.monitor()
    assert (loop.states(), loop.jobs()[0].state) == (["submitted"], "submitted")
    loop.answer_files([number], "CANCELED", finish_time=ENDED)
    loop.monitor()
    assert (loop.states(), loop.jobs()[0].state) == (["retry-wait"], "canceled")


def test_a_storage_whose_certificate_has_expired_is_not_tried_for_ever(loop):
    (number,) = loop.submitted()
    seen = []
    for _ in range(9):
        loop.answer_files([number], "FAILED", reason="SOURCE [5] certificate has expired", start_time=BEGAN)
        loop.monitor()
        seen.append((loop.row(number).state, loop.row(number).retries))
        loop.later(hours=7)
        loop.retry()
        loop.submit()
    assert seen[:3] == [("needs-credential", 0), ("retry-wait", 1), ("retry-wait", 2)]
    assert loop.row(number).state == "failed"
    assert "certificate has expired" in loop.row(number).reason


def test_a_kill_is_confirmed_by_fts(loop):
    ids = loop.submitted(2)
    done = kill(loop.ledger, by="ann", now=loop.now(), ids=ids[:1], owner="ann")
    assert (done.killed, done.killing) == (frozenset(), {ids[0]})
    # at once: the job need not be due
    monitor(loop.stageout, now=loop.now, limit=10)
    assert loop.fts_files()[ids[0]]["file_state"] == "CANCELED"
    loop.monitor()
    assert loop.states() == ["killed", "submitted"]


def test_a_kill_that_comes_too_late_kills_nothing(loop):
    (number,) = loop.submitted()
    loop.answer_files([number], "FINISHED", finish_time=ENDED)
    kill(loop.ledger, by="ann", now=loop.now(), owner="ann")
    loop.monitor()
    assert loop.states() == ["copied"]


def test_what_a_lost_job_copied_is_not_copied_again(loop):
    there, absent = loop.submitted(2)
    loop.places["bari"].files[loop.row(there).destination_name] = FileFacts(10, ADLER32)
    loop.server.jobs.clear()
    loop.monitor()
    assert (loop.states(), loop.jobs()[0].state) == (["copied", "retry-wait"], "lost")
    assert not loop.row(absent).may_overwrite


def test_a_large_copy_of_a_lost_job_is_read_by_no_monitor(loop, monkeypatch):
    loop.sites["bari"] = mock_site("bari", checksum="read-back")
    same, other = loop.submitted(2, size=READ_IN_PASS + 1)
    for number, size in ((same, READ_IN_PASS + 1), (other, READ_IN_PASS + 2)):
        loop.places["bari"].files[loop.row(number).destination_name] = FileFacts(size, ADLER32)
    look = loop.places["bari"].look

    def unread(names, *, checksum):
        assert checksum is ChecksumMode.NONE
        return look(names, checksum=checksum)

    monkeypatch.setattr(loop.places["bari"], "look", unread)
    loop.server.jobs.clear()
    loop.monitor()
    assert (loop.states(), loop.jobs()[0].state) == (["copied", "retry-wait"], "lost")


def test_a_lost_job_waits_for_a_destination_that_cannot_be_asked(loop):
    loop.submitted()
    loop.places["bari"].broken = FailureReason(None, 110, "no reply in time")
    loop.server.jobs.clear()
    loop.monitor()
    assert (loop.states(), loop.jobs()[0].state) == (["submitted"], "submitted")
    loop.places["bari"].broken = None
    loop.monitor()
    assert (loop.states(), loop.jobs()[0].state) == (["retry-wait"], "lost")


def test_lost_jobs_with_a_slow_destination_are_compared_by_one_monitor(loop, monkeypatch):
    loop.settings = StageoutSettings(files_per_job=1)
    loop.submitted(4)
    loop.server.jobs.clear()
    looks, taken = loop.places["bari"].look, []

    def look(names, *, checksum):
        loop.later(minutes=2)
        taken.append(len(claim_jobs(loop.ledger, J.SUBMITTED, StageoutWorker("other"), limit=9, now=loop.at).rows))
        return looks(names, checksum=checksum)

    monkeypatch.setattr(loop.places["bari"], "look", look)
    loop.monitor()
    assert (loop.states(), taken) == (["retry-wait"] * 4, [0] * 4)


def test_an_archived_job_has_the_last_word(loop):
    (number,) = loop.submitted()
    (job,) = loop.server.jobs.values()
    loop.answer_files([number], "FINISHED", finish_time=ENDED)
    loop.server.jobs.clear()
    loop.server.answer("GET", "/archive/", 200, job)
    loop.monitor()
    assert (loop.states(), loop.jobs()[0].state) == (["copied"], "finished")


def test_of_many_jobs_one_that_is_unknown_troubles_no_other(loop):
    first, second = loop.submitted()[0], loop.submitted(owner="bob")[0]
    loop.answer_files([first], "FINISHED", finish_time=ENDED)
    del loop.server.jobs[loop.jobs()[1].fts_id]
    loop.monitor()
    assert (loop.row(first).state, loop.row(second).state) == ("copied", "retry-wait")


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [(503, b"", "fts-failed"), (200, b"<html>hello</html>", "fts-reply-unexpected"), (200, [], "fts-reply-unexpected")],
    ids=["down", "html", "empty"],
)
def test_jobs_stay_with_a_server_that_gives_no_answer(loop, status, body, fault):
    loop.submitted(2)
    loop.server.answer("GET", "/jobs/", status, body)
    report = loop.monitor()
    assert (report.faults, loop.states(), loop.jobs()[0].state) == ({fault: 1}, ["submitted"] * 2, "submitted")
    loop.later(minutes=2)
    assert loop.monitor().faults == {}


def test_a_reply_without_some_files_changes_nothing_for_them(loop):
    loop.submitted()
    (job,) = loop.server.jobs.values()
    job["files"][0]["file_metadata"] = {"transfer": "x"}
    loop.monitor()
    assert loop.states() == ["submitted"]
    job["job_state"] = "FINISHED"
    loop.monitor()
    assert loop.states() == ["retry-wait"]


def test_a_dead_job_gives_its_transfers_back_when_its_copies_have_ended(loop):
    ids = loop.submitted(2)
    fts_id = loop.jobs()[0].fts_id
    assert declare_dead(loop.ledger, fts_id, by="operator", now=loop.now(), margin=timedelta(minutes=10)) == set(ids)
    assert [loop.row(number).retries for number in ids] == [0, 0]
    loop.retry()
    loop.submit()
    assert loop.states() == ["retry-wait"] * 2
    assert "an earlier copy may still write" in loop.row(ids[0]).reason
    # 600 s, 2 s for up to a MB, and the margin
    loop.later(seconds=1202)
    loop.retry()
    loop.submit()
    assert (loop.states(), [row.state for row in loop.jobs()]) == (["submitted"] * 2, ["dead", "submitted"])
    with refused(MOVE_REFUSED):
        declare_dead(loop.ledger, fts_id, by="operator", now=loop.now(), margin=timedelta(minutes=10))


def test_quiet_jobs_are_asked_for_less_often(loop):
    loop.submitted()
    waits = []
    for _ in range(30):
        loop.at = loop.jobs()[0].due_at
        monitor(loop.stageout, now=loop.now, limit=10)
        waits.append((loop.jobs()[0].due_at - loop.at).total_seconds())
    assert (waits[0], waits[-1]) == (10, 120)
    assert waits == sorted(waits)


def test_what_a_slow_monitor_found_out_is_not_recorded(loop, monkeypatch):
    (number,) = loop.submitted()
    loop.answer_files([number], "FAILED", reason="TRANSFER [5] copy broke", start_time=BEGAN)
    client = loop.stageout.fts("fts_default", "ann")
    asked = client.status

    def slow(ids, **kwargs):
        answers = asked(ids, **kwargs)
        monkeypatch.setattr(client, "status", asked)
        # meanwhile the claim ends, and another monitor is through with the job; the transfer is in its next one
        loop.later(minutes=4)
        loop.monitor()
        loop.later(hours=1)
        loop.retry()
        loop.submit()
        return answers

    monkeypatch.setattr(client, "status", slow)
    loop.monitor()
    assert (loop.states(), loop.row(number).retries) == (["submitted"], 1)
