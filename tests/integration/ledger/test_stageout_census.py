"""The census on real ledgers: what it finds, what it repairs, and what it deletes, which is next to nothing."""

from __future__ import annotations

import errno
import secrets
import uuid
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import insert, update

from include.fts.client import FtsClient
from include.fts.errors import CredentialNeeded
from include.fts.states import FailureReason
from include.ledger.acts import LedgerRestore, restores_of
from include.ledger.engine import writing
from include.stageout.archive import archive_transfers, forget_requests
from include.stageout.claims import claim_queue
from include.stageout.components.census import CensusLimits, take_census
from include.stageout.components.retry_manager import note_restore
from include.stageout.errors import PLACE_UNLISTED, RESTORE_REFUSED
from include.stageout.findings import CensusFinding, FindingKind, FindingOutcome, last_findings, record_findings
from include.stageout.states import TransferJobState, TransferState
from include.stageout.tables import stageout_jobs, stageout_requests
from tests.fakes.ftsserver import FtsServer
from tests.fakes.places import MemoryPlace, put_in, site, stageout_of
from tests.fakes.refused import refused
from tests.fakes.transfers import NOW, recorded, row_of, states

T, J, K, D = TransferState, TransferJobState, FindingKind, FindingOutcome
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PISA, BARI = site("pisa", clean_unknown=True), site("bari", clean=False, temporary=None)
ANN = "/store/temp/user/ann"
OLD, BEGIN = NOW - 20 * DAY, NOW - 300 * DAY


@pytest.fixture
def place():
    return MemoryPlace()


@pytest.fixture
def stageout(ledger, place):
    return stageout_of(ledger, PISA, BARI, place=place)


def census(stageout, **options):
    return take_census(stageout, now=lambda: NOW, **options)


def found(report, *kinds):
    """Kinds and outcomes, with the name or the row."""
    return Counter(
        (finding.kind, finding.outcome, finding.name or finding.transfer or finding.job)
        for finding in report.findings if not kinds or finding.kind in kinds
    )  # fmt: skip


# -- the ledger


def test_a_ledger_in_which_everything_moves_has_no_findings(ledger, stageout, place):
    for state in T:
        [number] = recorded(ledger)
        put_in(ledger, [number], state, NOW - HOUR / 2)
        place.put(row_of(ledger, number).destination_name)
    assert census(stageout).counts == {}


def test_rows_that_are_stuck_name_who_should_have_moved_them(ledger, stageout):
    [waiting], [copied] = recorded(ledger), recorded(ledger)
    put_in(ledger, [waiting], T.RETRY_WAIT, NOW - DAY, due_at=NOW - DAY + HOUR)
    put_in(ledger, [copied], T.COPIED, NOW - DAY)
    report = census(stageout)
    assert found(report) == {(K.OLD_STATE, D.REPORTED, waiting): 1, (K.OLD_STATE, D.REPORTED, copied): 1}
    reasons = {finding.transfer: finding.reason for finding in report.findings}
    assert ("the retry" in reasons[waiting], "the reporter" in reasons[copied]) == (True, True)


def test_a_row_that_is_due_in_a_far_future_is_due_again(ledger, stageout):
    [number], [held] = recorded(ledger), recorded(ledger)
    ahead = {"due_at": NOW + 300 * DAY}
    put_in(ledger, [number], T.RETRY_WAIT, NOW - DAY, **ahead)
    put_in(ledger, [held], T.RETRY_WAIT, NOW - DAY, **ahead, claim=secrets.token_hex(16), claimed_by="other")
    assert found(census(stageout)) == {(K.OLD_STATE, D.REPAIRED, number): 1, (K.OLD_STATE, D.REPORTED, held): 1}
    assert (row_of(ledger, number).due_at, row_of(ledger, held).due_at) == (NOW, ahead["due_at"])
    assert states(ledger) == {number: T.RETRY_WAIT, held: T.RETRY_WAIT}


def test_a_row_that_waits_for_a_copy_of_an_earlier_attempt_is_not_made_due(ledger, stageout):
    [number] = recorded(ledger)
    until = NOW + DAY
    put_in(ledger, [number], T.NEW, NOW - 3 * DAY, due_at=until, may_write_until=until)
    [finding] = [finding for finding in census(stageout).findings if finding.kind is K.OLD_STATE]
    assert (finding.transfer, finding.outcome) == (number, D.REPORTED)
    assert f"may still write to the destination until {until:%Y-%m-%d %H:%M:%S} UTC" in finding.reason
    assert row_of(ledger, number).due_at == until
    # whatever else makes it due
    put_in(ledger, [number], T.NEW, NOW - 3 * DAY, due_at=NOW, may_write_until=until)
    queue, worker = row_of(ledger, number).queue, stageout.worker
    assert claim_queue(ledger, queue, worker, limit=9, now=NOW).rows == ()
    assert [row.id for row in claim_queue(ledger, queue, worker, limit=9, now=until).rows] == [number]


