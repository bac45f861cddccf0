"""Counts, lists and one transfer's status, over live rows and the archive, on every kind of database."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event, text, update

from include.stageout import status
from include.stageout.archive import archive_transfers, history
from include.stageout.claims import StageoutWorker, claim_queue, waiting_queues
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.requests import record_request
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.status import (
    TransferFilter,
    count_transfers,
    list_transfers,
    list_workflows,
    sum_counts,
    transfer_status,
    waiting_since,
    workflow_status,
)
from include.stageout.tables import stageout_transfers
from tests.fakes.places import put_in
from tests.fakes.transfers import NOW, recorded, request_of

NEW, FAILED, CLEANED = TransferState.NEW, TransferState.FAILED, TransferState.CLEANED


def all_pages(ledger, wanted, limit):
    after, found = None, []
    while True:
        page = list_transfers(ledger, wanted, after=after, limit=limit)
        assert len(page.rows) <= limit
        found += [row.id for row in page.rows]
        after = page.after
        if after is None:
            return found


@pytest.fixture
def ids_from_one(ledger):
    """The server's ledger, which tests share, counts on: small spans would be read down from there."""
    if ledger.dialect.name == "mysql":
        with ledger.begin() as connection:
            connection.execute(text("ALTER TABLE stageout_transfers AUTO_INCREMENT = 1"))


@pytest.fixture
def mixed(ledger):
    """The ids of transfers of two users on two links; some have failed, some are archived."""
    ids = {
        "new": recorded(ledger, 3),
        "failed": recorded(ledger, 4, source="bari", destination="pisa"),
        "archived": recorded(ledger, 5),
        "bob": recorded(ledger, 2, owner="bob", user_job="17"),
    }
    put_in(ledger, ids["failed"], FAILED, NOW)
    put_in(ledger, ids["archived"], CLEANED, NOW)
    assert archive_transfers(ledger, CLEANED, before=NOW, limit=100) == 5
    return ids


def test_live_transfers_are_counted_by_owner_link_and_state(ledger, mixed):
    counts = count_transfers(ledger, TransferFilter())
    assert sum_counts(counts, lambda count: count.state) == {NEW: 5, FAILED: 4}
    assert sum_counts(counts, lambda count: count.owner) == {"ann": 7, "bob": 2}
    assert sum_counts(counts, lambda count: (count.source, count.destination)) == {
        ("pisa", "bari"): 5,
        ("bari", "pisa"): 4,
    }


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        (TransferFilter(), ("new", "failed", "archived", "bob")),
        (TransferFilter(owner="ann"), ("new", "failed", "archived")),
        (TransferFilter(owner="ann", workflow="workflow"), ("new", "failed", "archived")),
        (TransferFilter(workflow="other"), ()),
        (TransferFilter(owner="eve"), ()),
        (TransferFilter(owner="bob", user_job="17"), ("bob",)),
        (TransferFilter(user_job="17"), ("bob",)),
        (TransferFilter(source="pisa"), ("new", "archived", "bob")),
        (TransferFilter(site="pisa"), ("new", "failed", "archived", "bob")),
        (TransferFilter(workflow="workflow", destination="pisa"), ("failed",)),
        (TransferFilter(owner="ann", states=(CLEANED, FAILED)), ("failed", "archived")),
        (TransferFilter(states=(NEW,)), ("new", "bob")),
        (TransferFilter(failure="quota"), ()),
    ],
    ids=str,
)
def test_pages_of_a_list_have_what_is_wanted_once_and_the_newest_first(ledger, mixed, wanted, groups):
    expected = sorted((number for group in groups for number in mixed[group]), reverse=True)
    assert all_pages(ledger, wanted, 3) == expected
    live = sum(count.files for count in count_transfers(ledger, wanted))
    assert live == len([number for number in expected if number not in mixed["archived"]])


