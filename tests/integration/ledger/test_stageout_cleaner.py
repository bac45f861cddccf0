"""The cleaner on real ledgers: what is removed, what stays and why, and what a pass that dies leaves."""

from __future__ import annotations

import errno
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from include.federation.records import SITE_FAILED
from include.fts.errors import FtsUnreachable
from include.fts.states import FailureReason
from include.ledger.acts import LedgerRestore, accept_restores, record_restore
from include.ledger.engine import reading
from include.monitoring.audit import AuditChoice, audit
from include.settings.sites import ChecksumMode
from include.stageout.archive import history
from include.stageout.components.cleaner import CleanReport, clean
from include.stageout.components.retry_manager import keep
from include.stageout.findings import GIVEN_UP
from include.stageout.passes import run_pass
from include.stageout.places.facts import FileFacts
from include.stageout.states import TransferState
from include.stageout.tables import stageout_transfers
from tests.fakes.places import MemoryPlace, put_in, site, stageout_of
from tests.fakes.transfers import NOW, recorded, states

T = TransferState
PISA, BARI = site("pisa"), site("bari", clean=False)
REFUSED = FailureReason(None, errno.EACCES, "DELETE: HTTP 403")


class WholeCopies(MemoryPlace):
    """A destination that has every file, as it was verified."""

    def look(self, names, *, checksum):
        return {name: FileFacts(7, None) for name in names}


def with_copies(ledger, place, source=PISA, copies=None):
    """What the cleaner is given: `place` opens the storages of sources, or is the one that there is."""

    def opened(name, owner):
        if name == BARI.name:
            return copies or WholeCopies()
        return place(name, owner) if callable(place) else place

    return stageout_of(ledger, source, BARI, place=opened)


@pytest.fixture
def place():
    return MemoryPlace()


@pytest.fixture
def stageout(ledger, place):
    return with_copies(ledger, place)


def rows_of(ledger, ids):
    with reading(ledger) as connection:
        query = select(stageout_transfers).where(stageout_transfers.c.id.in_(ids)).order_by(stageout_transfers.c.id)
        return connection.execute(query).all()


def left(ledger, place, state, count=1, size=7, **fields):
    """Transfers in a state whose sources exist; their ids."""
    ids = recorded(ledger, count, **fields)
    put_in(ledger, ids, state, NOW, size=size)
    place.put(*(row.source_name for row in rows_of(ledger, ids)))
    return ids


def cleaned(stageout, at=NOW, limit=100):
    return clean(stageout, now=lambda: at, limit=limit)


def test_sources_of_registered_and_unregistered_copies_are_removed(ledger, place, stageout):
    registered = left(ledger, place, T.REGISTERED, 2, dataset="/a/b/USER")
    unregistered = left(ledger, place, T.CLEANING)
    assert cleaned(stageout) == CleanReport(registered=2, cleaned=3)
    assert states(ledger) == dict.fromkeys([*registered, *unregistered], T.CLEANED)
    assert place.files == {}
    assert [move.state for move in history(ledger, registered[0])] == ["cleaning", "cleaned"]
    assert cleaned(stageout) == CleanReport()


def test_sources_of_transfers_that_are_not_complete_or_failed_stay(ledger, place, stageout):
    others = set(T) - {T.REGISTERED, T.CLEANING}
    for state in others:
        left(ledger, place, state)
    assert cleaned(stageout) == CleanReport()
    assert len(place.files) == len(others)


def test_what_may_not_be_removed_is_kept_with_the_reason(ledger, place, stageout):
    for fields in (
        {"source_name": "/store/user/ann/final.root"}, {"owner": "bob"}, {"source": "bari", "destination": "pisa"},
    ):  # fmt: skip
        left(ledger, place, T.CLEANING, **fields)
    files = dict(place.files)
    assert cleaned(stageout) == CleanReport(kept=3)
    assert set(states(ledger).values()) == {T.KEPT}
    assert place.files == files
    with reading(ledger) as connection:
        assert len(set(connection.scalars(select(stageout_transfers.c.reason)))) == 3


