"""An index may grow; whatever it takes back is reported and counts for nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from include.nightlies.errors import BuildMoved
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild, RejectedArtifact
from include.nightlies.rules.new_artifacts import compared
from tests.fakes.refused import refused

DAY, NOW = date(2026, 11, 21), datetime(2026, 11, 21, 3, tzinfo=UTC)
A, B = (Artifact(name, "x", f"{name}.tar", 1, name.lower() * 64) for name in "AB")
INDEX = BuildIndex("main", "b1", DAY, complete=False, artifacts=(A, B))


def record(*artifacts: Artifact, inherited: str | None = None, **changes: object) -> BuildRecord:
    rows = tuple(ArtifactRecord(number, 1, one, NOW, NOW, inherited) for number, one in enumerate(artifacts))
    before = BuildRecord(1, "main", "b1", DAY, False, "url", (), NOW, NOW, rows)
    return replace(before, **changes)  # type: ignore[arg-type]


def test_an_index_that_is_new_or_only_grows_is_taken_as_it_is() -> None:
    assert compared(INDEX, None) == compared(INDEX, record(A))
    assert compared(INDEX, record(A)).notes == ()
    assert compared(INDEX, record(A)).index == INDEX


def test_a_rebuilt_artifact_is_no_fault() -> None:
    rebuilt = replace(A, sha256="c" * 64)
    found = compared(replace(INDEX, artifacts=(rebuilt, B)), record(A, B))
    assert found.notes == ()
    assert found.index.artifacts == (rebuilt, B)


def test_what_is_listed_no_more_is_named_and_what_is_rejected_is_listed() -> None:
    found = compared(replace(INDEX, artifacts=(A,)), record(A, B))
    assert found.notes == ("B/x was listed before and is not any more; what is published of it stays",)
    spoilt = replace(INDEX, artifacts=(A,), rejected=(RejectedArtifact("B/x", "why", 1, "B", "x"),))
    assert compared(spoilt, record(A, B)).notes == ()
    # what came from another build was never listed
    assert compared(replace(INDEX, artifacts=()), record(B, inherited="b0")).notes == ()


def test_an_index_that_was_complete_stays_complete() -> None:
    found = compared(INDEX, record(A, B, complete=True))
    assert found.index.complete
    assert "was complete before" in found.notes[0]


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
    found = compared(old_sums, record(A, B, complete=True, **before))
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
    found = compared(index, record(A, B, serial=4, written_at=NOW))
    assert found.notes == ()
    assert found.index == replace(INDEX, **{"serial": 4, "created": NOW, **now})  # type: ignore[arg-type]


def test_an_index_that_does_not_say_how_old_it_is_opens_no_door_to_older_ones() -> None:
    silent = compared(INDEX, record(A, B, serial=4, written_at=NOW)).index
    told = record(A, B, serial=silent.serial, written_at=silent.created)
    assert "serial 3 after 4" in compared(replace(INDEX, serial=3), told).notes[0]
    assert "created" in compared(replace(INDEX, created=NOW - timedelta(seconds=1)), told).notes[0]


def test_a_build_id_of_another_day_is_refused_with_both_days() -> None:
    with refused(BuildMoved, slot="main", build_id=INDEX.build_id, recorded=date(2026, 11, 20), given=INDEX.date):
        compared(INDEX, record(A, date=date(2026, 11, 20)))


def test_another_base_than_before_is_reported() -> None:
    index = replace(INDEX, base=ParentBuild("b0", DAY))
    assert compared(index, record(A)).notes == ()
    assert "based on build b9" in compared(index, record(A, base=ParentBuild("b9", DAY))).notes[0]
