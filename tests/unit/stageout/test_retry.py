"""Classes of failures by what FTS says, and what each is followed by."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from include.fts.states import FailureReason
from include.stageout.retry import RETRY_RULES, SUBMISSION_FAILED, TransferFailureClass, exponential, failure_class
from include.stageout.states import TransferState

F = TransferFailureClass
OF_FTS = [kind for kind in F if kind is not F.REGISTRATION]
# as real servers wrote them, and as FTS's own rules of retry name them
REASONS = [
    ("SOURCE [2] Result HTTP 404 : File not found  after 1 attempts", F.SOURCE_MISSING),
    ("SOURCE [5] Source and user-defined adler32 checksum do not match (1 != 2)", F.SOURCE_CHECKSUM),
    ("TRANSFER [5] Source and user-defined ADLER32 checksum do not match", F.SOURCE_CHECKSUM),
    ("DESTINATION [5] User-defined and destination adler32 checksum do not match (1 != 2)", F.DESTINATION_CHECKSUM),
    ("TRANSFER [5] CHECKSUM MISMATCH", F.DESTINATION_CHECKSUM),
    ("SOURCE [112] Result Could not connect to server after 3 attempts", F.CONNECTION),
    ("SOURCE [113] Result Domain name resolution failed", F.CONNECTION),
    ("DESTINATION [2] HTTP 404 : File not found", F.OTHER),
    ("DESTINATION [17] Destination file exists and overwrite is not enabled", F.DESTINATION_EXISTS),
    ("DESTINATION [1] HTTP 403 : Permission refused", F.PERMISSION),
    ("DESTINATION [13] Permission denied", F.PERMISSION),
    ("TRANSFER [28] No space left on device", F.NO_SPACE),
    ("DESTINATION [5] SRM_NO_FREE_SPACE", F.NO_SPACE),
    ("DESTINATION [122] Disk quota exceeded", F.QUOTA),
    ("TRANSFER [110] Operation timed out", F.TIMEOUT),
    ("TRANSFER [5] No performance markers received", F.TIMEOUT),
    ("DESTINATION [36] File name too long", F.INVALID),
    ("SOURCE [20] Not a directory", F.INVALID),
    ("TRANSFER [125] Transfer canceled", F.CANCELED),
    ("Storage banned", F.CANCELED),
    ("Job has been canceled because it stayed in the queue for too long", F.QUEUE_TIMEOUT),
    ("TRANSFER [13] proxy expired", F.CREDENTIAL),
    ("GENERAL_FAILURE [13] The certificate has expired", F.CREDENTIAL),
    ("No delegation found for user", F.CREDENTIAL),
    (f"{SUBMISSION_FAILED}: HTTP 500", F.SUBMISSION),
    ("GENERAL_FAILURE [5] something else", F.OTHER),
    ("", F.OTHER),
    # the most frequent ones of two months of a large experiment
    ("TRANSFER [5] TRANSFER ERROR: Copy failed (3rd pull). Last attempt: copy HTTP 507 : Insufficient", F.NO_SPACE),
    ("TRANSFER [70] Copy failed (3rd push). failure: Server returned status code 507", F.NO_SPACE),
    ("TRANSFER [5] failure: rejected PUT: 507 UNKNOWN_RESPONSE_CODE", F.NO_SPACE),
    ("DESTINATION [70] 451 all pools are full", F.NO_SPACE),
    ("TRANSFER [70] Copy failed (3rd pull). Last attempt: status code 403 from the source", F.PERMISSION),
    ("TRANSFER [1] failure: rejected GET: 403 Forbidden", F.PERMISSION),
    ("SOURCE [1] HTTP 403 : Permission refused", F.PERMISSION),
    ("TRANSFER [5] Copy failed (3rd pull). Last attempt: copy HTTP 500 : Unexpected server error: 500", F.CONNECTION),
    ("SOURCE [112] Result curl error (56): Failure when receiving data after 1 attempts", F.CONNECTION),
    ("DESTINATION [112] Result curl error (7): Couldn't connect to server", F.CONNECTION),
    ("TRANSFER [5] curl error (56): Failure when receiving data from the peer", F.CONNECTION),
    ("TRANSFER [70] curl error (35): SSL connect error", F.CONNECTION),
    ("TRANSFER [5] curl error (28): no reply", F.TIMEOUT),
    ("TRANSFER [5] Connection terminated abruptly; Status of TPC request unknown", F.CONNECTION),
    ("DESTINATION [5] connection refused", F.CONNECTION),
    # numbers that are no status and no number of libcurl
    ("TRANSFER [5] copied 507 of 1000 bytes with curl 7.76.1", F.OTHER),
    ("TRANSFER [5] no reply after 403 seconds", F.OTHER),
    ("SOURCE [99999999] x", F.OTHER),
]


@pytest.mark.parametrize(("reason", "expected"), REASONS)
def test_what_fts_says_has_a_class(reason, expected):
    assert failure_class(FailureReason.parse(reason)) is expected


def test_every_class_has_a_sign_and_a_rule():
    assert RETRY_RULES.keys() == set(F)
    assert {expected for _, expected in REASONS} == set(OF_FTS)


@pytest.mark.parametrize("kind", OF_FTS)
def test_permanent_failures_fail_at_once_and_the_others_after_their_retries(kind):
    reason = next(reason for reason, expected in REASONS if expected is kind)
    failure, rule = FailureReason.parse(reason), RETRY_RULES[kind]
    states = [exponential(failure, spent, 0.5).to for spent in range(rule.retries + 1)]
    last = TransferState.NEEDS_CREDENTIAL if kind is F.CREDENTIAL else TransferState.FAILED
    assert states == [TransferState.RETRY_WAIT] * rule.retries + [last]
    permanent = {F.SOURCE_MISSING, F.SOURCE_CHECKSUM, F.DESTINATION_EXISTS, F.QUOTA, F.INVALID}
    assert (states == [TransferState.FAILED]) == (kind in permanent)
    assert kind.value in exponential(failure, 0, 0.5).reason


def test_the_wait_doubles_up_to_a_limit():
    failure = FailureReason.parse("SOURCE [111] refused")
    waits = [exponential(failure, spent, 1.0).wait for spent in range(8)]
    assert waits == [timedelta(minutes=2 << spent) for spent in range(8)]
    full = FailureReason.parse("TRANSFER [28] full")
    assert [exponential(full, spent, 1.0).wait for spent in (4, 5)] == [timedelta(hours=6)] * 2
    assert exponential(failure, 3, 0.0).wait == waits[3] / 2


@given(st.text(), st.integers(0, 10**9), st.floats(0, 1))
def test_whatever_a_server_says_there_is_a_decision(text, spent, chance):
    decision = exponential(FailureReason.parse(text), spent, chance)
    assert decision.reason
    assert timedelta() <= decision.wait <= timedelta(hours=6)
