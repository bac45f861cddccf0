"""What counts as proof that a destination is a transfer's own, and what becomes of each state of a file."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.fts.jobs import FileStatus
from include.fts.states import FailureReason, FileState
from include.stageout.attempts.answers import (
    AttemptJudge,
    JobAnswer,
    files_by_transfer,
    may_write_until,
    proves_own_destination,
)
from include.stageout.retry import exponential
from include.stageout.states import TRANSFER_MOVES, StageoutComponent, TransferState
from tests.fakes.transfers import NOW, transfer

OPEN, OVERWRITING = JobAnswer(False, False, False), JobAnswer(True, False, False)
ENDED = JobAnswer(False, True, False)
MARGIN = timedelta(minutes=10)
BEGAN = {"start_time": "2026-11-23T12:00:01"}
FLOWED = {**BEGAN, "throughput": 3.5}
T = TransferState


def file(state="FAILED", **fields):
    urls = {"source_surl": "mock://a/x", "dest_surl": "mock://b/x"}
    return FileStatus.model_validate({"file_id": 1, "file_state": state, **urls, **fields})


def judge_at(now):
    return AttemptJudge(exponential, now, 0.5, MARGIN)


def row(state=T.SUBMITTED, **fields):
    return transfer(state=state, **fields)


@pytest.mark.parametrize(
    ("fields", "reason", "proof"),
    [
        (BEGAN, "TRANSFER [5] copy broke", True),
        (BEGAN, "TRANSFER [28] no space left on device", True),
        (BEGAN, "DESTINATION [5] Source and destination adler32 checksum do not match (a != b)", True),
        (FLOWED, "TRANSFER [110] operation timeout", True),
        (FLOWED, "DESTINATION [112] host is down", True),
        (FLOWED, "", True),
        (BEGAN, "TRANSFER [110] operation timeout", False),
        (BEGAN, "TRANSFER [125] canceled by the user", False),
        (BEGAN, "DESTINATION [112] could not connect", False),
        (BEGAN, "DESTINATION [13] permission denied", False),
        (BEGAN, "SOURCE [2] no such file", False),
        (FLOWED, "SOURCE [5] Source and user-defined adler32 checksum do not match", False),
        (BEGAN, "DESTINATION [17] Destination file exists and overwrite is not enabled", False),
        (FLOWED, "TRANSFER [17] DESTINATION OVERWRITE file exists", False),
        (BEGAN, "GENERAL_FAILURE [5] the process died", False),
        ({}, "TRANSFER [5] copy broke", False),
        (BEGAN, "anything", False),
    ],
)
def test_only_a_copy_that_had_begun_is_proof(fields, reason, proof):
    failure = FailureReason.parse(reason)
    assert proves_own_destination(file(**fields), failure, OPEN) is proof
    assert proves_own_destination(file(**fields), failure, OVERWRITING) is False


@pytest.mark.parametrize("current", [T.SUBMITTED, T.ACTIVE, T.KILLING])
@pytest.mark.parametrize("state", FileState)
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("reason", [None, "TRANSFER [5] x", "DESTINATION [17] destination file exists"])
def test_every_answer_leads_to_a_move_that_the_monitor_may_make(current, state, ended, reason):
    judge = judge_at(NOW)
    answer = file(state.value, reason=reason, **BEGAN)
    judged = judge.judge(row(current), answer, JobAnswer(False, ended, False))
    if judged.move is not None:
        assert TRANSFER_MOVES[judged.move.current, judged.move.to].component is StageoutComponent.MONITOR
    if ended:
        # nothing is left in a job that has ended, but what may still write
        assert judged.settled is (judged.until is None)


def test_a_copy_is_finished_when_fts_says_and_never_in_the_future():
    judge = judge_at(NOW)
    late = (NOW + timedelta(days=900)).isoformat()
    move = judge.judge(row(), file("FINISHED", finish_time=late), OPEN).move
    assert (move.copied_at, move.may_overwrite) == (NOW, True)
    assert judge.judge(row(), file("FINISHED"), OVERWRITING).move.may_overwrite is None


HOST = {"transfer_host": "fts1.example.org"}
RAN = {**HOST, **BEGAN, "finish_time": "2026-11-23T12:00:11"}
START, END = (datetime(2026, 11, 23, 12, 0, second, tzinfo=UTC) for second in (1, 11))
LIMIT = timedelta(seconds=600 + 2 * 943) + MARGIN


@pytest.mark.parametrize(
    ("state", "fields", "until"),
    [
        # no host of FTS has taken it, also where single files of the job are canceled
        ("CANCELED", {"finish_time": "2026-11-23T12:00:11"}, None),
        # the process that copies it was just started, and FTS has no pid of it to kill
        ("CANCELED", {**HOST, "finish_time": "2026-11-23T12:00:11"}, END + LIMIT),
        # a cancel of single files: FTS kills nothing
        ("CANCELED", RAN, START + LIMIT),
        ("CANCELED", {**RAN, "reason": "Storage banned"}, START + LIMIT),
        ("CANCELED", {**RAN, "reason": "User banned"}, START + LIMIT),
        # of the whole job: FTS kills the copy and notes its end
        ("CANCELED", {**RAN, "pid": 7, "reason": "Job canceled by the user"}, END + timedelta(minutes=1)),
        ("CANCELED", {**RAN, "pid": 0, "reason": "Job canceled by the user"}, START + LIMIT),
        ("CANCELED", {**HOST, **BEGAN, "pid": 7, "reason": "Job canceled by the user"}, START + LIMIT),
        # the copy itself reports its end
        ("FAILED", {**RAN, "reason": "TRANSFER [5] copy broke"}, None),
        ("FAILED", {**RAN, "reason": "No FTS server has updated the transfer status"}, START + LIMIT),
        # a text without a scope is not of the copy
        ("FAILED", {**RAN, "reason": None}, START + LIMIT),
        ("FAILED", {**RAN, "reason": "ended by an administrator"}, START + LIMIT),
        ("ACTIVE", {**HOST, **BEGAN}, START + LIMIT),
    ],
)  # fmt: skip
def test_a_copy_may_write_until_fts_has_killed_it_or_its_time_is_over(state, fields, until):
    assert may_write_until(file(state, **fields), 943 * 10**6, margin=MARGIN, now=NOW) == until
    unknown_size = may_write_until(file("CANCELED", **RAN), None, margin=MARGIN, now=NOW)
    assert unknown_size - START > timedelta(days=2), "the time of a large file"


def test_a_file_that_its_ended_job_does_not_have_may_still_be_written():
    judged = judge_at(NOW).judge(row(size=943 * 10**6), None, ENDED)
    assert judged.move.may_write_until == NOW + LIMIT
    assert judge_at(NOW).judge(row(T.KILLING, size=943 * 10**6), None, ENDED).until == NOW + LIMIT


def test_a_kill_ends_when_nothing_of_it_can_write_any_more():
    answer = file("CANCELED", **RAN)
    judged = judge_at(START + LIMIT - timedelta(seconds=1)).judge(row(T.KILLING, size=943 * 10**6), answer, ENDED)
    assert (judged.move, judged.settled, judged.until) == (None, False, START + LIMIT)
    judged = judge_at(START + LIMIT).judge(row(T.KILLING, size=943 * 10**6), answer, ENDED)
    assert (judged.move.to, judged.settled) == (T.KILLED, True)


def test_no_attempt_begins_while_the_copy_of_the_last_one_may_write():
    answer = file("CANCELED", **RAN, reason="Storage banned")
    move = judge_at(END).judge(row(T.ACTIVE, size=943 * 10**6), answer, ENDED).move
    assert (move.to, move.may_write_until, move.began_at) == (T.RETRY_WAIT, START + LIMIT, START)
    assert END + move.wait >= START + LIMIT
    assert "may still write to the destination until 2026-11-23 12:" in move.reason


@pytest.mark.parametrize("metadata", [None, "text", [], {}, {"transfer": "7"}, {"transfer": None}])
def test_files_that_name_no_transfer_are_left_out(metadata):
    assert files_by_transfer([file(file_metadata=metadata)]) == {}
