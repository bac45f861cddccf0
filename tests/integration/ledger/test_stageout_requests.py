"""Requests for transfers are recorded once, as a whole or not at all, on every kind of database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event, select

from include.ledger.engine import reading
from include.stageout.errors import DESTINATION_TAKEN, REQUEST_CHANGED, USER_CAPPED, StageoutError
from include.stageout.requests import UserCaps, record_request
from include.stageout.states import TransferState
from include.stageout.tables import stageout_queues, stageout_requests, stageout_transfers
from tests.fakes.places import put_in
from tests.fakes.refused import refused
from tests.fakes.transfers import NOW, count_rows, recorded, request_of


def test_files_are_new_and_due_with_all_that_was_said_of_them(ledger):
    full = {"size": 1 << 40, "checksum": "crc32c:0a1b2c3d", "dataset": "/a/b/USER", "user_job": "17"}
    request = request_of(1200, **full)
    receipt = record_request(ledger, request, now=NOW)
    assert (receipt.files, receipt.repeated) == (1200, False)
    with reading(ledger) as connection:
        query = select(stageout_transfers, stageout_queues).join(stageout_queues).order_by(stageout_transfers.c.id)
        found = connection.execute(query).mappings().all()
    assert [row["destination_name"] for row in found] == [file.destination_name for file in request.files]
    expected = {**full, "state": "new", "retries": 0, "due_at": NOW, "moved_at": NOW, "job": None, "claim": None}
    expected |= {"owner": "ann", "source": "pisa", "destination": "bari", "activity": "default", "kind": "output"}
    assert {name: found[-1][name] for name in expected} == expected
    assert count_rows(ledger, stageout_queues) == 1


def test_the_same_request_again_changes_nothing(ledger):
    request = request_of(3)
    first = record_request(ledger, request, now=NOW)
    assert record_request(ledger, request, now=NOW) == replace(first, repeated=True)
    assert count_rows(ledger, stageout_transfers) == 3
    other_owner = request_of(1, owner="bob", key=request.key)
    assert not record_request(ledger, other_owner, now=NOW).repeated


def test_a_key_that_was_used_for_other_files_is_refused(ledger):
    request = request_of(3)
    record_request(ledger, request, now=NOW)
    with refused(REQUEST_CHANGED):
        record_request(ledger, request_of(3, key=request.key), now=NOW)
    assert count_rows(ledger, stageout_transfers) == 3


def test_a_user_has_so_many_files_on_the_way_and_asks_for_so_many_within_an_hour(ledger):
    caps = UserCaps(files=5, files_per_hour=8)
    first = recorded(ledger, 3)
    recorded(ledger, 100, owner="bob")
    with refused(USER_CAPPED, subject="user ann"):
        record_request(ledger, request_of(3), now=NOW, caps=caps)
    record_request(ledger, request_of(2), now=NOW, caps=caps)
    put_in(ledger, first, TransferState.CLEANED, NOW)
    record_request(ledger, request_of(3), now=NOW, caps=caps)
    with refused(USER_CAPPED, subject="user ann") as error:
        record_request(ledger, request_of(1), now=NOW + timedelta(minutes=59), caps=replace(caps, files=100))
    assert "8 files were asked for within the last hour" in error.value.what
    again = request_of(1)
    record_request(ledger, again, now=NOW + timedelta(minutes=61), caps=replace(caps, files=100))
    assert record_request(ledger, again, now=NOW + timedelta(minutes=61), caps=UserCaps(0, 0)).repeated


def test_a_destination_of_another_transfer_refuses_the_whole_request(ledger):
    request = request_of(3)
    record_request(ledger, request, now=NOW)
    taken = request.files[1]
    other = request_of(600, owner="bob")
    with refused(DESTINATION_TAKEN, subject=taken.destination_name):
        record_request(ledger, replace(other, files=(*other.files, taken)), now=NOW)
    assert (count_rows(ledger, stageout_transfers), count_rows(ledger, stageout_requests)) == (3, 1)


@pytest.mark.parametrize("same_key", [True, False])
def test_of_calls_at_the_same_moment_one_records_the_files(ledger, same_key):
    """Both calls have looked before either has written, wherever the database lets them."""
    request = request_of(3)
    calls = [request, request if same_key else replace(request, key="other")]
    together = threading.Barrier(2, timeout=60)

    def look_together(*_: object) -> None:
        try:
            together.wait()
        except threading.BrokenBarrierError:
            return

    if ledger.dialect.name != "sqlite":  # whose writers wait for each other from the start
        seen: set[int] = set()

        def before(connection, cursor, statement, parameters, context, executemany):
            if statement.startswith("INSERT INTO stageout_requests") and threading.get_ident() not in seen:
                seen.add(threading.get_ident())
                look_together()

        event.listen(ledger, "before_cursor_execute", before)

    def call(one):
        try:
            return record_request(ledger, one, now=NOW)
        except StageoutError as error:
            return error.code

    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(call, calls))
    if ledger.dialect.name != "sqlite":
        event.remove(ledger, "before_cursor_execute", before)
    assert count_rows(ledger, stageout_transfers) == 3
    receipts = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    if same_key:
        assert sorted(receipt.repeated for receipt in receipts) == [False, True]
    else:
        assert (len(receipts), DESTINATION_TAKEN.code in outcomes) == (1, True)
