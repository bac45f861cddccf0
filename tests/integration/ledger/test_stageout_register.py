"""Verified files are registered once, in blocks, whatever happens to the processes; on every kind of database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from include.errors import NightshiftError
from include.fts.states import FailureReason
from include.ledger.acts import acts
from include.ledger.engine import reading, writing
from include.settings.stageout import StageoutSettings
from include.stageout.archive import archive_transfers, history
from include.stageout.blocks import AFTER_CLOSING, RECHECK, BlockState, claim_blocks, close_workflow, finish_block
from include.stageout.claims import StageoutWorker
from include.stageout.components.register import LATER, RegisterReport, register, register_again, retract
from include.stageout.components.retry_manager import resubmit
from include.stageout.errors import WORKFLOW_CLOSED, WORKFLOW_UNKNOWN
from include.stageout.moves import TransferMove, move_transfers
from include.stageout.registration.catalogue import CatalogueBlock, CatalogueFile, LedgerCatalogue, owners_to_register
from include.stageout.requests import record_request
from include.stageout.states import StageoutComponent, TransferState
from include.stageout.status import transfer_status
from include.stageout.tables import stageout_blocks, stageout_catalogue, stageout_transfers
from tests.fakes.places import put_in, stageout_of
from tests.fakes.refused import refused
from tests.fakes.transfers import NOW, recorded, request_of, states

DONE, REGISTERED, CLEANING, FAILED = (
    TransferState.DONE, TransferState.REGISTERED, TransferState.CLEANING, TransferState.FAILED,
)  # fmt: skip
DATASET = "/Higgs/ann-v1/USER"
AGE = timedelta(minutes=240)


class SimulatedCrash(BaseException):
    """The process ends here."""


@pytest.fixture
def stageout(ledger):
    """With blocks of three files."""

    return stageout_of(ledger, place=None, settings=StageoutSettings(block_files=3), worker=StageoutWorker("worker-1"))


def verified(ledger, count=1, *, now=NOW, **fields):
    """The ids of so many transfers whose destination is verified, as the reporter leaves them."""
    facts = {"size": 7, "checksum": "adler32:0a1b2c3d", "dataset": DATASET}
    ids = recorded(ledger, count, now=now, **{**facts, **fields})
    put_in(ledger, ids, DONE, now)
    return ids


def passes(stageout, now=NOW, limit=100):
    """The sum of passes, until there is nothing to do."""
    total = RegisterReport()
    while (report := register(stageout, now=lambda: now, limit=limit)) != RegisterReport():
        total = RegisterReport(*(getattr(total, name) + getattr(report, name) for name in RegisterReport.__slots__))
    return total


def blocks(ledger):
    with reading(ledger) as connection:
        return connection.execute(select(stageout_blocks).order_by(stageout_blocks.c.id)).all()


def registered_names(ledger):
    with reading(ledger) as connection:
        return sorted(connection.scalars(select(stageout_catalogue.c.name)))


def test_files_without_a_data_set_may_be_cleaned(stageout, ledger):
    ids = verified(ledger, 5, dataset=None)
    assert passes(stageout, limit=2) == RegisterReport(unregistered=5)
    assert states(ledger) == dict.fromkeys(ids, CLEANING)


def test_full_blocks_are_registered_and_the_rest_waits(stageout, ledger):
    verified(ledger, 7)
    assert passes(stageout) == RegisterReport(placed=7, closed=2, blocks=2, registered=6)
    assert [(block.files, block.bytes, block.state) for block in blocks(ledger)] == [
        (3, 21, "registered"),
        (3, 21, "registered"),
        (1, 7, "open"),
    ]
    done = [number for number, state in states(ledger).items() if state is REGISTERED]
    assert len(done) == 6
    assert history(ledger, done[0])[-1].reason.startswith("registered in block /Higgs/ann-v1/USER#")
    assert len(registered_names(ledger)) == 6


def test_a_block_is_filled_by_later_passes_and_its_files_are_not_due_before_it(stageout, ledger):
    first = verified(ledger, 2)
    passes(stageout)
    with reading(ledger) as connection:
        due = set(connection.scalars(select(stageout_transfers.c.due_at)))
    assert due == {NOW + AGE + RECHECK}
    later = NOW + timedelta(minutes=5)
    second = verified(ledger, 1, now=later)
    assert passes(stageout, later).registered == 3
    assert states(ledger) == dict.fromkeys(first + second, REGISTERED)
    assert len(blocks(ledger)) == 1


def test_a_block_is_closed_when_its_first_file_has_waited_long_enough(stageout, ledger):
    verified(ledger, 1)
    passes(stageout)
    verified(ledger, 1, now=NOW + AGE - timedelta(minutes=1))
    passes(stageout, NOW + AGE - timedelta(minutes=1))
    assert set(states(ledger).values()) == {DONE}
    assert passes(stageout, NOW + AGE) == RegisterReport(closed=1, blocks=1, registered=2)


def test_blocks_are_of_one_owner_workflow_and_data_set(stageout, ledger):
    verified(ledger, 1)
    verified(ledger, 1, owner="bob")
    verified(ledger, 1, dataset="/Other/ann-v1/USER")
    verified(ledger, 1, source="bari", destination="pisa")
    passes(stageout)
    found = sorted((block.owner, block.dataset, block.files) for block in blocks(ledger))
    assert found == [("ann", DATASET, 2), ("ann", "/Other/ann-v1/USER", 1), ("bob", DATASET, 1)]


def test_closing_a_workflow_registers_what_waits_and_refuses_further_requests(stageout, ledger):
    verified(ledger, 1)
    verified(ledger, 1, owner="bob")
    passes(stageout)
    assert close_workflow(ledger, "ann", "workflow", now=NOW)
    assert not close_workflow(ledger, "ann", "workflow", now=NOW + AGE)
    assert passes(stageout) == RegisterReport(blocks=1, registered=1)
    with refused(WORKFLOW_CLOSED):
        record_request(ledger, request_of(1), now=NOW)
    with refused(WORKFLOW_UNKNOWN):
        close_workflow(ledger, "eve", "workflow", now=NOW)


def test_a_request_that_was_recorded_before_its_workflow_closed_can_be_repeated(ledger):
    request = request_of(2)
    receipt = record_request(ledger, request, now=NOW)
    close_workflow(ledger, "ann", "workflow", now=NOW)
    assert record_request(ledger, request, now=NOW) == replace(receipt, repeated=True)


def test_files_that_come_after_their_workflow_was_closed_wait_for_a_short_time_only(stageout, ledger):
    ids = recorded(ledger, 1, dataset=DATASET)
    close_workflow(ledger, "ann", "workflow", now=NOW)
    writing(ledger, lambda connection: connection.execute(
        update(stageout_transfers).where(stageout_transfers.c.id.in_(ids)).values(state="done", size=7)
    ))  # fmt: skip
    assert passes(stageout) == RegisterReport(placed=1)
    assert passes(stageout, NOW + AFTER_CLOSING) == RegisterReport(closed=1, blocks=1, registered=1)


def test_a_refused_file_fails_with_the_reason_and_does_not_hold_up_the_others(stageout, ledger):
    block = CatalogueBlock("old", DATASET, "bob", "other")
    ids = verified(ledger, 3)
    with reading(ledger) as connection:
        names = list(
            connection.scalars(select(stageout_transfers.c.destination_name).order_by(stageout_transfers.c.id))
        )
    known = [CatalogueFile(1, names[0], "bari", 8, None), CatalogueFile(2, names[1], "bari", 7, "adler32:0a1b2c3d")]
    assert LedgerCatalogue(ledger).register(block, known, now=NOW) == {}
    assert passes(stageout) == RegisterReport(placed=3, closed=1, blocks=1, registered=2, refused=1)
    assert states(ledger) == {ids[0]: FAILED, ids[1]: REGISTERED, ids[2]: REGISTERED}
    assert history(ledger, ids[0])[-1].reason.endswith("has another file of this name, of 8 bytes and checksum unknown")
    assert len(registered_names(ledger)) == 3


def test_a_file_that_was_refused_and_resubmitted_gets_another_block(stageout, ledger):
    ids = verified(ledger, 3, size=None)
    assert passes(stageout).refused == 3
    assert [block.state for block in blocks(ledger)] == ["refused"]
    again = [TransferMove(number, FAILED, TransferState.NEW, "resubmitted") for number in ids]
    move_transfers(ledger, again, StageoutComponent.PERSON, now=NOW)
    writing(ledger, lambda connection: connection.execute(update(stageout_transfers).values(state="done", size=7)))
    assert passes(stageout).registered == 3
    assert [block.state for block in blocks(ledger)] == ["refused", "registered"]


class Removing:
    """The storage of a site that removes all but one file."""

    def __init__(self, left):
        self.left, self.asked = left, []

    def remove(self, names):
        self.asked += names
        return {name: FailureReason(None, None, "busy") if name == self.left else None for name in names}


def test_retracted_files_leave_the_catalogue_then_the_ledger_and_then_their_site(stageout, ledger):
    ids, other, loose = verified(ledger, 3), verified(ledger, 3, owner="bob"), verified(ledger, 1, dataset=None)
    passes(stageout)
    names = {number: transfer_status(ledger, number).destination_name for number in ids}
    place = Removing(names[ids[1]])
    opened = replace(stageout, place=lambda site, owner: place)
    wish = {"owner": "ann", "by": "ann@desk", "why": "damaged", "now": NOW}
    asked = [*ids[:2], other[0], *loose]
    would = retract(opened, asked, removes=True, dry_run=True, **wish)
    assert would.files.keys() == set(ids[:2])
    assert would.refusals == {
        other[0]: "ann has no such transfer", loose[0]: "it is cleaning"
    }  # fmt: skip
    assert len(registered_names(ledger)) == 6
    for _ in range(2):
        done = retract(opened, asked, removes=True, **wish)
        assert (done.files.keys(), done.refusals, done.left) == (set(ids[:2]), would.refusals, {ids[1]: "busy"})
        assert set(place.asked) == {names[number] for number in ids[:2]}
        assert len(registered_names(ledger)) == 4
        assert states(ledger)[ids[0]] is states(ledger)[ids[1]] is TransferState.RETRACTED
        assert states(ledger)[ids[2]] is states(ledger)[other[0]] is REGISTERED
    last = history(ledger, ids[0])[-1]
    assert (last.component, last.reason) == ("person", "retracted by ann@desk: damaged")
    with reading(ledger) as connection:
        rows = connection.execute(select(acts.c.kind, acts.c.who, acts.c.why)).all()
    assert set(rows) == {("files retracted", "ann@desk", "damaged")}
    # it is not tried again, and leaves as what is complete does
    assert resubmit(ledger, by="ann", now=NOW, ids=ids) == frozenset()
    assert archive_transfers(ledger, TransferState.RETRACTED, before=NOW + timedelta(days=1), limit=9) == 2


def test_an_archived_file_is_retracted_unless_a_later_transfer_has_its_place(stageout, ledger):
    ids = verified(ledger, 3)
    passes(stageout)
    for before, after, by in (
        (REGISTERED, CLEANING, StageoutComponent.CLEANER),
        (CLEANING, TransferState.KEPT, StageoutComponent.CLEANER),
    ):
        move_transfers(ledger, [TransferMove(number, before, after, "") for number in ids], by, now=NOW)
    assert archive_transfers(ledger, TransferState.KEPT, before=NOW + timedelta(days=1), limit=9) == 3
    name = transfer_status(ledger, ids[0]).destination_name
    (later,) = recorded(ledger, 1, destination_name=name)
    wish = {"owner": "ann", "by": "ann@desk", "why": "damaged", "now": NOW}
    for _ in range(2):
        done = retract(stageout, ids, **wish)
        assert done.files.keys() == set(ids[1:])
        assert done.refusals == {ids[0]: f"transfer {later} has the same destination since"}
        assert registered_names(ledger) == [name]
    status = transfer_status(ledger, ids[1])
    assert (status.state, status.reason) == (TransferState.RETRACTED, "retracted by ann@desk: damaged")
    assert [move.state for move in history(ledger, ids[1])][-2:] == ["kept", "retracted"]


def test_a_retraction_that_died_is_ended_by_the_next_one_and_a_source_that_is_needed_stays(stageout, ledger):
    ids = verified(ledger, 3)
    passes(stageout)

    class Crashing(LedgerCatalogue):
        """Its process ends after the files are taken out."""

        def retract(self, block, files):
            super().retract(block, files)
            raise SimulatedCrash

    wish = {"owner": "ann", "by": "ann@desk", "why": "damaged", "now": NOW}
    with pytest.raises(SimulatedCrash):
        retract(replace(stageout, catalogue=Crashing(ledger)), ids, **wish)
    assert (registered_names(ledger), set(states(ledger).values())) == ([], {REGISTERED})
    name = transfer_status(ledger, ids[0]).destination_name
    (further,) = recorded(ledger, 1, source="bari", source_name=name, destination="pisa")
    place = Removing("")
    done = retract(replace(stageout, place=lambda site, owner: place), ids, removes=True, **wish)
    assert done.left == {ids[0]: f"transfer {further} needs it as its source"}
    assert name not in place.asked
    assert len(place.asked) == 2


class CrashingCatalogue(LedgerCatalogue):
    """Its process ends after the files are registered."""

    def register(self, block, files, *, now):
        super().register(block, files, now=now)
        raise SimulatedCrash


def test_a_process_that_ends_between_catalogue_and_ledger_doubles_nothing(stageout, ledger):
    ids = verified(ledger, 3)
    with pytest.raises(SimulatedCrash):
        register(replace(stageout, catalogue=CrashingCatalogue(ledger)), now=lambda: NOW, limit=10)
    assert set(states(ledger).values()) == {DONE}
    names = registered_names(ledger)
    assert passes(stageout) == RegisterReport()  # the dead process still has the block
    over = NOW + stageout.worker.keeps + timedelta(seconds=1)
    assert passes(stageout, over) == RegisterReport(blocks=1, registered=3)
    assert registered_names(ledger) == names
    assert len(names) == 3
    assert states(ledger) == dict.fromkeys(ids, REGISTERED)


def test_a_process_that_was_too_slow_moves_nothing(stageout, ledger):
    ids = verified(ledger, 3)
    register(replace(stageout, catalogue=UnreachableCatalogue()), now=lambda: NOW, limit=10)
    (slow,) = claim_blocks(ledger, stageout.worker, limit=5, now=NOW + LATER)
    assert passes(stageout, NOW + 2 * LATER).registered == 3
    moves = [TransferMove(number, DONE, FAILED, "too late") for number in ids]
    assert finish_block(ledger, slow, moves, now=NOW) == frozenset()
    assert states(ledger) == dict.fromkeys(ids, REGISTERED)


class UnreachableCatalogue:
    """Cannot be asked."""

    def register(self, block, files, *, now):
        raise NightshiftError("the catalogue does not answer")


def test_a_catalogue_that_cannot_be_asked_is_asked_again_later(stageout, ledger):
    verified(ledger, 3)
    away = replace(stageout, catalogue=UnreachableCatalogue())
    assert passes(away) == RegisterReport(placed=3, closed=1, postponed=1)
    (block,) = blocks(ledger)
    assert (block.state, block.reason, block.claim) == (BlockState.CLOSED.value, "the catalogue does not answer", None)
    assert passes(stageout) == RegisterReport()
    assert passes(stageout, NOW + LATER).registered == 3


def test_registers_in_parallel_register_each_file_once(stageout, ledger):
    for owner in ("ann", "bob", "eve"):
        verified(ledger, 40, owner=owner)
    together = threading.Barrier(4, timeout=60)

    def work(number):
        mine = replace(stageout, worker=StageoutWorker(f"worker-{number}"))
        together.wait()
        return passes(mine, limit=7)

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(work, range(4)))
    rest = passes(stageout, NOW + AGE)
    assert sum(report.registered for report in [*reports, rest]) == 120
    assert set(states(ledger).values()) == {REGISTERED}
    assert len(registered_names(ledger)) == len(set(registered_names(ledger))) == 120
    found = blocks(ledger)
    assert sum(block.files for block in found) == 120
    assert all(block.state == "registered" and 1 <= block.files <= 3 for block in found)
    with reading(ledger) as connection:
        inside = select(stageout_transfers.c.block, func.count()).group_by(stageout_transfers.c.block)
        assert dict(connection.execute(inside).all()) == {block.id: block.files for block in found}


def test_one_name_at_two_sites_is_one_file_of_the_data_set(ledger):
    files = [
        CatalogueFile(1, "/store/a", "bari", 7, None),
        CatalogueFile(2, "/store/a", "pisa", 7, None),
        CatalogueFile(3, "/store/a", "rome", 8, None),
    ]
    block = CatalogueBlock("block", DATASET, "ann", "workflow")
    catalogue = LedgerCatalogue(ledger)
    refusals = catalogue.register(block, files, now=NOW)
    assert set(refusals) == {3}
    assert catalogue.register(block, files, now=NOW) == refusals
    assert registered_names(ledger) == ["/store/a"]


class Another:
    """A catalogue that takes all but one file, and keeps what it was told."""

    def __init__(self):
        self.told = {}

    def register(self, block, files, *, now):
        self.told[block.name] = (block, sorted(file.name for file in files))
        return {files[0].id: "not this one"}


def test_blocks_of_the_ledger_are_registered_in_another_catalogue_from_a_day_on(stageout, ledger):
    verified(ledger, 3, now=NOW)
    passes(stageout, NOW)
    later = NOW + timedelta(days=1)
    verified(ledger, 7, now=later, owner="bob")
    assert owners_to_register(ledger) == ("ann", "bob")
    passes(stageout, later)
    names = {block.name for block in blocks(ledger) if block.state == "registered" and block.owner == "bob"}
    assert [(one.files, one.refusals) for one in register_again(ledger, None, since=later, now=later)] == [
        (3, {}),
        (3, {}),
    ]
    for _ in range(2):
        another = Another()
        found = list(register_again(ledger, another, since=later, now=later))
        assert {one.block for one in found} == another.told.keys() == names
        assert [list(one.refusals.values()) for one in found] == [["not this one"]] * 2
        assert {(block.owner, block.dataset) for block, _ in another.told.values()} == {("bob", DATASET)}
    everything = [name for _, listed in another.told.values() for name in listed]
    assert len(everything) == len(set(everything)) == 6
    assert set(everything) <= set(registered_names(ledger))
    assert sum(one.files for one in register_again(ledger, None, since=NOW, now=later)) == 9
