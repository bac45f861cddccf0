"""What counts as proof that a destination is a transfer's own, and what becomes of each state of a file."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from include.fts.client.replies import FileStatus
from include.fts.states import FailureReason, FileState
from include.stageout.attempts.answers import (
    AttemptJudge,
    JobAnswer,
    files_by_transfer,
    is_same_file,
    proves_own_destination,
)
from include.stageout.retry import exponential
from include.stageout.states import TRANSFER_MOVES, StageoutComponent, TransferState
from tests.fakes.transfers import NOW

OPEN, OVERWRITING = JobAnswer(False, False, False), JobAnswer(True, False, False)
BEGAN = {"start_time": "2026-11-23T12:00:01"}
FLOWED = {**BEGAN, "throughput": 3.5}
T = TransferState


def file(state="FAILED", **fields):
    urls = {"source_surl": "mock://a/x", "dest_surl": "mock://b/x"}
    return FileStatus.model_validate({"file_id": 1, "file_state": state, **urls, **fields})


def row(state=T.SUBMITTED, **fields):
    return SimpleNamespace(
        **{"id": 7, "state": state.value, "retries": 0, "size": 10, "checksum": None, "failure": None, **fields}
    )


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
    judge = AttemptJudge(exponential, NOW, 0.5)
    metadata = {"dst_file": {"file_size": 10}}
    answer = file(state.value, reason=reason, file_metadata=metadata, **BEGAN)
    judged = judge.judge(row(current), answer, JobAnswer(False, ended, False))
    if judged.move is not None:
        assert TRANSFER_MOVES[judged.move.current, judged.move.to].component is StageoutComponent.MONITOR
    if ended:
        # nothing is left in a job that has ended
        assert judged.settled


def test_a_copy_is_finished_when_fts_says_and_never_in_the_future():
    judge = AttemptJudge(exponential, NOW, 0.5)
    late = (NOW + timedelta(days=900)).isoformat()
    move = judge.judge(row(), file("FINISHED", finish_time=late), OPEN).move
    assert (move.copied_at, move.may_overwrite) == (NOW, True)
    assert judge.judge(row(), file("FINISHED"), OVERWRITING).move.may_overwrite is None


@pytest.mark.parametrize(
    ("declared", "report", "same"),
    [
        ((10, "adler32:0000abcd"), (10, "ADLER32", "abcd"), True),
        ((10, "adler32:0000abcd"), (10, "adler32", "0000ABCE"), False),
        ((10, "adler32:0000abcd"), (10, "adler32", None), False),
        ((10, "crc32c:0000abcd"), (10, "adler32", "00000001"), True),
        ((10, None), (10, None, None), True),
        ((None, None), (10, None, None), True),
        ((10, None), (11, None, None), False),
        ((1, None), (True, None, None), False),
        ((10, None), (None, None, None), False),
    ],
)
def test_an_existing_file_is_the_same_if_nothing_that_was_requested_differs(declared, report, same):
    names = ("file_size", "checksum_type", "checksum_value")
    metadata = {"dst_file": dict(zip(names, report, strict=True))}
    assert is_same_file(row(size=declared[0], checksum=declared[1]), metadata) is same


@pytest.mark.parametrize("metadata", [None, "text", [], {}, {"transfer": "7"}, {"transfer": None}])
def test_files_that_name_no_transfer_are_left_out(metadata):
    assert files_by_transfer([file(file_metadata=metadata)]) == {}
