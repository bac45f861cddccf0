"""A night's summary is what the ledger's rows say: every expected artifact once, with its fate and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

from hypothesis import given, strategies as st

from include.monitoring.alerts import Runs, Tick, alerts_of
from include.monitoring.render import size, to_html, to_text
from include.monitoring.summary import ArtifactOutcome, NightState, Summary
from include.nightlies.records.quality import QualityRecord, QualityVerdict
from include.nightlies.rules.index import RejectedArtifact
from include.nightlies.rules.publication import Skip, State
from include.settings.model import Choice
from include.settings.prepare import Suite
from tests.fakes.summaries import DAY, NOW, SLOT, built, of, published


def fates(one: Summary) -> dict[str, str]:
    return {line.name: line.fate.value for line in one.lines}


def test_each_artifact_has_the_fate_that_its_newest_row_says_and_its_reason() -> None:
    names = [f"P{number}/x86" for number in range(6)]
    states = [State.PUBLISHED, State.UNCHANGED, State.FAILED, State.SKIPPED, State.PREPARING]
    rows = [published(100 + place, state, f"since {place}") for place, state in enumerate(states)]
    seen = of(built(*names), b1=rows)
    assert fates(seen) == {
        "P0/x86": "published", "P1/x86": "unchanged", "P2/x86": "failed", "P3/x86": "blocked", "P4/x86": "open",
        "P5/x86": "open",
    }  # fmt: skip
    reasons = {line.name: line.reason for line in seen.lines}
    assert (reasons["P2/x86"], reasons["P4/x86"]) == ("since 2", "preparing: since 4")
    assert "no run" in reasons["P5/x86"]
    assert not seen.good
    assert next(line for line in seen.lines if line.run).log == "NIGHT/RUN"


def test_a_later_look_that_found_it_published_takes_nothing_from_the_night_and_a_dry_run_says_nothing() -> None:
    rows = [
        published(100, State.SKIPPED, "any words", skip_reason=Skip.DRY_RUN),
        published(100, State.UNCHANGED),
        published(100, State.PUBLISHED, files=7, bytes=2_500_000),
        published(100, State.FAILED),
    ]
    (line,) = of(built("A/x86"), b1=rows).lines
    assert (line.fate, line.files, line.seconds) == (ArtifactOutcome.PUBLISHED, 7, 2.5)
    rebuilt = replace(rows[2], artifact_sha256="b" * 64)
    (line,) = of(built("A/x86"), b1=[rows[1], rebuilt]).lines
    assert line.fate is ArtifactOutcome.UNCHANGED


def test_what_never_arrived_is_named_by_whoever_expected_it() -> None:
    slot = SLOT.model_copy(update={"projects": ("A", "B"), "platforms": ("x86", "armv8")})
    before = built("A/x86", "B/armv8", "Gone/x86", number=7, day=DAY - timedelta(days=1))
    seen = of(built("A/x86"), before=before, slot=slot, b1=[published(100, State.PUBLISHED)])
    assert fates(seen) == {"A/x86": "published", "B/x86": "never arrived", "B/armv8": "never arrived"}
    by_name = {line.name: line for line in seen.lines}
    assert "required by the slot" in by_name["B/x86"].reason
    assert "build b7 of 2026-11-20 had it" in by_name["B/armv8"].reason
    assert [line.name for line in seen.lacking] == ["B/x86"]
    assert not by_name["B/armv8"].required


def test_a_required_platform_of_which_nothing_came_has_a_line_of_its_own_unless_its_projects_have_one_each() -> None:
    slot = SLOT.model_copy(update={"required": Choice(platforms=("x86", "gpu"))})
    seen = of(built("A/x86"), slot=slot, b1=[published(100, State.PUBLISHED)])
    assert fates(seen) == {"*/gpu": "never arrived", "A/x86": "published"}
    assert [line.name for line in seen.lacking] == ["*/gpu"]
    assert "*/gpu" in to_text(seen)
    before = built("A/gpu", number=2, day=date(2026, 11, 20))
    seen = of(built("A/x86"), before=before, slot=slot, b1=[published(100, State.PUBLISHED)])
    assert fates(seen) == {"A/gpu": "never arrived", "A/x86": "published"}
    seen = of(built("A/x86"), slot=SLOT.model_copy(update={"required": Choice(projects=("B",))}))
    assert fates(seen) == {"A/x86": "open", "B/*": "never arrived"}
    # what the index lists and cannot be taken has failed
    rejected = [RejectedArtifact("Bad/x86", "no sum", 1, "Bad", "x86"), RejectedArtifact("?", "no project", 2)]
    seen = of(built("A/x86", rejected=rejected), b1=[published(100, State.PUBLISHED)])
    assert fates(seen) == {"A/x86": "published", "Bad/x86": "failed"}
    assert seen.notes == ("? is rejected: no project",)


def test_a_night_without_a_build_is_no_good_one_and_says_what_was_expected() -> None:
    before = built("A/x86", number=7, day=DAY - timedelta(days=1))
    seen = of(before=before)
    assert (seen.good, fates(seen)) == (False, {"A/x86": "never arrived"})
    assert seen.headline == "main 2026-11-21: 1 never arrived"
    assert of().headline == "main 2026-11-21: no build arrived"
    assert "No build" in to_text(of())
    assert "No build" in to_html(of())


@given(st.lists(st.none() | st.sampled_from(State), max_size=12))
def test_nothing_is_counted_that_no_row_has_and_no_row_is_left_out(states: list[State | None]) -> None:
    build = built(*(f"P{number}/x86" for number in range(len(states))))
    rows = [published(100 + place, state) for place, state in enumerate(states) if state is not None]
    seen = of(build, b1=rows)
    assert len(seen.lines) == len(states) == sum(seen.count(fate) for fate in ArtifactOutcome)
    good = sum(state is not None and state.good for state in states)
    assert seen.count(ArtifactOutcome.PUBLISHED) + seen.count(ArtifactOutcome.UNCHANGED) == good
    assert seen.good is (good == len(states))
    assert sum(seen.to_json()["counts"].values()) == len(states)


def test_whatever_an_error_said_is_text_in_the_page_and_what_is_wrong_comes_first() -> None:
    rows = [published(100, State.PUBLISHED), published(101, State.FAILED, "<script>alert(1)</script>", run="d/<r>")]
    seen = of(built("A/x86", "B/x86"), b1=rows)
    page = to_html(seen)
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "http" not in page
    text = to_text(seen).splitlines()
    assert text[1] == "1 required and missing: B/x86."
    assert next(line for line in text if line.startswith(("failed", "published"))).startswith("failed")


def test_what_an_earlier_pass_failed_with_and_a_later_one_mended_says_both() -> None:
    failed = published(100, State.FAILED, "no such tarball", run="night/pass1")
    rows = [published(100, State.PUBLISHED, "in revision 9", run="night/pass3", files=1, bytes=2_000), failed]
    seen = of(built("A/x86"), b1=rows)
    (line,) = seen.lines
    assert (line.fate, line.code) == (ArtifactOutcome.PUBLISHED, None)
    assert line.mended == "failed before, in night/pass1: no such tarball"
    for page in (to_html(seen), to_text(seen)):
        assert "in revision 9" in page
        assert "failed before, in night/pass1: no such tarball" in page
    (line,) = of(built("A/x86"), b1=[failed]).lines
    assert (line.fate, line.mended) == (ArtifactOutcome.FAILED, None)


def test_what_no_run_took_because_of_a_dependency_names_it() -> None:
    build = built("A/x86", "B/x86", "C/x86")
    needing = [
        replace(one, artifact=replace(one.artifact, dependencies=("A",) if one.artifact.project == "B" else ()))
        for one in build.artifacts
    ]
    seen = of(replace(build, artifacts=tuple(needing)), b1=[published(100, State.FAILED, "too big")])
    reasons = {line.project: line.reason for line in seen.lines}
    assert reasons["B"] == "held back: it depends on A/x86, which failed: too big; the last pass decides"
    assert reasons["C"] == "listed, and no run has taken it yet"


def test_the_page_and_the_text_have_sums_for_each_platform_and_a_link_to_each_run() -> None:
    figures = {"files": 1, "bytes": 2_000_000, "bytes_uploaded": 500_000}
    rows = [
        published(100, State.PUBLISHED, run="night/1", ended_at=NOW + timedelta(minutes=1), **figures),
        published(101, State.PUBLISHED, run="night/2", ended_at=NOW + timedelta(minutes=2), **figures),
        published(102, State.FAILED, run="night/2"),
    ]
    seen = of(built("A/x86", "B/x86", "A/armv8"), b1=rows)
    assert seen.total("x86").bytes == 4_000_000
    assert seen.total().ended_at == NOW + timedelta(minutes=2)
    assert seen.total().seconds == 7.5
    assert dict(seen.runs) == {"night/1": "NIGHT/1", "night/2": "NIGHT/2"}
    text, page = to_text(seen), to_html(seen)
    assert "x86    2 published; 4.0 MB, 1.0 MB uploaded, 5.0 s, until 07:02:00 UTC" in text
    assert "armv8  1 failed" in text
    assert "1 files, 2.0 MB, 500.0 kB uploaded, 2.5 s, ended 07:01:00; why" in text
    assert '<a href="NIGHT/2">night/2</a>' in page
    assert "<td>all</td>" in page
    assert [size(number) for number in (None, 0, 999, 2_500_000)] == ["", "0 B", "999 B", "2.5 MB"]
    assert seen.to_json()["runs"] == {"night/1": "NIGHT/1", "night/2": "NIGHT/2"}


ROWS = ("A/x86: 1 empty libraries: <b>.so", "B/x86: its tree holds no file")


def blocked_by(suite: Suite) -> tuple[QualityRecord, ...]:
    return (QualityRecord("night/run", suite, "main", "b1", QualityVerdict.BLOCKED, ROWS[0], "", 3, NOW, DAY, ROWS),)


def test_the_state_follows_from_what_is_required() -> None:
    done, failed = [published(100, State.PUBLISHED)], [published(100, State.FAILED)]
    for seen, state, kind in (
        (of(), NightState.NO_BUILD, "bad"),
        (of(built("A/x86"), b1=done), NightState.WHOLE, "good"),
        (of(built("A/x86"), b1=failed), NightState.INCOMPLETE, "bad"),
        (of(built("A/x86")), NightState.OPEN, "wait"),
        (of(built("A/x86", complete=False), b1=done), NightState.OPEN, "wait"),
    ):
        assert (seen.verdict.state, seen.verdict.state.kind, seen.good) == (state, kind, kind == "good")


def test_a_published_build_that_the_gate_blocks_is_not_good_and_says_each_row() -> None:
    seen = of(built("A/x86"), b1=[published(100, State.PUBLISHED)], blocked=blocked_by(Suite.PUBLISHED))
    assert (seen.good, seen.verdict.state) == (False, NightState.BLOCKED)
    assert seen.headline == "main 2026-11-21: blocked by quality, 1 published"
    assert "All that is required is there" not in to_text(seen) + to_html(seen)
    assert [line for line in to_text(seen).splitlines() if line.startswith("suite ")] == [
        *(f"suite published: {row}" for row in ROWS),
        "suite published: … and 1 more; see the Data Docs",
    ]
    assert "<b>" not in to_html(seen)
    assert seen.to_json()["verdict"]["state"] == "blocked by quality"
    assert seen.to_json()["quality"][0]["rows"] == list(ROWS)


def test_a_blocked_index_is_no_build_that_never_arrived_and_is_told_once() -> None:
    seen = of(before=built("A/x86", "B/x86"), blocked=blocked_by(Suite.INDEX))
    assert seen.verdict.state is NightState.BLOCKED
    text = to_text(seen)
    assert "never arrived" not in text
    assert "No build of this date" not in text
    assert {line.reason for line in seen.lines} == {
        "the quality gate blocks the index of build b1; nothing of it is taken"
    }
    tick = Tick("main", NOW, DAY, NOW)
    (alert,) = alerts_of(tick, seen, Runs(failed=("run",)), NOW, late=NOW - NOW)
    assert alert.key == "run-failed:nightly_install_main/run"