def test_a_claim_that_ended_long_ago_names_the_process(ledger, stageout):
    [number] = recorded(ledger)
    put_in(ledger, [number], T.DONE, NOW - 2 * HOUR, claim=secrets.token_hex(16), claimed_by="worker-7")
    [finding] = [finding for finding in census(stageout).findings if finding.kind is K.CLAIM_OVER]
    assert (finding.transfer, "worker-7" in finding.reason) == (number, True)


def test_a_census_replaces_the_findings_of_the_one_before_and_bounds_them(ledger, stageout):
    put_in(ledger, recorded(ledger, 5), T.COPIED, NOW - DAY)
    report = census(stageout, limits=CensusLimits(findings=3))
    assert last_findings(ledger) == report.findings
    assert len(report.findings) == 3
    put_in(ledger, list(states(ledger)), T.CLEANED, NOW)
    assert census(stageout).findings == last_findings(ledger) == ()


# -- FTS


@pytest.fixture
def server():
    with FtsServer() as running:
        yield running


def job_of(ledger, server, state, *, at_fts=None, transfer=None, moved_at=NOW - 2 * HOUR, due_at=NOW + HOUR):
    """A job in a state of the ledger, and in another one at FTS; None: FTS does not know it."""
    fts_id = str(uuid.uuid4())
    transfer = transfer or recorded(ledger)[0]
    values = {
        "sid": secrets.token_hex(16), "fts_id": fts_id, "server": "fts", "queue": row_of(ledger, transfer).queue,
        "files": 1, "state": state.value, "reason": "", "due_at": due_at, "created_at": moved_at, "moved_at": moved_at,
    }  # fmt: skip
    number = writing(ledger, lambda connection: connection.execute(insert(stageout_jobs).values(values)).lastrowid)
    put_in(ledger, [transfer], T.SUBMITTED, NOW, job=number)
    if at_fts is not None:
        server.jobs[fts_id] = {"job_id": fts_id, "job_state": at_fts, "files": []}
    return number


def asking(ledger, server, place):
    return stageout_of(ledger, PISA, BARI, place=place, fts=lambda *_: FtsClient(server.url, pause=lambda _: None))


def test_jobs_that_fts_sees_in_another_way_are_asked_for_again(ledger, server, place):
    same = job_of(ledger, server, J.ACTIVE, at_fts="ACTIVE")
    ended = job_of(ledger, server, J.ACTIVE, at_fts="FINISHED")
    unknown = job_of(ledger, server, J.SUBMITTED)
    late = job_of(ledger, server, J.SUBMITTED, at_fts="FAILED", due_at=NOW - HOUR)
    fresh = job_of(ledger, server, J.SUBMITTED, at_fts="FINISHED", moved_at=NOW)
    running = job_of(ledger, server, J.LOST, at_fts="ACTIVE")
    server.answer(
        "GET", "/archive/", 404, {"status": "404 Not Found", "message": 'No job with the id "x" has been found'}
    )
    report = census(asking(ledger, server, place))
    assert found(report, K.JOB_ENDED, K.JOB_UNKNOWN, K.JOB_RUNS) == {
        (K.JOB_ENDED, D.REPAIRED, ended): 1,
        (K.JOB_ENDED, D.REPORTED, late): 1,
        (K.JOB_UNKNOWN, D.REPAIRED, unknown): 1,
        (K.JOB_RUNS, D.REPORTED, running): 1,
    }
    due = {number: row_of(ledger, number, stageout_jobs).due_at for number in (same, ended, unknown, fresh, running)}
    assert due == {same: NOW + HOUR, ended: NOW, unknown: NOW, fresh: NOW + HOUR, running: NOW + HOUR}
    assert row_of(ledger, ended, stageout_jobs).state == "active"


def test_a_job_in_the_archive_of_fts_has_ended(ledger, server, place):
    number = job_of(ledger, server, J.ACTIVE)
    fts_id = row_of(ledger, number, stageout_jobs).fts_id
    server.answer("GET", f"/archive/{fts_id}", 200, {"job_id": fts_id, "job_state": "FINISHED"})
    assert found(census(asking(ledger, server, place))) == {(K.JOB_ENDED, D.REPAIRED, number): 1}