def test_a_person_keeps_sources_until_the_cleaner_has_looked(ledger, place, stageout):
    kept = left(ledger, place, T.REGISTERED, dataset="/a/b/USER") + left(ledger, place, T.CLEANING)
    (claimed,), (new,) = left(ledger, place, T.CLEANING), left(ledger, place, T.NEW)
    (gone,) = left(ledger, place, T.CLEANED)
    with ledger.begin() as connection:
        held = update(stageout_transfers).where(stageout_transfers.c.id == claimed)
        connection.execute(held.values(claim="c" * 32))
    assert keep(ledger, by="ann", ids=[*kept, claimed, new, gone, 999], owner="ann") == {*kept, new}
    assert keep(ledger, by="bob", ids=kept, owner="bob") == frozenset()
    assert cleaned(stageout) == CleanReport(registered=1, cleaned=1, kept=2)
    assert {row.reason for row in rows_of(ledger, kept)} == {"ann asked to keep it"}
    assert states(ledger)[claimed] is T.CLEANED


def test_a_source_that_is_kept_for_one_transfer_stays_for_all(ledger, place, stageout):
    name = "/store/temp/user/ann/shared.root"
    (first,), (second,) = (left(ledger, place, T.CLEANING, source_name=name) for _ in range(2))
    (elsewhere,) = left(ledger, place, T.NEW, source_name=name, source="bari", destination="pisa")
    assert keep(ledger, by="ann", ids=[first], owner="ann") == {first}
    assert rows_of(ledger, [elsewhere])[0].kept_by is None
    cleaned(stageout)
    (later,) = left(ledger, place, T.CLEANING, source_name=name)
    cleaned(stageout)
    assert states(ledger) == {first: T.KEPT, second: T.KEPT, elsewhere: T.NEW, later: T.CLEANING}
    cleaned(stageout, NOW + GIVEN_UP + timedelta(hours=1))
    assert states(ledger)[later] is T.KEPT
    assert place.removed == []


def test_nothing_is_removed_by_a_restored_ledger_that_nobody_has_accepted(ledger, place, stageout):
    left(ledger, place, T.CLEANING)
    record_restore(ledger, LedgerRestore(NOW, NOW, "operator"))
    assert cleaned(stageout) == CleanReport()
    assert place.removed == []
    assert accept_restores(ledger, by="operator", now=NOW) == 1
    assert cleaned(stageout) == CleanReport(cleaned=1)


def test_a_source_that_changed_after_its_copy_is_kept(ledger, place, stageout):
    left(ledger, place, T.CLEANING, size=8)
    assert cleaned(stageout) == CleanReport(kept=1)
    assert place.removed == []


SUM, OTHER = "adler32:0a1b2c3d", "adler32:0a1b2c3e"


def test_a_source_that_was_written_again_with_the_same_size_is_kept(ledger, place):
    pisa = site("pisa", checksum="adler32")
    [number] = left(ledger, place, T.CLEANING, checksum=SUM)
    [name] = place.files
    place.put(name, checksum=OTHER)
    assert cleaned(with_copies(ledger, place, pisa)) == CleanReport(kept=1)
    [row] = rows_of(ledger, [number])
    assert row.reason == f"the source has changed since it was copied: {OTHER}, not {SUM}"
    assert place.removed == []


@pytest.mark.parametrize(("minutes", "report"), [(1, CleanReport(kept=1)), (-1, CleanReport(cleaned=1))])
def test_a_source_without_checksum_that_is_younger_than_its_copy_is_kept(ledger, place, minutes, report):
    [number] = left(ledger, place, T.CLEANING)
    put_in(ledger, [number], T.CLEANING, NOW, copied_at=NOW - timedelta(hours=1))
    place.put(*place.files, modified=NOW - timedelta(hours=1) + timedelta(minutes=minutes))
    assert cleaned(with_copies(ledger, place)) == report


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (None, "the copy does not exist at the destination any more"),
        (FileFacts(6, SUM), "the copy is not what was verified: 6 bytes, not 7"),
        (FileFacts(7, OTHER), f"the copy is not what was verified: {OTHER}, not {SUM}"),
    ],
)
def test_a_source_stays_whose_copy_was_lost_or_changed_after_it_was_verified(ledger, place, monkeypatch, facts, reason):
    monkeypatch.setitem(globals(), "BARI", site("bari", clean=False, checksum="adler32"))
    [number] = left(ledger, place, T.REGISTERED, dataset="/a/b/USER", checksum=SUM)

    class Copies(MemoryPlace):
        def look(self, names, *, checksum):
            assert checksum is ChecksumMode.ADLER32
            return dict.fromkeys(names, facts)

    assert cleaned(with_copies(ledger, place, copies=Copies())) == CleanReport(registered=1, kept=1)
    [row] = rows_of(ledger, [number])
    assert (row.reason, place.removed) == (reason, [])