def test_a_page_of_all_users_reads_a_bounded_number_of_ids(ids_from_one, ledger, mixed, monkeypatch):
    monkeypatch.setattr("include.stageout.status.SPAN", 2)
    assert all_pages(ledger, TransferFilter(source="pisa"), 100) == sorted(
        mixed["new"] + mixed["archived"] + mixed["bob"], reverse=True
    )
    assert len(list_transfers(ledger, TransferFilter(), limit=100).rows) == 2


@pytest.mark.usefixtures("ids_from_one")
def test_few_transfers_of_a_state_or_link_are_one_page_however_many_others_there_are(ledger, monkeypatch):
    monkeypatch.setattr("include.stageout.status.SPAN", 3)
    ids = recorded(ledger, 12)
    other = recorded(ledger, 1, source="rome")
    put_in(ledger, [ids[0], ids[7]], FAILED, NOW)
    for wanted, expected in (
        (TransferFilter(states=(FAILED,)), [ids[7], ids[0]]),
        (TransferFilter(source="rome"), other),
        (TransferFilter(states=(FAILED,), site="rome"), []),
        (TransferFilter(states=(FAILED,), failure="quota"), []),
    ):
        page = list_transfers(ledger, wanted, archived=False)
        assert ([row.id for row in page.rows], page.after) == (expected, None)
    archive_transfers(ledger, FAILED, before=NOW + timedelta(hours=1), limit=1)
    assert sorted(all_pages(ledger, TransferFilter(states=(FAILED,)), 2)) == [ids[0], ids[7]]
    assert len(all_pages(ledger, TransferFilter(states=(NEW,)), 2)) == 11


def test_a_file_is_found_by_its_name_and_keeps_status_and_history_in_the_archive(ledger):
    (number,) = recorded(ledger, 1, size=7, checksum="adler32:0a1b2c3d")
    (queue,) = waiting_queues(ledger, now=NOW)
    claim_queue(ledger, queue, StageoutWorker("worker-1"), limit=1, now=NOW)
    move = TransferMove(number, TransferState.CLAIMED, FAILED, "its name is too long")
    move_transfers(ledger, [move], StageoutComponent.SUBMITTER, now=NOW)
    before = transfer_status(ledger, number)
    assert (before.state, before.reason, before.due_at, before.archived) == (
        FAILED,
        "its name is too long",
        None,
        False,
    )
    moves = history(ledger, number)
    archive_transfers(ledger, FAILED, before=NOW, limit=1)
    after = transfer_status(ledger, number)
    assert replace(after, archived=False) == before
    assert history(ledger, number) == moves
    found = list_transfers(ledger, TransferFilter(owner="ann", name=before.destination_name))
    assert found.rows == (after,)
    assert transfer_status(ledger, number + 1) is None


def test_a_workflow_has_what_was_requested_for_it(ledger):
    record_request(ledger, request_of(3), now=NOW)
    record_request(ledger, request_of(2), now=NOW + timedelta(hours=1))
    found = workflow_status(ledger, "ann", "workflow")
    assert (found.requests, found.files, found.first_at, found.last_at) == (2, 5, NOW, NOW + timedelta(hours=1))
    assert list_workflows(ledger, "ann") == (found,)
    assert list_workflows(ledger, "ann", after="workflow") == ()
    assert workflow_status(ledger, "bob", "workflow") is None


def test_the_oldest_of_each_state_that_waits_is_known(ledger):
    recorded(ledger, 1, now=NOW + timedelta(minutes=1))
    recorded(ledger, 2)
    assert waiting_since(ledger) == {NEW: NOW}