def test_a_server_that_cannot_be_asked_is_one_finding(ledger, place):
    def refuse(*_):
        raise CredentialNeeded("no credential")

    for _ in range(3):
        job_of(ledger, None, J.ACTIVE)
    report = census(stageout_of(ledger, PISA, BARI, place=place, fts=refuse))
    assert report.counts == {(K.SERVER_UNASKED, D.REPORTED): 1}


def test_a_transfer_whose_job_has_ended_in_the_ledger_is_stuck(ledger, server, place):
    [stuck], [moving] = recorded(ledger), recorded(ledger)
    for number in (stuck, moving):
        job_of(ledger, server, J.FINISHED, transfer=number)
    put_in(ledger, [stuck], T.ACTIVE, NOW - 2 * HOUR)
    assert found(census(asking(ledger, server, place)), K.JOB_OVER) == {(K.JOB_OVER, D.REPORTED, stuck): 1}


# -- destinations


def test_copies_that_are_gone_or_changed_are_named_before_their_sources_are_removed(ledger, stageout, place):
    numbers = recorded(ledger, 4)
    put_in(ledger, numbers, T.CLEANING, NOW, size=7)
    names = [row_of(ledger, number).destination_name for number in numbers]
    place.put(*names[1:])
    place.put(names[1], size=8)
    place.refusals[names[2]] = FailureReason(None, errno.EACCES, "HEAD: HTTP 403")
    assert found(census(stageout)) == {
        (K.COPY_MISSING, D.REPORTED, names[0]): 1,
        (K.COPY_DIFFERS, D.REPORTED, names[1]): 1,
        (K.SITE_UNASKED, D.REPORTED, None): 1,
    }
    assert set(states(ledger).values()) == {T.CLEANING}


# -- temporary areas


@pytest.fixture
def known_since(ledger):
    """The ledger is older than the files: a first request came long ago."""
    put_in(ledger, recorded(ledger), T.CLEANED, NOW)
    everything = update(stageout_requests).values(created_at=BEGIN)
    writing(ledger, lambda connection: connection.execute(everything))


@pytest.mark.usefixtures("known_since")
def test_old_files_that_no_transfer_names_are_deleted_only_if_that_is_asked_for(ledger, stageout, place):
    place.put(f"{ANN}/old.root", f"{ANN}/sub/old.root", modified=OLD)
    place.put(f"{ANN}/new.root", modified=NOW - 13 * DAY)
    names = [f"{ANN}/old.root", f"{ANN}/sub/old.root"]
    assert found(census(stageout)) == {(K.UNKNOWN_FILE, D.DELETABLE, name): 1 for name in names}
    assert place.removed == []
    assert found(census(stageout, deletes=True)) == {(K.UNKNOWN_FILE, D.DELETED, name): 1 for name in names}
    assert (place.removed, list(place.files)) == (names, [f"{ANN}/new.root"])
    # a site without the mark only has them named
    place.put(names[0], modified=OLD)
    report = census(stageout_of(ledger, site("pisa"), BARI, place=place), deletes=True)
    assert found(report) == {(K.UNKNOWN_FILE, D.REPORTED, names[0]): 1}
    assert place.removed == names


@pytest.mark.usefixtures("known_since")
def test_a_file_of_a_transfer_in_any_other_state_is_never_deleted(ledger, stageout, place):
    for state in set(T) - {T.CLEANED}:
        name = f"{ANN}/{state.value}.root"
        put_in(ledger, recorded(ledger, source_name=name), state, NOW - DAY)
        place.put(name, modified=OLD)
    census(stageout, deletes=True)
    assert place.removed == []
    for state in (T.KEPT, T.FAILED, T.KILLED):
        assert archive_transfers(ledger, state, before=NOW, limit=10) == 1
    census(stageout, deletes=True)
    assert place.removed == []


@pytest.mark.usefixtures("known_since")
def test_a_new_file_in_the_place_of_a_cleaned_one_is_unknown(ledger, stageout, place):
    name = f"{ANN}/a.root"
    put_in(ledger, recorded(ledger, source_name=name), T.CLEANED, NOW - DAY)
    place.put(name, modified=OLD)
    census(stageout, deletes=True)
    assert place.removed == [name]


@pytest.mark.usefixtures("known_since")
def test_a_file_that_is_itself_a_copy_is_never_deleted(ledger, stageout, place):
    name = f"{ANN}/copy.root"
    for state in (T.CLEANED, T.KEPT):
        ids = recorded(ledger, source="bari", destination="pisa", destination_name=name)
        put_in(ledger, ids, state, NOW - DAY)
        place.put(name, modified=OLD)
        census(stageout, deletes=True)
        assert archive_transfers(ledger, state, before=NOW, limit=1) == 1
        census(stageout, deletes=True)
        assert place.removed == []