@pytest.mark.parametrize(
    ("checksum", "minutes", "report"),
    [(None, 5, CleanReport(kept=1)), (None, 0, CleanReport(cleaned=1)), (SUM, 5, CleanReport(cleaned=1))],
)
def test_a_source_stays_whose_copy_was_written_again_where_no_checksum_proves_it(
    ledger, place, monkeypatch, checksum, minutes, report
):
    monkeypatch.setitem(globals(), "BARI", site("bari", clean=False, checksum="adler32" if checksum else "read-back"))
    [number] = left(ledger, place, T.CLEANING, checksum=SUM)
    copied_at = NOW - timedelta(hours=1)
    put_in(ledger, [number], T.CLEANING, NOW, copied_at=copied_at)

    class Copies(MemoryPlace):
        def look(self, names, *, checksum):
            reported = None if checksum is ChecksumMode.NONE else SUM
            return {name: FileFacts(7, reported, copied_at + timedelta(minutes=minutes)) for name in names}

    assert cleaned(with_copies(ledger, place, copies=Copies())) == report
    if report.kept:
        assert rows_of(ledger, [number])[0].reason.startswith("the copy is not what was verified: it was written at ")


def test_a_source_waits_while_its_copy_cannot_be_looked_at(ledger, place):
    [number] = left(ledger, place, T.CLEANING)
    copies = MemoryPlace(refusals={rows_of(ledger, [number])[0].destination_name: REFUSED})
    assert cleaned(with_copies(ledger, place, copies=copies)) == CleanReport(postponed=1)
    [row] = rows_of(ledger, [number])
    assert (row.reason, place.removed) == ("DESTINATION [13] DELETE: HTTP 403", [])


def test_a_source_waits_while_a_copy_of_an_earlier_attempt_may_write(ledger, place, stageout):
    [number] = left(ledger, place, T.CLEANING)
    put_in(ledger, [number], T.CLEANING, NOW, may_write_until=NOW + timedelta(minutes=3))
    assert cleaned(stageout) == CleanReport(postponed=1)
    assert "an earlier copy may still write to the destination until" in rows_of(ledger, [number])[0].reason
    assert cleaned(stageout, NOW + timedelta(minutes=6)) == CleanReport(cleaned=1)


def test_a_source_that_another_transfer_needs_waits_for_it(ledger, place, stageout):
    name = "/store/temp/user/ann/shared.root"
    [done] = left(ledger, place, T.CLEANING, source_name=name)
    [other] = left(ledger, place, T.ACTIVE, source_name=name)
    left(ledger, place, T.FAILED, source_name=name, source="bari", destination="pisa")  # the name at another site
    assert cleaned(stageout) == CleanReport(postponed=1)
    assert name in place.files
    put_in(ledger, [other], T.CLEANING, NOW)
    assert cleaned(stageout, NOW + timedelta(minutes=6)) == CleanReport(cleaned=2)
    assert {states(ledger)[done], states(ledger)[other]} == {T.CLEANED}


def test_a_removal_that_fails_is_tried_later_and_in_the_end_given_up(ledger, place, stageout):
    [number] = left(ledger, place, T.CLEANING)
    [name] = place.files
    place.refusals[name] = REFUSED
    assert cleaned(stageout) == CleanReport(postponed=1)
    assert "HTTP 403" in rows_of(ledger, [number])[0].reason
    assert cleaned(stageout, NOW + timedelta(minutes=4)) == CleanReport()
    assert cleaned(stageout, NOW + timedelta(minutes=6)) == CleanReport(postponed=1)
    assert cleaned(stageout, NOW + timedelta(minutes=10)) == CleanReport()
    assert cleaned(stageout, NOW + GIVEN_UP) == CleanReport(kept=1)
    [row] = rows_of(ledger, [number])
    assert (row.state, "SOURCE [13] DELETE: HTTP 403" in row.reason) == ("kept", True)


