"""Artifacts of an index that are new to a night, by the ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from include.nightlies.errors import BuildMoved
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild, RejectedArtifact
from include.nightlies.rules.publication import Publication, State
from include.nightlies.rules.selection import ALIVE, Arrivals, arrivals, compared, without_wrong_time
from tests.fakes.builds import publication as made
from tests.fakes.refused import refused

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
RUN, EARLIER, OTHER = "night/pass2", ("night/pass1",), "hand/run"
GAUDI = Artifact("Gaudi", "x86_64", "a", 1, "a" * 64)


def publication(state: State, run: str, sha256: str = "a" * 64, age: timedelta = timedelta(minutes=1)) -> Publication:
    return made(
        state, run_id=run, artifact=1, artifact_sha256=sha256, updated_at=NOW - age, project="Gaudi", platform="x86_64"
    )


def sort(*known: Publication) -> Arrivals:
    return arrivals([GAUDI], known, run=RUN, earlier=EARLIER, now=NOW)


NAME = (GAUDI.name,)
FRESH, SETTLED = Arrivals(fresh=NAME), Arrivals(fresh=(), settled=NAME)
FAILED, ELSEWHERE = Arrivals(fresh=(), failed=NAME), Arrivals(fresh=(), elsewhere=NAME)
PASS = EARLIER[0]


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ((), FRESH),
        *(((publication(state, run),), SETTLED) for state in (State.PUBLISHED, State.UNCHANGED)
          for run in (PASS, OTHER, RUN)),
        ((publication(State.PUBLISHED, PASS, "b" * 64),), FRESH),  # it was rebuilt
        # what an earlier pass tried is left to the last one
        *(((publication(state, PASS),), FAILED) for state in (State.FAILED, State.PLANNED, State.PREPARING)),
        ((publication(State.FAILED, OTHER),), FRESH),
        ((publication(State.SKIPPED, PASS),), SETTLED),
        ((publication(State.SKIPPED, OTHER),), FRESH),  # by a dry run, say
        ((publication(State.PREPARING, OTHER),), ELSEWHERE),
        ((publication(State.PREPARING, OTHER, age=ALIVE),), FRESH),  # that run does not go on
        ((publication(State.PREPARING, RUN),), FRESH),  # to the next try of this run
    ],
)  # fmt: skip
def test_an_artifact_is_fresh_settled_failed_or_of_another_run(known: tuple[Publication, ...], found: Arrivals) -> None:
    assert sort(*known) == found


def test_an_artifact_that_is_rebuilt_back_to_what_it_was_is_fresh_until_it_stands_again() -> None:
    first, rebuilt = publication(State.PUBLISHED, EARLIER[0]), publication(State.PUBLISHED, OTHER, "b" * 64)
    first, rebuilt = replace(first, revision_after=7), replace(rebuilt, id=2, revision_after=9)
    assert sort(rebuilt, first) == sort(first, rebuilt) == Arrivals(fresh=NAME)
    back = replace(publication(State.UNCHANGED, RUN), id=3, revision_after=9)
    assert sort(rebuilt, first, back) == Arrivals(fresh=(), settled=NAME)
    failed = replace(publication(State.FAILED, EARLIER[0]), id=4)
    assert sort(rebuilt, first, failed) == Arrivals(fresh=(), failed=NAME)


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


DAY, NOW = date(2026, 11, 21), datetime(2026, 11, 21, 3, tzinfo=UTC)
A, B = (Artifact(name, "x", f"{name}.tar", 1, name.lower() * 64) for name in "AB")
INDEX = BuildIndex("main", "b1", DAY, complete=False, artifacts=(A, B))


def recorded(*artifacts: Artifact, inherited: str | None = None, **changes: object) -> BuildRecord:
    rows = tuple(ArtifactRecord(number, 1, one, NOW, NOW, inherited) for number, one in enumerate(artifacts))
    before = BuildRecord(1, "main", "b1", DAY, False, "url", (), NOW, NOW, rows)
    return replace(before, **changes)  # type: ignore[arg-type]


def test_an_index_that_is_new_or_only_grows_is_taken_as_it_is() -> None:
    rebuilt = replace(INDEX, artifacts=(replace(A, sha256="c" * 64), B))
    based = replace(INDEX, base=ParentBuild("b0", DAY))
    for index, before in ((INDEX, None), (INDEX, recorded(A)), (rebuilt, recorded(A, B)), (based, recorded(A))):
        found = compared(index, before)
        assert (found.index, found.notes) == (index, ())
    assert "based on build b9" in compared(based, recorded(A, base=ParentBuild("b9", DAY))).notes[0]
    completed = compared(INDEX, recorded(A, B, complete=True))
    assert (completed.index.complete, "no longer marked complete" in completed.notes[0]) == (True, True)


def test_what_is_listed_no_more_is_named_and_what_is_rejected_is_listed() -> None:
    found = compared(replace(INDEX, artifacts=(A,)), recorded(A, B))
    assert found.notes == ("B/x is no longer listed; what is published of it stays",)
    spoilt = replace(INDEX, artifacts=(A,), rejected=(RejectedArtifact("B/x", "why", 1, "B", "x"),))
    assert compared(spoilt, recorded(A, B)).notes == ()
    # what came from another build was never listed
    assert compared(replace(INDEX, artifacts=()), recorded(B, inherited="b0")).notes == ()


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ({"serial": 3}, {"serial": 4}),
        ({"created": NOW}, {"written_at": NOW + timedelta(seconds=1)}),
        ({"serial": 3, "created": NOW + timedelta(days=1)}, {"serial": 4, "written_at": NOW}),
    ],
)
def test_an_older_version_of_the_index_counts_for_nothing(now: dict[str, object], before: dict[str, object]) -> None:
    old_sums = replace(INDEX, artifacts=(replace(A, sha256="0" * 64),), complete=False, **now)  # type: ignore[arg-type]
    found = compared(old_sums, recorded(A, B, complete=True, **before))
    assert found.index.artifacts == (A, B)
    assert found.index.complete
    assert "older than one that was seen before" in found.notes[0]


@pytest.mark.parametrize(
    "now",
    [
        {},
        {"serial": 4},
        {"serial": 5},
        {"created": NOW},
        {"serial": 5, "created": NOW - timedelta(hours=2)},  # the builder's clock was set back
    ],
)
def test_the_same_or_a_later_version_or_one_that_does_not_say_is_taken(now: dict[str, object]) -> None:
    index = replace(INDEX, **now)  # type: ignore[arg-type]
    found = compared(index, recorded(A, B, serial=4, written_at=NOW))
    assert found.notes == ()
    assert found.index == replace(INDEX, **{"serial": 4, "created": NOW, **now})  # type: ignore[arg-type]


def test_an_index_that_does_not_say_how_old_it_is_opens_no_door_to_older_ones() -> None:
    silent = compared(INDEX, recorded(A, B, serial=4, written_at=NOW)).index
    told = recorded(A, B, serial=silent.serial, written_at=silent.created)
    assert "serial 3 after 4" in compared(replace(INDEX, serial=3), told).notes[0]
    assert "created" in compared(replace(INDEX, created=NOW - timedelta(seconds=1)), told).notes[0]


def test_a_build_id_of_another_day_is_refused_with_both_days() -> None:
    with refused(BuildMoved, slot="main", build_id=INDEX.build_id, recorded=date(2026, 11, 20), given=INDEX.date):
        compared(INDEX, recorded(A, date=date(2026, 11, 20)))