@pytest.mark.usefixtures("known_since")
def test_a_file_of_the_same_storage_under_another_site_name_is_known(ledger, place):
    alias = site("pisa_too", read=PISA.read, write=PISA.write, third_party=PISA.third_party)
    name = f"{ANN}/a.root"
    put_in(ledger, recorded(ledger, source="pisa_too", source_name=name), T.FAILED, NOW)
    place.put(name, modified=OLD)
    census(stageout_of(ledger, PISA, alias, BARI, place=place), deletes=True)
    assert place.removed == []


def test_a_new_or_lost_ledger_deletes_nothing(ledger, stageout, place):
    place.put(f"{ANN}/old.root", modified=OLD)
    assert census(stageout, deletes=True).findings == ()
    put_in(ledger, recorded(ledger), T.CLEANED, NOW)
    assert found(census(stageout, deletes=True)) == {(K.UNKNOWN_FILE, D.REPORTED, f"{ANN}/old.root"): 1}
    assert place.removed == []


@pytest.mark.usefixtures("known_since")
def test_what_was_written_between_a_backup_of_the_ledger_and_its_restore_is_never_deleted(ledger, stageout, place):
    backup, restored = NOW - 60 * DAY, NOW - 50 * DAY
    for _ in range(2):
        assert note_restore(ledger, (backup + HOUR).isoformat(), by="operator", now=restored, margin=HOUR) == backup
    assert restores_of(ledger) == [LedgerRestore(backup, restored, "operator")]
    lost, before, after = (f"{ANN}/{name}.root" for name in ("lost", "before", "after"))
    place.put(lost, modified=backup + DAY)
    place.put(before, modified=backup - DAY)
    place.put(after, modified=restored + DAY)
    findings = {finding.name: finding for finding in census(stageout, deletes=True).findings}
    assert place.removed == [before, after]
    assert (findings[lost].outcome, "before it was restored from a backup" in findings[lost].reason) == (
        D.REPORTED,
        True,
    )


def test_a_restore_from_a_time_that_cannot_be_is_refused(ledger):
    for backup in ("2026-11-20T12:00:00", "yesterday", (NOW + DAY).isoformat()):  # no zone, no time, the future
        with refused(RESTORE_REFUSED):
            note_restore(ledger, backup, by="operator", now=NOW, margin=timedelta())
    assert restores_of(ledger) == []


def test_a_ledger_that_has_forgotten_its_first_requests_is_as_old_as_its_archive(ledger, stageout, place):
    put_in(ledger, recorded(ledger, now=BEGIN), T.CLEANED, BEGIN)
    archive_transfers(ledger, T.CLEANED, before=NOW, limit=10)
    forget_requests(ledger, before=NOW, limit=10)
    recorded(ledger)
    place.put(f"{ANN}/old.root", modified=OLD)
    census(stageout, deletes=True)
    assert place.removed == [f"{ANN}/old.root"]


@pytest.mark.usefixtures("known_since")
def test_only_folders_of_users_are_listed_and_a_listing_that_breaks_off_is_named(ledger, stageout, place):
    recorded(ledger, owner="ann/../bob")
    place.put("/store/temp/other.root", "/store/temp/user/bob/b.root", "/store/user/ann/x", modified=OLD)
    assert census(stageout, deletes=True).findings == ()
    place.unlisted = PLACE_UNLISTED(ANN, "it broke off")
    place.put(f"{ANN}/old.root", modified=OLD)
    report = census(stageout, deletes=True)
    assert {finding.kind for finding in report.findings} == {K.SITE_UNASKED}
    assert place.removed == []


@pytest.mark.usefixtures("known_since")
def test_deletions_are_bounded_and_those_that_fail_are_named(ledger, stageout, place):
    names = [f"{ANN}/{number}.root" for number in range(600)]
    place.put(*names, modified=OLD)
    place.refusals[names[0]] = FailureReason(None, errno.EACCES, "DELETE: HTTP 403")
    report = census(stageout, deletes=True, limits=CensusLimits(deletions=550))
    assert report.counts == {
        (K.UNKNOWN_FILE, D.DELETED): len(place.removed),
        (K.UNKNOWN_FILE, D.DELETABLE): 600 - 1 - len(place.removed),
        (K.UNKNOWN_FILE, D.REPORTED): 1,
    }
    assert 500 <= len(place.removed) <= 550
    assert next(finding for finding in report.findings if finding.name == names[0]).reason.endswith("HTTP 403")


def test_a_finding_survives_the_ledger(ledger):
    finding = CensusFinding(K.UNKNOWN_FILE, "why", D.DELETED, "pisa", 1, 2, "/store/é", 1 << 40)
    record_findings(ledger, [finding], now=NOW)
    assert last_findings(ledger) == (finding,)