@pytest.mark.parametrize("out", ["pisa", "bari"])
def test_a_source_waits_for_a_site_that_has_failed_for_as_long_as_that_lasts(ledger, place, out):
    (number,) = left(ledger, place, T.CLEANING)
    reasons = {out: "it is held by ann: it moves"}

    def opened(name, owner):
        if name in reasons:
            raise SITE_FAILED(name, reasons[name])
        return place if name == "pisa" else WholeCopies()

    stageout = stageout_of(ledger, PISA, BARI, place=opened)
    for days in (1, 30):
        assert clean(stageout, now=lambda days=days: NOW + timedelta(days=days), limit=9).postponed == 1
    assert "it moves" in rows_of(ledger, [number])[0].reason
    reasons.clear()
    assert clean(stageout, now=lambda: NOW + timedelta(days=31), limit=9).cleaned == 1


def test_a_removal_that_works_later_is_clean(ledger, place, stageout):
    left(ledger, place, T.CLEANING, 2)
    name = min(place.files)
    place.refusals[name] = REFUSED
    assert cleaned(stageout) == CleanReport(cleaned=1, postponed=1)
    place.refusals.clear()
    assert cleaned(stageout, NOW + timedelta(hours=1)) == CleanReport(cleaned=1)
    assert place.files == {}
    # a source that is gone is clean
    left(ledger, place, T.CLEANING)
    place.files.clear()
    assert cleaned(stageout) == CleanReport(cleaned=1)


def test_a_user_without_credential_does_not_keep_others_from_being_cleaned(ledger, place):
    def opened(_, owner):
        if owner == "bob":
            raise FtsUnreachable("no credential of bob")
        return place

    stageout = with_copies(ledger, opened)
    left(ledger, place, T.CLEANING)
    left(ledger, place, T.CLEANING, owner="bob", source_name="/store/temp/user/bob/a.root")
    assert cleaned(stageout) == CleanReport(cleaned=1, postponed=1)
    assert list(place.files) == ["/store/temp/user/bob/a.root"]


def test_a_pass_that_died_after_the_removal_is_repeated(ledger, place, stageout):
    left(ledger, place, T.CLEANING, 3)

    class DiesAfterRemoval(MemoryPlace):
        def remove(self, names):
            place.remove(names)
            raise SystemExit

    dying = DiesAfterRemoval(place.files)
    with pytest.raises(SystemExit):
        cleaned(with_copies(ledger, dying))
    assert place.files == {}
    assert cleaned(stageout) == CleanReport()
    assert cleaned(stageout, NOW + stageout.worker.keeps + timedelta(seconds=1)) == CleanReport(cleaned=3)


def test_a_pass_whose_claim_is_over_removes_nothing_that_another_has_cleaned(ledger, place, stageout):
    [number] = left(ledger, place, T.CLEANING)
    [name] = place.files
    clock = [NOW]

    class Slow(MemoryPlace):
        def look(self, names, *, checksum):
            found = place.look(names, checksum=checksum)
            # meanwhile another pass removes the source, and the user writes the file again
            clock[0] += stageout.worker.keeps + timedelta(seconds=1)
            assert cleaned(stageout, clock[0]) == CleanReport(cleaned=1)
            place.put(name)
            return found

        def remove(self, names):
            return place.remove(names)

    slow = with_copies(ledger, Slow())
    assert clean(slow, now=lambda: clock[0], limit=100) == CleanReport()
    assert (list(place.files), states(ledger)[number]) == ([name], T.CLEANED)


def test_a_slow_pass_keeps_its_claim_until_the_removal(ledger, place, stageout):
    left(ledger, place, T.CLEANING)
    clock = [NOW]

    class Slow(MemoryPlace):
        def look(self, names, *, checksum):
            clock[0] += stageout.worker.keeps * 0.9
            return place.look(names, checksum=checksum)

        def remove(self, names):
            clock[0] += stageout.worker.keeps * 0.9
            assert cleaned(stageout, clock[0]) == CleanReport()
            return place.remove(names)

    assert clean(with_copies(ledger, Slow()), now=lambda: clock[0], limit=100).cleaned == 1


def test_a_pass_of_many_batches_is_an_act_in_the_audit(ledger, place, stageout):
    left(ledger, place, T.CLEANING, 5)
    done = run_pass(stageout, {"clean": clean}, now=lambda: NOW, left=lambda: True, limit=2)
    assert done.components["clean"].batches == 4
    (act,) = audit(ledger, AuditChoice(kind="sources cleaned"))
    assert act.what.startswith("5 sources")
