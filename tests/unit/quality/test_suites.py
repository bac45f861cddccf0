"""What each suite compares: tables, rules and reasons, as Great Expectations judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from include.nightlies.records.quality import ArtifactFigures, NightFigures
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.index import Artifact, BuildIndex, ParentBuild, RejectedArtifact
from include.quality.results import SuiteInput
from include.quality.suites import (
    NIGHTS,
    PublishedArtifact,
    TreeFacts,
    growth_suite,
    index_suite,
    night_suite,
    published_suite,
)
from include.settings.model import Slot
from include.settings.prepare import QualitySettings

TONIGHT = date(2026, 11, 20)
SETTINGS = QualitySettings()
SLOT = Slot(name="main", repository="r.example.org", store="s")
MIB = 1 << 20
WHOLE = TreeFacts(3, 2, 300, frozenset(), frozenset({"bin/run"}), frozenset())


def validate(given: SuiteInput) -> tuple[Any, str]:
    from include.quality.validate import validate as judge  # takes seconds, and each worker imports this module

    return judge(given)


def faults(given: SuiteInput) -> tuple[str, ...]:
    return validate(given)[0].faults


def figures(files: int = 1000, **more: Any) -> ArtifactFigures:
    known: dict[str, Any] = {"size": 40 * MIB, "sha256": "a" * 64, "bytes": 100 * MIB, "seconds": 100.0}
    return ArtifactFigures(**{**known, "files": files, **more})


def night(days: int, artifacts: Mapping[str, ArtifactFigures]) -> NightFigures:
    return NightFigures(BuildKey(TONIGHT - timedelta(days=days), f"b{days}"), artifacts)


def week(artifacts: Mapping[str, ArtifactFigures], nights: int = NIGHTS) -> Sequence[NightFigures]:
    return [night(days, artifacts) for days in range(1, nights + 1)]


def artifact(name: str = "A/x86", size: int = 40 * MIB, sha256: str = "b" * 64) -> Artifact:
    project, _, platform = name.partition("/")
    return Artifact(project, platform, f"{name}.tar.gz", size, sha256)


def index(*artifacts: Artifact, **more: Any) -> BuildIndex:
    return BuildIndex(**{
        "slot": "main", "build_id": "b0", "date": TONIGHT, "complete": True, "artifacts": artifacts, **more,
    })  # fmt: skip


# -- the index


@pytest.mark.slow
def test_what_the_build_before_had_and_this_one_does_not_list_is_lost() -> None:
    assert faults(index_suite(index(artifact()), SLOT, SETTINGS, week({"A/x86": figures()}))) == ()
    assert faults(index_suite(index(), SLOT, SETTINGS, ())) == (), "without history"
    before = week({"A/x86": figures(), "B/x86": figures()}, nights=1)
    (lost,) = faults(index_suite(index(artifact()), SLOT, SETTINGS, before))
    assert lost == "B/x86: build b1 of 2026-11-19 had it and the index does not list it"


@pytest.mark.parametrize(
    ("slot", "given"),
    [
        (SLOT.model_copy(update={"optional": SLOT.optional.model_copy(update={"projects": ("B",)})}),
         index(artifact())),
        (SLOT.model_copy(update={"projects": ("A",)}), index(artifact())),
        (SLOT, index(artifact(), rejected=(RejectedArtifact("B/x86", "no sum", 1, "B", "x86"),))),
        (SLOT, index(artifact(), base=ParentBuild("b1", TONIGHT - timedelta(days=1)))),
        (SLOT, index(artifact(), complete=False)),
    ],
    ids=["optional", "not taken", "rejected", "taken from its parent build", "more comes"],
)  # fmt: skip
def test_what_is_missing_for_a_reason_is_not_lost(slot: Slot, given: BuildIndex) -> None:
    before = week({"A/x86": figures(), "B/x86": figures()})
    assert faults(index_suite(given, slot, SETTINGS, before)) == ()


@pytest.mark.parametrize(
    ("listed", "sha256", "says"),
    [
        ((artifact(size=2), artifact("B/x86", size=3)), "a", "it has the digest of B/x86, and another size"),
        ((artifact(sha256="a" * 64, size=39 * MIB),), "a", "it has the digest of A/x86 of build b1 of 2026-11-19"),
        ((artifact(sha256="e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),), "a", "empty file"),
    ],
)
def test_a_digest_that_contradicts_a_size_is_a_fault(listed: tuple[Artifact, ...], sha256: str, says: str) -> None:
    before = week({"A/x86": figures(sha256=sha256 * 64)}, nights=1)
    found = faults(index_suite(index(*listed), SLOT, SETTINGS, before))
    assert any(line.startswith("A/x86: ") and says in line for line in found)


def test_an_artifact_that_shrank_is_a_fault_and_one_that_grew_is_not() -> None:
    before = week({"A/x86": figures(), "B/x86": figures()})
    listed = index(artifact(size=20 * MIB), artifact("B/x86", size=90 * MIB, sha256="c" * 64))
    (found,) = faults(index_suite(listed, SLOT, SETTINGS, before))
    assert found == ("A/x86: 20971520 bytes, the median of the last 7 nights is 41943040; expected at least 29360128")


def test_the_first_nights_pass_and_say_how_many_there_are() -> None:
    few = week({"A/x86": figures()}, nights=3)
    for given, what in (
        (index_suite(index(artifact(size=MIB)), SLOT, SETTINGS, few), "sizes are not compared"),
        (night_suite(night(0, {"A/x86": figures(1)}), few, SETTINGS), "nothing is compared"),
    ):
        result, _ = validate(given)
        assert (result.faults, result.reason) == ((), f"no history, 3 of 7 nights: {what}")


# -- what is published


def published(now: TreeFacts | None = WHOLE, before: TreeFacts | None = WHOLE, **more: Any) -> PublishedArtifact:
    known: dict[str, Any] = {"name": "A/x86", "listed": "b", "published": "b", "files": 3, "bytes": 300}
    return PublishedArtifact(**{**known, "now": now, "before": before, **more})


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (published(None), "A/x86: the ledger has it as published, and its destination does not exist"),
        (published(published="c"), "A/x86: published from c, the index lists b"),
        (published(replace(WHOLE, files=1, content=0), files=1), "A/x86: its tree holds no file"),
        (published(files=5), "A/x86: 3 files, 5 were prepared"),
        (published(bytes=301), "A/x86: 300 bytes, 301 were prepared"),
        (published(replace(WHOLE, empty_libraries=frozenset({"lib/libB.so", "lib/libA.so.1"}))),
         "A/x86: 2 empty libraries: lib/libA.so.1, lib/libB.so"),
        (published(replace(WHOLE, plain=frozenset({"bin/run"}))),
         "A/x86: 1 files cannot be executed any more: bin/run"),
        (published(replace(WHOLE, broken_links=frozenset(f"l{n}" for n in range(9)))),
         "A/x86: 9 links lead nowhere: l0, l1, l2 …"),
    ],
)  # fmt: skip
def test_each_fault_of_a_published_tree_is_named(one: PublishedArtifact, says: str) -> None:
    assert says in faults(published_suite([published(name="B/x86"), one]))


def test_what_the_build_before_had_already_is_no_fault() -> None:
    odd = replace(WHOLE, empty_libraries=frozenset({"lib/stub.a"}), broken_links=frozenset({"doc/old"}))
    assert faults(published_suite([published(odd, odd)])) == ()
    assert len(faults(published_suite([published(odd, None)]))) == 2


def test_paths_of_archives_are_shown_without_control_characters_and_as_text() -> None:
    hostile = "lib/\x1b[31m<script>alert(1)</script>\n\udc80.so"
    result, page = validate(published_suite([published(replace(WHOLE, empty_libraries=frozenset({hostile})))]))
    assert "\\x1b[31m" in result.faults[0]
    assert result.faults[0].isprintable()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


# -- the night


def test_forty_per_cent_fewer_files_are_a_fault_of_the_night_and_of_the_artifact() -> None:
    before = week({"A/x86": figures(), "B/x86": figures(50)})
    tonight = night(0, {"A/x86": figures(600), "B/x86": figures(50)})
    assert faults(night_suite(tonight, before, SETTINGS)) == (
        "the whole night: 650 files, the median of the last 7 nights is 1050; expected 735 to 1365",
        "A/x86: 600 files, the median of the last 7 nights is 1000; expected 700 to 1300",
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"files": 1400}, "1400 files"),
        ({"bytes": 60 * MIB}, "62914560 bytes"),
        ({"bytes": 140 * MIB}, "146800640 bytes"),
        ({"seconds": 301.0}, "301.0 s of work"),
        # the edges of the bands
        ({"files": 1300}, ""),
        ({"files": 700}, ""),
        ({"bytes": 130 * MIB}, ""),
        ({"seconds": 300.0}, ""),
    ],
)
def test_a_figure_out_of_its_band_is_a_fault(changed: Mapping[str, Any], says: str) -> None:
    found = faults(night_suite(night(0, {"A/x86": figures(**changed)}), week({"A/x86": figures()}), SETTINGS))
    assert len(found) == (2 if says else 0)
    assert all(says in line for line in found)


def test_differences_too_small_to_count_are_not_faults() -> None:
    small = figures(10, bytes=1000, seconds=1.0)
    tonight = night(0, {"A/x86": figures(29, bytes=MIB, seconds=60.0)})
    assert faults(night_suite(tonight, week({"A/x86": small}), SETTINGS)) == ()
    odd = [night(1, {"A/x86": figures(100_000)}), *week({"A/x86": figures()}, nights=6)]
    assert faults(night_suite(night(0, {"A/x86": figures()}), odd, SETTINGS)) == (), "the median does not move"
    adds = night(0, {"A/x86": figures(added_bytes=1 << 30, added_objects=10_000)})
    assert faults(growth_suite(adds, week({"A/x86": figures()}), SETTINGS)) == (), "the others add nothing"


def test_a_new_artifact_and_one_that_is_missing_tonight_are_not_compared() -> None:
    before = week({"A/x86": figures(), "Gone/x86": figures()})
    tonight = night(0, {"A/x86": figures(), "New/x86": figures(5), "Failed/x86": figures(files=None)})
    given = night_suite(tonight, before, SETTINGS)
    assert [row["name"] for row in given.rows] == ["the whole night", "A/x86"]
    assert faults(given) == ()


# -- the growth


def test_a_night_that_adds_far_more_than_the_others_is_a_fault() -> None:
    before = week({"A/x86": figures(added_bytes=1 << 30, added_objects=9_000)})
    tonight = night(0, {"A/x86": figures(added_bytes=4 << 30, added_objects=9_000)})
    (fault,) = faults(growth_suite(tonight, before, SETTINGS))
    assert fault == (
        "the whole night: adds 4294967296 bytes, the median of the last 7 nights is 1073741824;"
        " expected at most 3221225472"
    )
