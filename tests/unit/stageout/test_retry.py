"""Classes of failures by what FTS says, and what each is followed by."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from include.fts.states import FailureReason
from include.stageout.errors import RETRY_UNKNOWN
from include.stageout.retry import (
    RETRY_RULES,
    SUBMISSION_FAILED,
    TransferFailureClass,
    exponential,
    failure_class,
    retry_algorithm,
)
from include.stageout.states import TransferState
from tests.fakes.refused import refused

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


PATIENT = """
from datetime import timedelta
from include.stageout.retry import RetryDecision, exponential
from include.stageout.states import TransferState

def patient(failure, spent, chance):
    if "maintenance" in failure.text:
        return RetryDecision(TransferState.RETRY_WAIT, timedelta(hours=24 + chance), f"maintenance: {failure.text}")
    return exponential(failure, spent, chance)

def broken(failure, spent, chance):
    raise KeyError("sites")

def endless(failure, spent, chance):
    return RetryDecision(TransferState.RETRY_WAIT, timedelta(days=4000), "")

def ended(failure, spent, chance):
    return RetryDecision(TransferState.CLEANED, timedelta(), "")

def nothing(failure, spent, chance):
    return None
"""
POINTS = ("patient", "broken", "endless", "ended", "nothing", "absent")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with entry points."""
    (tmp_path / "our_retries.py").write_text(PATIENT)
    info = tmp_path / "our_retries-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-retries\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[nightshift.retry]\n" + "".join(f"{name} = our_retries:{name}\n" for name in POINTS)
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_site_has_a_retry_algorithm_of_its_own():
    patient = retry_algorithm("patient")
    maintenance = FailureReason.parse("DESTINATION [5] in maintenance until noon")
    decision = patient(maintenance, 3, 0.5)
    assert (decision.to, decision.wait) == (TransferState.RETRY_WAIT, timedelta(hours=24.5))
    other = FailureReason.parse("SOURCE [2] no such file")
    assert patient(other, 0, 0.5) == exponential(other, 0, 0.5)
    assert retry_algorithm("exponential") is exponential


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["broken", "endless", "ended", "nothing"])
def test_of_an_algorithm_that_fails_the_usual_one_takes_the_place(name):
    failure = FailureReason.parse("TRANSFER [110] Operation timed out")
    decision, usual = retry_algorithm(name)(failure, 1, 0.5), exponential(failure, 1, 0.5)
    assert (decision.to, decision.wait) == (usual.to, usual.wait)
    assert f"the retry algorithm {name} failed: " in decision.reason


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["absent", "unknown"])
def test_an_algorithm_that_does_not_exist_is_refused(name):
    with refused(RETRY_UNKNOWN):
        retry_algorithm(name)
