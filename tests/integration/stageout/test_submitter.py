"""The submitter against an FTS server: jobs, their order, and each way in which a submission can end."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from include.fts.client import BanOf, FtsClient
from include.settings.stageout import StageoutSettings
from include.stageout.archive import history
from include.stageout.components.census import take_census
from include.stageout.components.retry_manager import kill
from include.stageout.errors import CREDENTIAL_MISSING, MOVE_REFUSED
from include.stageout.files import FileKind
from include.stageout.findings import FindingKind
from include.stageout.jobs import declare_dead
from tests.fakes.ftsserver import Scripted
from tests.fakes.refused import refused
from tests.fakes.transferloop import mock_site


def bodies(loop):
    return [json.loads(asked.body) for asked in loop.server.asked if asked.method == "POST" and asked.path == "/jobs"]


def test_a_queue_becomes_jobs_of_as_many_files_as_the_settings_allow(loop):
    loop.settings = StageoutSettings(files_per_job=3)
    loop.request(7)
    report = loop.submit()
    assert (report.rows, report.jobs, report.outcomes) == (7, 3, {"submitted": 7})
    assert [row.files for row in loop.jobs()] == [3, 3, 1]
    assert {row.fts_id for row in loop.jobs()} == set(loop.server.jobs)


def test_a_job_says_whose_it_is_and_overwrites_nothing(loop):
    (number,) = loop.request(user_job="job-7")
    loop.submit()
    (body,) = bodies(loop)
    params = body["params"]
    assert (params["overwrite"], params["retry"]) == (False, -1)
    assert (params["max_time_in_queue"], params["verify_checksum"]) == ("18000s", "both")
    assert params["job_metadata"] == {
        "job": loop.jobs()[0].id, "owner": "ann", "workflows": ["workflow"], "user_jobs": ["job-7"]
    }  # fmt: skip
    (file,) = body["files"]
    assert (file["metadata"], file["filesize"], file["activity"]) == ({"transfer": number}, 10, "default")


def test_users_take_turns(loop):
    loop.settings = StageoutSettings(files_per_job=2)
    loop.request(20, owner="ann")
    loop.request(2, owner="bob")
    loop.submit(limit=4)
    owners = [body["params"]["job_metadata"]["owner"] for body in bodies(loop)]
    assert sorted(owners) == ["ann", "bob"]


def test_log_files_wait_for_outputs_of_their_link_and_not_for_ever(loop):
    loop.settings = StageoutSettings(most_queued=1, files_per_job=1)
    loop.request(2)
    (log,) = loop.request(kind=FileKind.LOG)
    loop.submit()
    assert loop.row(log).state == "new"
    loop.later(minutes=16)
    loop.settings = StageoutSettings()
    loop.submit()
    assert set(loop.states()) == {"submitted"}


def test_a_link_has_no_more_files_at_fts_than_its_limit(loop):
    loop.settings = StageoutSettings(most_queued=3, files_per_job=2)
    loop.request(5)
    assert loop.submit().outcomes == {"submitted": 3}
    report = loop.submit()
    assert (report.rows, sum(report.held.values())) == (0, 1)
    assert loop.states().count("new") == 2


def test_a_ban_that_lasts_for_days_is_tried_less_and_less_often(loop):
    (number,) = loop.request()
    answer_jobs_with(loop, "bari", 403, "mock://bari is banned")
    tries = 0
    for _ in range(3 * 24 * 2):
        tries += loop.submit().rows
        loop.later(minutes=30)
    assert 24 <= tries <= 48
    assert (loop.row(number).state, loop.row(number).retries, loop.jobs()[0].state) == ("new", 0, "refused")


@pytest.mark.parametrize("arrived", ["nowhere", "at FTS", "in its archive"])
def test_a_lost_reply_is_followed_up_by_the_id(loop, arrived):
    ids = loop.request(2)
    loop.server.answer("POST", "/jobs", 502, b"<html>bad gateway</html>")
    loop.submit()
    assert (loop.states(), loop.jobs()[0].state) == (["claimed", "claimed"], "submitting")
    fts_id = loop.jobs()[0].fts_id
    if arrived == "at FTS":  # and it has even ended
        loop.server.reply([one for one in loop.server.asked if one.path == "/jobs"][-1])
        loop.answer_files(ids, "FINISHED")
    elif arrived == "in its archive":
        loop.server.answer("GET", "/archive/", 200, {"job_id": fts_id, "job_state": "FINISHED"})
    loop.later(seconds=21)
    before = loop.server.count("POST", "^/jobs$")
    report = loop.submit()
    # one that had not arrived is sent again, under the same id
    assert loop.server.count("POST", "^/jobs$") == before + (arrived == "nowhere")
    assert (report.jobs, loop.states()) == (1, ["submitted", "submitted"])
    assert arrived == "in its archive" or [row.fts_id for row in loop.jobs()] == list(loop.server.jobs)
    if arrived == "at FTS":
        loop.monitor()
        assert loop.states() == ["copied", "copied"]


def test_nothing_is_sent_again_to_a_site_that_has_failed(loop):
    loop.request(2)
    loop.server.answer("POST", "/jobs", 502, b"<html>bad gateway</html>")
    loop.submit()
    loop.obstacles = {"bari": "it has failed: first byte: timeout"}
    loop.later(seconds=21)
    before = loop.server.count("POST", "^/jobs$")
    loop.submit()
    assert (loop.server.count("POST", "^/jobs$"), loop.states()) == (before, ["claimed", "claimed"])
    loop.obstacles = {}
    loop.later(minutes=2)
    loop.submit()
    assert loop.states() == ["submitted", "submitted"]


def test_a_dead_job_is_not_adopted(loop):
    (number,) = loop.request()
    loop.server.answer("POST", "/jobs", 500, b"")
    loop.submit()
    first = loop.jobs()[0].fts_id
    assert declare_dead(loop.ledger, first, by="operator", now=loop.now(), margin=timedelta(minutes=10)) == {number}
    loop.later(seconds=21)
    loop.submit()
    assert [job.state for job in loop.jobs()] == ["dead"], "its request may have arrived, and a copy may write"
    loop.later(seconds=1202)
    loop.submit()
    dead, alive = loop.jobs()
    assert (dead.state, alive.state) == ("dead", "submitted")
    assert list(loop.server.jobs) == [alive.fts_id] != [first]


def test_a_job_whose_request_is_on_its_way_is_not_declared_dead(loop, monkeypatch):
    loop.request()
    submit = FtsClient.submit

    def beside(client, job, name):
        with refused(MOVE_REFUSED):
            declare_dead(loop.ledger, name.job_id, by="operator", now=loop.now(), margin=timedelta(minutes=10))
        return submit(client, job, name)

    monkeypatch.setattr(FtsClient, "submit", beside)
    loop.submit()
    assert (loop.states(), loop.jobs()[0].state) == (["submitted"], "submitted")


def test_a_server_that_is_down_costs_nothing(loop):
    (number,) = loop.request()
    loop.server.answer("GET", "/ban/se", 503, b"")
    loop.server.answer("GET", "/whoami", 503, b"")
    report = loop.submit()
    assert (report.rows, report.held, loop.row(number).state) == (0, {"fts-failed": 1}, "new")


def test_html_in_place_of_a_reply_leaves_the_outcome_open(loop):
    loop.request()
    loop.server.answer("POST", "/jobs", 200, b"<html>welcome</html>")
    loop.submit()
    assert loop.states() == ["claimed"]
    loop.later(seconds=21)
    loop.server.answer("GET", "/jobs/", 200, b"<html>welcome</html>")
    report = loop.submit()
    assert (report.held, loop.states()) == ({"fts-reply-unexpected": 1}, ["claimed"])
    loop.later(seconds=61)
    assert loop.submit().jobs == 1


def test_a_missing_delegation_spends_no_retry(loop):
    ids = loop.request(3)
    loop.server.delegated = None
    loop.submit()
    assert loop.states() == ["needs-credential"] * 3
    assert {loop.row(number).retries for number in ids} == {0}
    loop.server.delegated = loop.at
    loop.later(minutes=3)
    assert loop.retry().retried == 3
    loop.submit()
    assert loop.states() == ["submitted"] * 3


def test_a_user_without_credential_holds_up_no_other(loop):
    loop.request(owner="ann")
    loop.request(owner="bob")
    loop.credential_missing["ann"] = CREDENTIAL_MISSING("proxy of ann: it does not exist")
    loop.submit()
    assert loop.states() == ["needs-credential", "submitted"]
    loop.later(minutes=3)
    assert list(loop.retry().without_credential) == ["ann"]
    loop.credential_missing.clear()
    loop.later(minutes=3)
    loop.retry()
    loop.submit()
    assert loop.states() == ["submitted", "submitted"]


def answer_jobs_with(loop, name, status=500, message="The server encountered an internal error"):
    """Each job that has a file of this name gets this answer; 500 is what FTS says of what its tables cannot keep."""
    route = loop.server._route

    def answering(request):
        if request.path == "/jobs" and name.encode() in request.body:
            return status, {"status": str(status), "message": message}
        return route(request)

    loop.server._route = answering


def test_a_file_that_fts_refuses_fails_alone(loop):
    ids = loop.request(8)
    bad = loop.row(ids[5])
    answer_jobs_with(loop, bad.source_name, 400, "Invalid value within the request")
    loop.submit()
    assert loop.states() == ["submitted"] * 5 + ["failed"] + ["submitted"] * 2
    assert loop.row(bad.id).failure == "invalid"
    assert "Invalid value" in loop.row(bad.id).reason


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (409, "The sid provided by the user is duplicated", ("submitted", None, 0)),
        (409, "The submission is duplicated", ("retry-wait", "other", 1)),
        (403, "Not enough granted level", ("retry-wait", "permission", 1)),
    ],
)
def test_a_refusal_decides_what_becomes_of_the_file(loop, status, message, expected):
    (number,) = loop.request()
    loop.server.answer("POST", "/jobs", status, {"status": str(status), "message": message})
    loop.submit()
    row = loop.row(number)
    assert (row.state, row.failure, row.retries) == expected


def test_a_name_without_a_url_waits_for_the_configuration(loop):
    (number,) = loop.request()
    rules = [{"prefix": "/elsewhere", "url": "mock://pisa.example.org"}]
    loop.sites["pisa"] = mock_site("pisa", third_party=rules)
    loop.submit()
    assert (loop.row(number).state, loop.row(number).retries, loop.server.jobs) == ("retry-wait", 0, {})
    loop.sites["pisa"] = mock_site("pisa")
    loop.later(minutes=31)
    loop.retry()
    loop.submit()
    assert loop.row(number).state == "submitted"


def test_overwriting_transfers_are_jobs_of_their_own(loop):
    ids = loop.submitted(2)
    mid = {"reason": "TRANSFER [5] copy broke", "start_time": "2026-11-23T12:00:00"}
    loop.answer_files(ids, "FAILED", **mid)
    loop.monitor()
    loop.request(1)
    loop.later(hours=1)
    loop.retry()
    loop.submit()
    params = [(len(body["files"]), body["params"]["overwrite"]) for body in bodies(loop)]
    assert sorted(params[1:]) == [(1, False), (2, True)]
    assert [bool(row.overwrites) for row in loop.jobs()].count(True) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_during_the_submission_is_not_lost(loop, when):
    (number,) = loop.request()
    loop.server.answer("POST", "/jobs", 500, b"")
    loop.submit()
    if when == "after":  # the request had arrived
        loop.server.reply([one for one in loop.server.asked if one.path == "/jobs"][-1])
    assert kill(loop.ledger, by="ann", now=loop.now(), ids=[number]).killing == {number}
    loop.later(seconds=21)
    loop.submit()
    loop.monitor()
    loop.monitor()
    assert loop.row(number).state == "killed"
    assert "killing" in [move.state for move in history(loop.ledger, number)]
    assert all(file["file_state"] == "CANCELED" for file in loop.fts_files().values())


def test_a_server_that_makes_other_ids_is_followed(loop):
    loop.request()
    loop.server.answer("POST", "/jobs", 200, {"job_id": "00000000-0000-1000-8000-000000000001"})
    loop.submit()
    assert loop.jobs()[0].fts_id == "00000000-0000-1000-8000-000000000001"


def test_jobs_that_fts_fails_with_hold_up_no_other_user(loop):
    loop.request(4, owner="eve", activity="poison")
    for number in range(20):
        loop.request(1, owner="eve", activity=f"poison {number}")
    answer_jobs_with(loop, "poison")
    ids = [number for user in range(10) for number in loop.request(2, owner=f"user-{user}")]
    loop.submit()
    assert {loop.row(number).state for number in ids} == {"submitted"}
    # no more than some of the user's jobs are in question at a time
    assert len([row for row in loop.jobs() if row.state == "submitting"]) == 3


def test_a_server_that_fails_with_the_jobs_of_several_users_is_left_for_the_batch(loop):
    for user in range(8):
        loop.request(1, owner=f"user-{user}")
    answer_jobs_with(loop, "files")
    loop.submit()
    assert loop.server.count("POST", "^/jobs$") == 3
    assert loop.states().count("new") == 5


def test_the_user_reads_why_a_submission_is_in_question(loop):
    (number,) = loop.request()
    answer_jobs_with(loop, "files")
    loop.submit()
    loop.later(seconds=21)
    loop.submit()
    (job,) = loop.jobs()
    assert (job.tries, job.due_at - loop.now()) == (2, timedelta(seconds=40))
    reason = loop.row(number).reason
    assert "HTTP 500" in reason
    assert f"FTS job {job.fts_id}" in reason
    assert "sent 2 times, looked for again at" in reason


def test_a_file_that_fts_fails_with_is_found_and_ends_alone(loop):
    ids = loop.request(4)
    bad = loop.row(ids[2])
    answer_jobs_with(loop, bad.source_name)
    loop.request(1, owner="bob")
    for _ in range(200):
        loop.submit()
        loop.retry()
        if {loop.row(number).state for number in ids} == {"submitted", "failed"}:
            break
        loop.later(minutes=2)
        loop.request(1, owner="bob")
    assert [loop.row(number).state for number in ids] == ["submitted"] * 2 + ["failed"] + ["submitted"]
    row = loop.row(bad.id)
    assert row.failure == "submission"
    assert "after 3 retries: FTS fails with the job of this file" in row.reason
    assert "HTTP 500" in row.reason
    # each file is in one job at most
    loop.submit()
    assert sorted(loop.fts_files()) == sorted({row.id for row in loop.rows()} - {bad.id})
    transfers = [file["file_metadata"]["transfer"] for job in loop.server.jobs.values() for file in job["files"]]
    assert len(transfers) == len(set(transfers))


def test_a_job_is_taken_apart_only_when_fts_does_not_have_it(loop):
    loop.request(4)
    route = loop.server._route

    def losing(request):
        found = route(request)
        return (504, b"") if request.path == "/jobs" else found

    loop.server._route = losing
    loop.submit()
    loop.server._route = route
    for _ in range(5):
        loop.later(minutes=11)
        loop.submit()
    assert (len(loop.server.jobs), len(loop.jobs()), set(loop.states())) == (1, 1, {"submitted"})


def test_an_outage_takes_no_job_apart(loop):
    loop.request(4)
    answer_jobs_with(loop, "files")
    for _ in range(8):
        loop.submit()
        loop.later(minutes=11)
    assert [(row.tries, row.files) for row in loop.jobs()] == [(8, 4)]


def test_what_fts_cannot_keep_and_was_recorded_before_fails_at_once(loop):
    poison = [number for name in range(40) for number in loop.request(1, owner="eve", activity=f"日本{name}")]
    others = [number for user in range(10) for number in loop.request(2, owner=f"user-{user}")]
    loop.submit()
    assert {loop.row(number).state for number in others} == {"submitted"}
    assert {(loop.row(number).state, loop.row(number).failure) for number in poison} == {("failed", "invalid")}
    assert "keeps Latin-1 only" in loop.row(poison[0]).reason


BANNED_USER = (403, b"<title>403 Forbidden</title>\n<h1>Forbidden</h1>\n<p>The user has been banned</p>\n")


def test_the_ban_of_another_vo_holds_no_queue(loop):
    loop.request()
    loop.stageout.fts("fts_default", "").ban(BanOf.STORAGE, "mock://bari.example.org")
    loop.server.banned["mock://bari.example.org"]["vo"] = "atlas"
    loop.server.refuses_banned = False
    assert loop.submit().jobs == 1


def test_what_waits_for_the_end_of_a_ban_says_so(loop):
    (number,) = loop.request()
    client = loop.stageout.fts("fts_default", "")
    client.ban(BanOf.STORAGE, "mock://bari.example.org")
    assert loop.submit().held == {"the storage of bari is banned at fts_default": 1}
    assert (loop.row(number).state, loop.row(number).retries) == ("new", 0)
    assert loop.row(number).reason == "held: the storage of bari is banned at fts_default"
    client.unban(BanOf.STORAGE, "mock://bari.example.org")
    assert loop.submit().jobs == 1
    assert not loop.row(number).reason.startswith("held: ")


def test_a_banned_user_reads_it_on_each_transfer_and_in_the_census(loop):
    at_fts = loop.submitted(2)
    waits = loop.request(2)
    route = loop.server.reply
    status, page = BANNED_USER
    loop.server.reply = lambda request: Scripted("", "", status, page, {"Content-Type": "text/html"})
    loop.clients.clear()
    loop.submit()
    loop.monitor()
    rows = [loop.row(number) for number in (*at_fts, *waits)]
    assert [row.state for row in rows] == ["submitted", "submitted", "new", "new"]
    assert all(row.reason.startswith("held: ") and "The user has been banned" in row.reason for row in rows)
    found = [one for one in take_census(loop.stageout, now=loop.now).findings if one.kind is FindingKind.HELD]
    assert {one.transfer for one in found} == {*at_fts, *waits}
    loop.server.reply = route
    loop.later(minutes=3)
    loop.monitor()
    loop.submit()
    assert not [row for row in loop.rows() if row.reason.startswith("held: ")]
    assert not [one for one in take_census(loop.stageout, now=loop.now).findings if one.kind is FindingKind.HELD]


def test_a_server_that_takes_us_for_anonymous_asks_for_a_credential(loop):
    (number,) = loop.request()
    loop.server.method = "unauthenticated"
    loop.submit()
    assert loop.row(number).state == "needs-credential"
    assert "give the connection a token" in loop.row(number).reason
