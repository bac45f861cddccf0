"""States and reasons as FTS writes them."""

from __future__ import annotations

import pytest

from include.fts.states import FailureReason, FailureScope, FileState, JobState


@pytest.mark.parametrize(
    ("reason", "scope", "errno"),
    [
        ("SOURCE [2] Result HTTP 404 : File not found  after 1 attempts", FailureScope.SOURCE, 2),
        ("SOURCE [5] Source and user-defined adler32 checksum do not match (x != y)", FailureScope.SOURCE, 5),
        ("DESTINATION [17] Destination file exists and overwrite is not enabled", FailureScope.DESTINATION, 17),
        ("TRANSFER [110] Connection timed out\nafter two lines", FailureScope.TRANSFER, 110),
        ("GENERAL_FAILURE [70] ", FailureScope.GENERAL_FAILURE, 70),
        ("Storage banned", None, None),
        ("SOURCE [x] no number", None, None),
        ("SOURCE [99999999] too large a number", None, None),
    ],
)
def test_a_reason_is_read_and_written(reason: str, scope: FailureScope | None, errno: int | None) -> None:
    parsed = FailureReason.parse(reason)
    assert (parsed.scope, parsed.errno) == (scope, errno)
    assert FailureReason.parse(parsed.format()) == parsed


def test_a_state_of_a_newer_server_has_not_ended() -> None:
    assert (FileState("WARMING_UP"), JobState("WARMING_UP")) == (FileState.OTHER, JobState.OTHER)
    assert not FileState.OTHER.terminal
    assert not JobState.OTHER.terminal


def test_what_ends_a_job_and_a_file() -> None:
    assert {state.value for state in JobState if state.terminal} == {"FINISHED", "FAILED", "FINISHEDDIRTY", "CANCELED"}
    assert {state.value for state in FileState if state.terminal} == {"FINISHED", "FAILED", "CANCELED"}
