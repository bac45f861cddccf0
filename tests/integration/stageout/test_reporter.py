"""The reporter: what becomes of copies, by what the sites say of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from include.federation.records import reports_since
from include.fts.states import FailureReason
from include.settings.sites import ChecksumMode
from include.stageout.claims import StageoutWorker
from include.stageout.components.reporter import LONGEST_LOOK
from include.stageout.errors import CREDENTIAL_MISSING
from include.stageout.jobs import declare_dead
from include.stageout.places.facts import FileFacts
from include.stageout.places.verify import READ_IN_PASS
from tests.fakes.places import MemoryPlace
from tests.fakes.transferloop import ADLER32, mock_site

ENDED = "2026-11-23T12:00:09"
EXISTS = "DESTINATION [17] Destination file exists and overwrite is not enabled"


def copied(loop, count=1, **fields):
    """Ids of copies; the destinations have what the sources have."""
    ids = loop.submitted(count, **fields)
    loop.answer_files(ids, "FINISHED", finish_time=ENDED)
    loop.monitor()
    for number in ids:
        row = loop.row(number)
        loop.places["bari"].files[row.destination_name] = loop.places["pisa"].files[row.source_name]
    return ids


def test_a_copy_is_done_when_size_and_checksum_are_those_of_the_request(loop):
    (number,) = copied(loop)
    report = loop.report()
    assert (report.rows, report.moved, report.unknown) == (1, {"done": 1}, {})
    assert (loop.row(number).size, loop.row(number).checksum) == (10, ADLER32)
    assert loop.report().rows == 0


def test_what_the_request_does_not_say_is_read_at_the_source(loop):
    good, bad = copied(loop, 2, size=None, checksum=None)
    loop.places["bari"].files[loop.row(bad).destination_name] = FileFacts(10, "adler32:00000001")
    loop.report()
    assert [loop.row(number).state for number in (good, bad)] == ["done", "retry-wait"]
    assert (loop.row(good).size, loop.row(good).checksum) == (10, ADLER32)


def test_a_copy_that_differs_is_made_again_over_itself_and_so_is_a_missing_one(loop):
    differs, missing = copied(loop, 2)
    loop.places["bari"].files = {loop.row(differs).destination_name: FileFacts(9, ADLER32)}
    loop.report()
    row = loop.row(differs)
    assert (row.state, row.failure, bool(row.may_overwrite)) == ("retry-wait", "destination-checksum", True)
    corrupt = [result for result in reports_since(loop.ledger, loop.at) if result.failed]
    assert [(result.site, result.failed) for result in corrupt] == [("bari", 1)], "it counts for its site"
    assert loop.row(missing).state == "retry-wait"


def test_a_source_that_is_another_file_than_requested_is_not_copied_again(loop):
    """FTS does not compare the size of the request, and checksums only where it is asked to."""
    (number,) = copied(loop)
    row = loop.row(number)
    loop.places["pisa"].files[row.source_name] = loop.places["bari"].files[row.destination_name] = FileFacts(9, ADLER32)
    loop.report()
    row = loop.row(number)
    assert (row.state, row.failure, row.retries) == ("failed", "source-checksum", 0)
    reason = "size mismatch: the source has 9 bytes, and the request says 10"
    assert row.reason == f"source-checksum, not retried: {reason}"


STALLED = "No FTS server has updated the transfer status the last 900 seconds. Probably stalled"
SOURCE_DOWN = "SOURCE [112] Result Could not connect to server"
REFUSED = "DESTINATION [112] Result Could not connect to server"


@pytest.mark.parametrize(
    ("reason", "size", "later", "state"),
    [
        (STALLED, 9, 1, "retry-wait"), (STALLED, 9, -1, "failed"), (STALLED, 11, 1, "failed"),
        (STALLED, 9, 0.9, "failed"),
        (STALLED, 9, None, "failed"), (STALLED, 9, 1300, "failed"), (SOURCE_DOWN, 9, 1, "failed"),
        (REFUSED, 9, 1, "failed"),
    ],
)  # fmt: skip
def test_a_part_that_an_attempt_left_is_replaced_by_the_next_one(loop, reason, size, later, state):
    """The host of FTS died while it copied; the next attempt finds what it had written, and nothing of others.

    FTS leaves out fractions: a file that was written within the second in which the copy began may be older than it.
    """
    (number,) = loop.submitted()
    began = loop.at.replace(microsecond=0)
    loop.answer_files([number], "FAILED", reason=reason, start_time=f"{began:%Y-%m-%dT%H:%M:%S}", transfer_host="fts1")
    loop.monitor()
    assert loop.row(number).state == "retry-wait"
    loop.later(hours=1)
    loop.retry()
    loop.submit()
    place, name = loop.places["bari"], loop.row(number).destination_name
    written = None if later is None else began + timedelta(seconds=later)
    place.files[name] = FileFacts(size, "adler32:00000001", written)
    loop.answer_files([number], "FAILED", reason=EXISTS)
    loop.monitor()
    loop.report()
    row = loop.row(number)
    assert (row.state, bool(row.may_overwrite)) == (state, state == "retry-wait")


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize(
    ("seen", "later", "state"), [(True, 1, "retry-wait"), (True, -1, "failed"), (False, 1, "failed")]
)
def test_a_part_that_a_lost_job_left_is_replaced_if_fts_was_seen_to_copy_it(loop, seen, later, state, dead):
    (number,) = loop.submitted()
    if seen:
        loop.answer_files([number], "ACTIVE", start_time=f"{loop.at:%Y-%m-%dT%H:%M:%S}")
        loop.monitor()
    began = loop.at.replace(microsecond=0)
    if dead:
        declare_dead(loop.ledger, loop.jobs()[0].fts_id, by="operator", now=loop.now(), margin=timedelta(minutes=10))
    loop.server.jobs.clear()
    place, name = loop.places["bari"], loop.row(number).destination_name
    place.files[name] = FileFacts(9, "adler32:00000001", began + timedelta(seconds=later))
    loop.later(hours=1)
    loop.monitor()
    loop.later(hours=1)
    loop.retry()
    loop.submit()
    loop.answer_files([number], "FAILED", reason=EXISTS)
    loop.monitor()
    loop.report()
    row = loop.row(number)
    assert (row.state, bool(row.may_overwrite)) == (state, state == "retry-wait")


def test_a_site_that_cannot_be_asked_is_asked_later(loop):
    (number,) = copied(loop)
    loop.places["bari"].broken = FailureReason(None, 110, "no reply in time")
    report = loop.report()
    assert (report.moved, report.unknown, loop.row(number).state) == ({}, {"bari": 1}, "copied")
    assert "no reply in time" in loop.row(number).reason
    assert loop.report().rows == 0
    first = loop.row(number).due_at - loop.at
    loop.later(hours=1)
    loop.report()
    assert loop.row(number).due_at - loop.at > first
    loop.places["bari"].broken = None
    loop.later(hours=1)
    assert loop.report().moved == {"done": 1}


def test_a_site_without_checksums_is_verified_by_size(loop):
    loop.sites["bari"] = mock_site("bari", checksum="none")
    (number,) = copied(loop, checksum=None)
    loop.report()
    assert (loop.row(number).state, loop.row(number).reason) == ("done", "verified by its size")


def test_a_user_without_credential_holds_up_no_other_copy(loop, monkeypatch):
    mine, other = *copied(loop, owner="ann", checksum=None), *copied(loop, owner="bob", checksum=None)
    (whole,) = copied(loop, owner="ann")
    opened = type(loop).stageout.fget
    missing = CREDENTIAL_MISSING("proxy of ann: it does not exist")

    def place(site, owner):
        if (site, owner) == ("pisa", "ann"):
            raise missing
        return loop.places[site]

    monkeypatch.setattr(type(loop), "stageout", property(lambda self: replace(opened(self), place=place)))
    loop.report()
    assert [loop.row(number).state for number in (mine, other, whole)] == ["copied", "done", "done"]
    assert "proxy of ann" in loop.row(mine).reason


def outlasts_its_claim(loop, monkeypatch, slow, fast):
    """Bari answers for the slow copy once the other is done, its claim would have ended, and it lasts longer."""
    look, kept = loop.places["bari"].look, []

    def slowly(names, *, checksum):
        row = loop.row(slow)
        if list(names) == [row.destination_name]:
            loop.later(minutes=2)
            for _ in range(500):
                if loop.row(fast).state == "done" and loop.row(slow).due_at > row.due_at:
                    kept.append(slow)
                    break
                threading.Event().wait(0.02)
        return look(names, checksum=checksum)

    monkeypatch.setattr(loop.places["bari"], "look", slowly)
    opened = type(loop).stageout.fget
    # a third of it is waited for in real time
    worker = StageoutWorker("worker-1", timedelta(seconds=1))
    monkeypatch.setattr(type(loop), "stageout", property(lambda self: replace(opened(self), worker=worker)))
    return kept


def test_a_storage_that_answers_slowly_holds_up_no_other_and_costs_no_claim(loop, monkeypatch):
    loop.sites["rome"] = mock_site("rome")
    rome = loop.places["rome"] = MemoryPlace()
    slow, fast = loop.submitted(), loop.submitted(destination="rome")
    loop.answer_files([*slow, *fast], "FINISHED", finish_time=ENDED)
    loop.monitor()
    for place, ids in ((loop.places["bari"], slow), (rome, fast)):
        place.files |= {loop.row(number).destination_name: FileFacts(10, ADLER32) for number in ids}
    kept = outlasts_its_claim(loop, monkeypatch, slow[0], fast[0])
    assert loop.report().moved == {"done": 2}
    assert kept == slow


def large_copies(loop, monkeypatch, count=1):
    """Ids of large copies at a site without checksums, and the names that are read there."""
    loop.sites["bari"] = mock_site("bari", checksum="read-back")
    ids, read = copied(loop, count, size=READ_IN_PASS + 1), []
    look = loop.places["bari"].look

    def noted(names, *, checksum):
        read.extend(names if checksum is ChecksumMode.READ_BACK else ())
        return look(names, checksum=checksum)

    monkeypatch.setattr(loop.places["bari"], "look", noted)
    return ids, read


def test_a_large_copy_is_left_to_the_component_that_reads(loop, monkeypatch):
    (large,), read = large_copies(loop, monkeypatch)
    (small,) = copied(loop)
    report = loop.report()
    assert (report.moved, report.large) == ({"done": 1}, 1)
    assert (loop.row(small).state, loop.row(large).state) == ("done", "copied")
    assert read == [loop.row(small).destination_name]
    assert "it waits to be read" in loop.row(large).reason
    assert loop.report().rows == 0
    assert (loop.read_back().moved, loop.row(large).checksum) == ({"done": 1}, ADLER32)
    assert loop.read_back().rows == 0


def test_a_large_copy_of_another_size_is_not_read(loop, monkeypatch):
    (number,), read = large_copies(loop, monkeypatch)
    loop.places["bari"].files[loop.row(number).destination_name] = FileFacts(READ_IN_PASS + 2, ADLER32)
    assert loop.report().moved == {"retry-wait": 1}
    assert read == []


def test_a_large_copy_that_nothing_reads_is_looked_at_again(loop, monkeypatch):
    (number,), _ = large_copies(loop, monkeypatch)
    loop.report()
    loop.later(seconds=LONGEST_LOOK.total_seconds())
    assert loop.report().large == 1
    loop.places["bari"].files.clear()
    loop.later(seconds=LONGEST_LOOK.total_seconds())
    assert loop.report().moved == {"retry-wait": 1}
    assert (loop.read_back().rows, loop.row(number).claim) == (0, None)


def test_a_large_copy_is_read_for_longer_than_a_claim_and_holds_up_no_other(loop, monkeypatch):
    (slow, fast), _ = large_copies(loop, monkeypatch, 2)
    loop.report()
    kept = outlasts_its_claim(loop, monkeypatch, slow, fast)
    assert loop.read_back().moved == {"done": 2}
    assert kept == [slow]
