"""What failed is told by its cause: with all that it hit, what was skipped because of it, and what helps."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.monitoring.alerts import SHOWN, Cause, causes, untold
from include.monitoring.summary import Line, Summary
from include.nightlies.rules.index import RejectedArtifact
from include.nightlies.rules.publication import Skip, State
from include.notify import NotifyEvent
from tests.fakes.summaries import NOW, built, of, published

HOUR = timedelta(hours=1)


def all_left(line: Line) -> bool:
    return True


def night(*names: str, code: str = "artifact-missing") -> Summary:
    rows = [
        published(100 + number, State.FAILED, f"{name} is not there", run="dag/pass1", code=code)
        for number, name in enumerate(names)
    ]
    return of(built(*names), b1=rows)


def one_of(seen: Summary) -> Cause:
    (cause,) = causes(seen, all_left)
    return cause


def test_artifacts_that_failed_in_one_way_are_one_message_with_slot_reason_cure_and_log() -> None:
    message = one_of(night("A/x86", "B/x86")).message(until=NOW + HOUR, now=NOW)
    assert message.event is NotifyEvent.FAILED
    assert message.title == "night of main, 2026-11-21: 2 artifacts failed: artifact-missing"
    assert message.text.splitlines() == ["A/x86: A/x86 is not there", "B/x86: B/x86 is not there"]
    assert "the night's last pass tries all of it again, at 08:00 UTC at the latest" in message.cure
    assert message.links == {"log": "DAG/PASS1"}
    assert message.code == "artifact-missing"
    many = one_of(night(*(f"P{number:02}/x86" for number in range(SHOWN + 5)))).message(until=None, now=NOW)
    assert many.text.endswith("… and 5 more")


def test_causes_are_told_apart_and_what_a_pass_may_try_again_is_not_told_yet() -> None:
    rows = [
        published(100, State.FAILED, "away", code="store-unavailable", run="d/1"),
        published(101, State.FAILED, "too big", code="source-limit-exceeded", run="d/2"),
    ]
    rejected = [RejectedArtifact("Bad/x86", "no sum", 1, "Bad", "x86")]
    seen = of(built("A/x86", "B/x86", rejected=rejected), b1=rows)
    assert [one.code for one in causes(seen, all_left)] == [
        "artifact-rejected", "source-limit-exceeded", "store-unavailable",
    ]  # fmt: skip
    assert [one.code for one in causes(seen, lambda line: line.run == "d/1")] == ["store-unavailable"]


def test_what_was_skipped_because_of_it_is_told_with_it() -> None:
    rows = [
        published(100, State.FAILED, "too big", code="source-limit-exceeded"),
        published(101, State.SKIPPED, "no reason names it", skip_reason=Skip.BLOCKED, blocked_by="A/x86"),
        published(103, State.SKIPPED, "nor does this one", skip_reason=Skip.BLOCKED, blocked_by="B/x86"),
        published(102, State.SKIPPED, "depends on A/x86, as people say", skip_reason=Skip.UNDONE),
    ]
    message = one_of(of(built("A/x86", "B/x86", "C/x86", "D/x86"), b1=rows)).message(until=None, now=NOW)
    assert "Not installed either, since they depend on it: B/x86, D/x86." in message.text
    assert "C/x86" not in message.text
    assert "run nightly_install_main by hand with build_date 2026-11-21" in message.cure


def test_an_artifacts_own_failure_is_told_once_and_another_one_later_is_told_alone() -> None:
    first = one_of(night("A/x86"))
    later = one_of(night("A/x86", "B/x86"))
    told = [first.key_of(one) for one in first.lines]
    assert untold(first, told) is None
    new = untold(later, told)
    assert new is not None
    assert [one.name for one in new.lines] == ["B/x86"]
    assert first.message(until=None, now=NOW).key != new.message(until=None, now=NOW).key
    # the same error in a later pass is the same failure
    rows = [published(100, State.FAILED, "gone still", run="dag/pass3", code="artifact-missing")]
    again = one_of(of(built("A/x86"), b1=rows))
    assert first.key_of(first.lines[0]) == again.key_of(again.lines[0])


@pytest.mark.parametrize(
    ("code", "cure"),
    [("store-unavailable", "stores"), ("gateway-unreachable", "gateway"), ("node-login-refused", "node")],
)
def test_a_service_that_is_away_is_one_cause_whatever_it_hits(code: str, cure: str) -> None:
    first, later = (one_of(night(*names, code=code)) for names in (["A/x86"], ["A/x86", "B/x86"]))
    keys = {one.message(until=NOW + HOUR, now=NOW).key for one in (first, later)}
    assert len(keys) == 1
    message = first.message(until=NOW + HOUR, now=NOW)
    assert cure in message.cure
    assert "`nightshift preflight`" in message.cure
