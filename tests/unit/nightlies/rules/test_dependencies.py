"""An artifact goes in after what it depends on, or not at all."""

from __future__ import annotations

import pytest

from include.nightlies.rules.dependencies import Readiness, readiness
from include.nightlies.rules.publication import Phase, State
from tests.fakes.builds import publication

NEEDS = ("A/x", "B/x")


@pytest.mark.parametrize(
    ("states", "last_try", "found", "says"),
    [
        ({}, True, Readiness.FREE, "published"),
        ({"A/x": State.PUBLISHED, "B/x": State.UNCHANGED}, True, Readiness.FREE, "published"),
        ({"A/x": State.PUBLISHED, "B/x": State.PREPARING}, True, Readiness.PENDING, "B/x (preparing)"),
        ({"A/x": State.FAILED, "B/x": State.PREPARING}, True, Readiness.BLOCKED, "A/x, which failed: why"),
        ({"A/x": State.FAILED}, False, Readiness.LATER, "A/x, which failed so far"),
        ({"A/x": State.SKIPPED}, False, Readiness.BLOCKED, "A/x, which was skipped: why"),
        ({"A/x": State.PLANNED}, True, Readiness.PENDING, "A/x (planned)"),
    ],
)
def test_whether_an_artifact_may_go_in(states: dict[str, State], last_try: bool, found: Readiness, says: str) -> None:
    verdict = readiness(NEEDS, {name: publication(state) for name, state in states.items()}, last_try=last_try)
    assert (verdict.readiness, says in verdict.reason) == (found, True), verdict


@pytest.mark.parametrize("state", [State.PLANNED, State.PREPARING, State.PREPARED, State.PUBLISHING])
def test_what_no_task_publishes_any_more_blocks_at_once(state: State) -> None:
    publications = {"A/x": publication(state), "B/x": publication(State.PUBLISHED)}
    ended = dict.fromkeys(publications, "task artifact.publish[0] is skipped")
    verdict = readiness(NEEDS, publications, last_try=False, ended=ended)
    assert (verdict.readiness, verdict.blocked_by) == (Readiness.BLOCKED, "A/x")
    assert "task artifact.publish[0] is skipped" in verdict.reason
    assert "Clear task plan with *Downstream*" in verdict.reason
    assert readiness(NEEDS, publications, last_try=False).readiness is Readiness.PENDING


@pytest.mark.parametrize("state", list(State))
def test_every_state_of_a_dependency_has_an_answer_and_a_reason(state: State) -> None:
    verdict = readiness(("A/x",), {"A/x": publication(state)}, last_try=True)
    assert verdict.reason
    assert (verdict.readiness is Readiness.FREE) == state.good
    refused = readiness(("A/x",), {"A/x": publication(State.FAILED, phase=Phase.PLAN)}, last_try=False)
    assert refused.readiness is Readiness.BLOCKED, "the plan refused it"