@pytest.mark.server("mariadbd")
@pytest.mark.parametrize("kind", ["mariadb"])
def test_counts_and_choices_read_indices_only(ledger, mixed):
    """Every statement of a count and of an owner's list on MariaDB, explained."""
    plans = []

    @event.listens_for(ledger, "before_cursor_execute")
    def explain(connection, cursor, statement, parameters, context, executemany):
        if re.search(r"FORCE INDEX \(ix_stageout_transfers_(state_queue_due_at|request_state_queue)\)", statement):
            with connection.connection.cursor() as own:
                own.execute("EXPLAIN " + statement, parameters)
                plans.append((own.fetchall(), statement))

    count_transfers(ledger, TransferFilter(owner="ann"))
    count_transfers(ledger, TransferFilter())
    list_transfers(ledger, TransferFilter(owner="ann", states=(NEW,)))
    list_transfers(ledger, TransferFilter(states=(NEW,)), archived=False)
    list_transfers(ledger, TransferFilter(workflow="workflow"))
    count_transfers(ledger, TransferFilter(workflow="workflow"))
    event.remove(ledger, "before_cursor_execute", explain)
    assert len(plans) == 7
    for rows, statement in plans:
        # what is counted within a limit is a table of its own, and its rows come from the index
        assert "Using index" in rows[-1][-1], (rows, statement)


def test_an_id_in_the_archive_is_not_used_again(ledger):
    ids = []
    for _ in range(2):
        ids += recorded(ledger, 1)
        put_in(ledger, ids[-1:], CLEANED, NOW)
        assert archive_transfers(ledger, CLEANED, before=NOW, limit=1) == 1
    assert all_pages(ledger, TransferFilter(), 10) == sorted(ids, reverse=True)


def test_a_choice_of_very_many_fetches_a_page_of_ids(ledger, monkeypatch):
    monkeypatch.setattr(status, "SPAN", 20)
    ids = recorded(ledger, 30)
    fetched = []

    @event.listens_for(ledger, "before_cursor_execute")
    def count(connection, cursor, statement, parameters, context, executemany):
        if statement.startswith("SELECT stageout_transfers.id \n"):
            with closing(connection.connection.cursor()) as own:
                own.execute(statement, parameters)
                fetched.append(len(own.fetchall()))

    page = list_transfers(ledger, TransferFilter(states=(NEW,)), limit=3)
    event.remove(ledger, "before_cursor_execute", count)
    assert [row.id for row in page.rows] == sorted(ids, reverse=True)[:3]
    assert max(fetched) == 4


def test_a_page_of_a_workflow_is_read_from_its_newest_requests(ledger, monkeypatch):
    monkeypatch.setattr(status, "NEWEST", 1)
    times = [NOW - timedelta(minutes=minutes) for minutes in (40, 30, 20, 2, 1)]
    ids = [number for at in times for number in sorted(recorded(ledger, 2, now=at))]
    statements = []

    @event.listens_for(ledger, "before_cursor_execute")
    def count(connection, cursor, statement, parameters, context, executemany):
        if re.match(r"SELECT stageout_transfers.id\s", statement):
            statements.append(statement)

    page = list_transfers(ledger, TransferFilter(workflow="workflow"), limit=1, archived=False)
    event.remove(ledger, "before_cursor_execute", count)
    assert ([row.id for row in page.rows], len(statements)) == ([ids[-1]], 2)
    assert all_pages(ledger, TransferFilter(workflow="workflow"), 3) == ids[::-1]


def test_a_request_that_waited_for_others_is_on_a_page_of_its_workflow(ledger, monkeypatch):
    monkeypatch.setattr(status, "NEWEST", 1)
    slow, *others = (sorted(recorded(ledger, 2, now=NOW + number * timedelta(seconds=20))) for number in range(5))
    later = [number + 100 for number in slow]
    with ledger.begin() as connection:  # as if its rows were the last to be written
        columns = stageout_transfers.c
        connection.execute(update(stageout_transfers).where(columns.id.in_(slow)).values(id=columns.id + 100))
    expected = sorted([*later, *(number for group in others for number in group)], reverse=True)
    assert all_pages(ledger, TransferFilter(workflow="workflow"), 3) == expected
