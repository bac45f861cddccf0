"""What of an index is new to a night, by what the ledger says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.nightlies.rules.index import Artifact, BuildIndex
from include.nightlies.rules.new_artifacts import ALIVE, Arrivals, arrivals, without_wrong_time
from include.nightlies.rules.publication import Publication
from include.nightlies.rules.states import Phase, State

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
RUN, EARLIER, OTHER = "night/pass2", ("night/pass1",), "hand/run"
GAUDI = Artifact("Gaudi", "x86_64", "a", 1, "a" * 64)


def publication(state: State, run: str, sha256: str = "a" * 64, age: timedelta = timedelta(minutes=1)) -> Publication:
    return Publication(
        id=1, run_id=run, repository="r", destination="/d", artifact=1, artifact_sha256=sha256, changeset=None,
        state=state, reason="", phase=Phase.PLAN, try_number=1, plan_try=1, prepare_try=0,
        publish_try=0, revision_before=None, revision_after=None, root_hash=None, nested_hash=None, files=None,
        bytes=None, objects_new=None, objects_reused=None, bytes_uploaded=None, seconds={}, lease_held_s=None,
        created_at=NOW - age, updated_at=NOW - age, ended_at=None, verified_at=None, project="Gaudi", platform="x86_64",
    )  # fmt: skip


def sort(*known: Publication) -> Arrivals:
    return arrivals([GAUDI], known, run=RUN, earlier=EARLIER, now=NOW)


NAME = (GAUDI.name,)


def test_what_the_ledger_does_not_know_is_fresh() -> None:
    assert sort() == Arrivals(fresh=NAME)


@pytest.mark.parametrize("state", [State.PUBLISHED, State.UNCHANGED])
@pytest.mark.parametrize("run", [*EARLIER, OTHER, RUN])
def test_what_any_run_published_is_settled(state: State, run: str) -> None:
    assert sort(publication(state, run)) == Arrivals(fresh=(), settled=NAME)


def test_a_rebuilt_artifact_is_fresh_again() -> None:
    assert sort(publication(State.PUBLISHED, EARLIER[0], "b" * 64)) == Arrivals(fresh=NAME)


def test_an_artifact_that_is_rebuilt_back_to_what_it_was_is_fresh_until_it_stands_again() -> None:
    first, rebuilt = publication(State.PUBLISHED, EARLIER[0]), publication(State.PUBLISHED, OTHER, "b" * 64)
    first, rebuilt = replace(first, revision_after=7), replace(rebuilt, id=2, revision_after=9)
    assert sort(rebuilt, first) == sort(first, rebuilt) == Arrivals(fresh=NAME)
    back = replace(publication(State.UNCHANGED, RUN), id=3, revision_after=9)
    assert sort(rebuilt, first, back) == Arrivals(fresh=(), settled=NAME)
    failed = replace(publication(State.FAILED, EARLIER[0]), id=4)
    assert sort(rebuilt, first, failed) == Arrivals(fresh=(), failed=NAME)


def test_what_an_earlier_pass_tried_is_left_to_the_last_one() -> None:
    for state in (State.FAILED, State.PLANNED, State.PREPARING):
        assert sort(publication(state, EARLIER[0])) == Arrivals(fresh=(), failed=NAME)


def test_what_failed_in_a_run_that_is_no_pass_of_this_night_is_tried() -> None:
    assert sort(publication(State.FAILED, OTHER)) == Arrivals(fresh=NAME)


def test_what_is_skipped_in_this_night_is_settled_and_a_dry_run_elsewhere_settles_nothing() -> None:
    assert sort(publication(State.SKIPPED, EARLIER[0])) == Arrivals(fresh=(), settled=NAME)
    assert sort(publication(State.SKIPPED, OTHER)) == Arrivals(fresh=NAME)


def test_what_another_run_is_at_is_left_to_it_unless_it_stands_still() -> None:
    assert sort(publication(State.PREPARING, OTHER)) == Arrivals(fresh=(), elsewhere=NAME)
    assert sort(publication(State.PREPARING, OTHER, age=ALIVE)) == Arrivals(fresh=NAME)


def test_what_this_very_run_has_begun_is_fresh_to_its_next_try() -> None:
    assert sort(publication(State.PREPARING, RUN)) == Arrivals(fresh=NAME)


def test_a_builder_whose_clock_is_ahead_cannot_make_later_indices_look_older() -> None:
    index = BuildIndex("main", "b", NOW.date(), False, (GAUDI,), created=NOW + timedelta(hours=3))
    trusted, note = without_wrong_time(index, NOW)
    assert trusted == replace(index, created=None)
    assert "180 minutes from now" in note
    assert "Set the builder's clock" in note
    for created in (NOW + timedelta(minutes=4), NOW - timedelta(days=9), None):
        kept = replace(index, created=created)
        assert without_wrong_time(kept, NOW) == (kept, "")


def needing(name: str, *dependencies: str) -> Artifact:
    return replace(GAUDI, project=name, sha256=name.lower()[0] * 64, dependencies=dependencies)


def of_project(name: str, state: State, run: str, reason: str = "") -> Publication:
    return replace(publication(state, run, name.lower()[0] * 64), project=name, reason=reason)


CHAIN = (needing("Alpha"), needing("Beta", "Alpha"), needing("Coda", "Beta"), needing("Delta"))


@pytest.mark.parametrize(
    ("state", "run", "why"),
    [
        (State.FAILED, EARLIER[0], "Alpha/x86_64, which failed in an earlier pass: no such tarball"),
        (State.SKIPPED, EARLIER[0], "Alpha/x86_64, which was skipped: no such tarball"),
        (State.PREPARING, OTHER, "Alpha/x86_64, which is under way in another run"),
    ],
)
def test_what_depends_on_what_came_to_nothing_is_held_back_with_all_that_needs_it(
    state: State, run: str, why: str
) -> None:
    found = arrivals(CHAIN, [of_project("Alpha", state, run, "no such tarball")], run=RUN, earlier=EARLIER, now=NOW)
    assert found.fresh == ("Delta/x86_64",)
    assert found.held == {
        "Beta/x86_64": f"held back: it depends on {why}",
        "Coda/x86_64": f"held back: it depends on Beta/x86_64, which waits for {why}",
    }


def test_what_depends_on_what_is_there_or_comes_with_it_is_not_held_back() -> None:
    assert arrivals(CHAIN, [], run=RUN, earlier=EARLIER, now=NOW).held == {}
    there = [of_project("Alpha", State.PUBLISHED, OTHER), of_project("Alpha", State.FAILED, EARLIER[0])]
    assert arrivals(CHAIN, there, run=RUN, earlier=EARLIER, now=NOW).held == {}


def test_a_dependency_that_is_expected_is_waited_for_and_another_that_is_not_listed_binds_nothing() -> None:
    late = arrivals(
        CHAIN[1:], [], run=RUN, earlier=EARLIER, now=NOW, expected=lambda project, _platform: project == "Alpha"
    )
    assert late.fresh == ("Delta/x86_64",)
    assert late.held["Beta/x86_64"] == "held back: it depends on Alpha/x86_64, which is not listed yet"
    assert arrivals(CHAIN[1:], [], run=RUN, earlier=EARLIER, now=NOW).held == {}


def test_artifacts_that_depend_on_each_other_hold_nobody_back() -> None:
    ring = (needing("Alpha", "Beta"), needing("Beta", "Alpha"))
    assert arrivals(ring, [], run=RUN, earlier=EARLIER, now=NOW).held == {}
