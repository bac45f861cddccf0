"""What a cell of the matrix shows, how progress is estimated, and where links lead. No ledger, no app."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from include.nightlies.records.progress import NotedProgress
from include.nightlies.records.quality import ArtifactFigures, NightFigures
from include.nightlies.rules.build import BuildKey
from include.nightlies.rules.publication import Phase, Skip, State, Wait
from include.pages.app import number, span
from include.pages.nights_view import (
    DRAWN,
    NEARLY,
    ArtifactCell,
    BuildDifference,
    NightPhase,
    cell_of,
    course_of,
    cures_of,
    expected_end,
    glance,
    going,
    matrices,
    progress_of,
    timeline_figure,
    to_draw,
)
from include.pages.registry import provenance, run_of, start, task_of
from tests.fakes.summaries import DAY, NOW, built, of, published

MINUTE = timedelta(minutes=1)


def cells(seen: Any, **noted: NotedProgress) -> dict[str, ArtifactCell]:
    by_id = {one.publication: one for one in noted.values()}
    return {
        line.name: cell_of(line, "main", browser_url=lambda url: f"see:{url}", noted=by_id, before={("A", "x86"): 200})
        for line in seen.lines
    }


def noted(read: int, seconds: int) -> NotedProgress:
    return NotedProgress(1, 1, NOW, 5, read, 0, NOW + timedelta(seconds=seconds))


def test_a_cell_says_its_state_and_what_is_there_may_be_undone_and_what_was_undone_redone() -> None:
    for state, label, kind in (
        (State.PUBLISHED, "published", "good"),
        (State.UNCHANGED, "unchanged", "good"),
        (State.FAILED, "failed", "bad"),
        (State.SKIPPED, "blocked", "wait"),
        (State.PLANNED, "planned", "wait"),
        (State.PREPARING, "preparing", "busy"),
        (State.PUBLISHING, "publishing", "busy"),
    ):
        cell = cells(of(built("A/x86"), b1=[published(100, state)]))["A/x86"]
        assert (cell.label, cell.kind) == (label, kind)
    cell = cells(of(built("A/x86")))["A/x86"]
    assert (cell.task, cell.path, cell.artifact, cell.actions) == (None, None, "see:u", ())
    for row, actions in (
        (published(100, State.PUBLISHED), ["undo"]),
        (published(100, State.SKIPPED, skip_reason=Skip.UNDONE), ["redo"]),
        (published(100, State.FAILED), []),
    ):
        assert [text for text, _ in cells(of(built("A/x86"), b1=[row]))["A/x86"].actions] == actions


def test_there_is_no_estimate_where_nothing_tells() -> None:
    for read, before, share in (
        (0, 100, 0.0), (100, None, None), (100, 0, None), (100, 100, NEARLY), (250, 100, NEARLY)
    ):  # fmt: skip
        progress = going(noted(read, 10), before)
        assert (progress.share, progress.left_s) == (share, None)
    shown = cells(of(built("A/x86"), b1=[published(100, State.PREPARING)]), one=noted(50, 10))["A/x86"].going
    assert shown is not None
    assert (shown.share, shown.left_s) == (0.25, 30.0), "by the bytes of the build before"


def test_the_night_is_as_far_as_the_sizes_of_what_has_ended() -> None:
    rows = [published(100, State.PUBLISHED, ended_at=NOW + MINUTE), published(101, State.PREPARING)]
    found = progress_of(of(built("A/x86", "B/x86", "C/x86"), b1=rows), NOW + 2 * MINUTE)
    assert found is not None
    assert (found.ended, found.listed, round(found.share, 2)) == (1, 3, 0.33)
    assert found.left_s == pytest.approx(240)
    found = progress_of(of(built("A/x86"), b1=[published(100, State.PREPARING)]), NOW + MINUTE)
    assert found is not None
    assert (found.share, found.left_s) == (0.0, None), "nothing has ended"
    for ended in (of(built("A/x86"), b1=[published(100, State.FAILED)]), of(built()), of()):
        assert progress_of(ended, NOW) is None


def test_a_matrix_has_a_hole_where_the_build_has_no_such_artifact() -> None:
    seen = of(built("A/x86", "B/arm"), b1=[])
    (matrix,) = matrices(seen, [cells(seen)[line.name] for line in seen.lines])
    assert matrix.platforms == ("arm", "x86")
    assert [(project, [cell is not None for cell in row]) for project, row in matrix.rows] == [
        ("A", [False, True]), ("B", [True, False]),
    ]  # fmt: skip


def test_links_are_relative_and_quote_whatever_a_name_has() -> None:
    assert run_of("d/manual__2026-11-21T02:00:00+00:00/x") == (
        "../dags/d/runs/manual__2026-11-21T02%3A00%3A00%2B00%3A00%2Fx"
    )
    assert task_of("d/r/t.u try 2", "other/run") == "../dags/d/runs/r/tasks/t.u?try_number=2"
    assert task_of("d/r/t[0] try 1", "other/run") == "../dags/d/runs/r/tasks/t/mapped/0?try_number=1"
    for holder in (None, "ann@host", "<script>"):
        assert task_of(holder, "d/r") == "../dags/d/runs/r"
    assert provenance("r&x", "/a b") == "provenance?repository=r%26x&path=%2Fa+b"
    assert start("undo", slot="main") == "start?action=undo&slot=main"


def test_lengths_of_time_are_short_and_thousands_are_apart() -> None:
    seconds = (None, -3, 59.4, 61, 601, 3600, 9000)
    assert [*map(span, seconds)] == ["", "0 s", "59 s", "1 min 01 s", "10 min", "1 h 00 min", "2 h 30 min"]
    assert (number(None), number(7), number(1234567)) == ("", "7", "1 234 567")


def course(state: State, *, since: int | None = 60, **row: Any) -> list[tuple[str, int]]:
    """The parts of an artifact that was planned at NOW, with their seconds; its preparation began after `since` s."""
    values = {"seconds": {"prepare": 120.0, "commit": 3.0, "confirm": 1.0}, "ended_at": NOW + 10 * MINUTE, **row}
    seen = of(built("A/x86"), b1=[published(100, state, **values)])
    began = None if since is None else NOW + timedelta(seconds=since)
    found = course_of(cells(seen)["A/x86"], began, NOW + 20 * MINUTE)
    assert found is not None
    assert [end for _, _, end in found.parts[:-1]] == [begin for _, begin, _ in found.parts[1:]]
    return [(phase.value, round((end - begin).total_seconds())) for phase, begin, end in found.parts]


def test_a_course_has_the_phases_that_the_ledger_has_and_names_what_it_lacks() -> None:
    assert course(State.PUBLISHED) == [("waits", 60), ("prepare", 120), ("waits", 416), ("publish", 4)]
    unknown = NightPhase.UNKNOWN.value
    for since in (None, -1, 3600):
        assert course(State.PUBLISHED, since=since) == [(unknown, 596), ("publish", 4)]
    # a second try: what was before it may have been a first one
    assert course(State.PUBLISHED, prepare_try=2)[0] == (unknown, 60)
    assert course(State.PUBLISHED, publish_try=2)[2] == (unknown, 416)
    again = "in revision 3; prepared again, since an object is lost"
    assert course(State.PUBLISHED, reason=again)[0] == (unknown, 596)
    assert course(State.FAILED, since=None, phase=Phase.PREPARE) == [(unknown, 600)]
    assert course(State.FAILED) == [("waits", 60), ("prepare", 120), (unknown, 420)]
    assert course(State.SKIPPED) == [("waits", 60), ("prepare", 120), ("waits", 420)]
    assert course(State.UNCHANGED, since=None, phase=Phase.PLAN, seconds={}) == [(unknown, 600)]


def test_a_course_goes_on_until_now_while_it_is_under_way() -> None:
    moved = {"updated_at": NOW + 5 * MINUTE, "ended_at": None}
    assert course(State.PLANNED, since=None, **moved) == [("waits", 1200)]
    assert course(State.PREPARING, since=None, **moved) == [("waits", 300), ("prepare", 900)]
    assert course(State.PREPARED, **moved) == [("waits", 60), ("prepare", 120), ("prepare", 120), ("waits", 900)]
    assert course(State.PUBLISHING, **moved) == [("waits", 60), ("prepare", 120), ("waits", 120), ("publish", 900)]
    held = str(Wait(NOW + 5 * MINUTE, "the lease on /d, held by another"))
    assert {*course(State.PUBLISHING, reason=held, **moved)[2:]} == {("waits", 120), ("waits", 900)}


def test_a_lease_ends_before_what_is_done_without_it() -> None:
    row = published(
        100, State.PUBLISHED, seconds={"commit": 3.0, "confirm": 1.0}, lease_held_s=2.0, ended_at=NOW + MINUTE
    )
    drawn = course_of(cells(of(built("A/x86"), b1=[row]))["A/x86"], None, NOW)
    assert drawn is not None
    assert drawn.lease == (NOW + timedelta(seconds=57), NOW + timedelta(seconds=59))
    figure = timeline_figure([drawn])
    assert figure is not None
    assert [trace["name"] for trace in figure["data"]] == ["publish", "not recorded", "lease"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["\N{CHECK MARK} A/x86"]
    assert timeline_figure([]) is None


def test_a_timeline_has_what_is_under_way_and_what_ended_last() -> None:
    names = [f"P{number:03}/x86" for number in range(DRAWN + 5)]
    rows = [published(100 + number, State.PUBLISHED, ended_at=NOW + number * MINUTE) for number in range(DRAWN + 3)]
    rows[0] = published(100, State.PREPARING)
    rows[-1] = published(100 + DRAWN + 2, State.PUBLISHED, created_at=NOW + timedelta(days=2))
    seen = of(built(*names), b1=rows)
    drawn, others = to_draw([cells(seen)[line.name] for line in seen.lines])
    assert (len(drawn), others, drawn[0].line.name, drawn[1].line.name) == (DRAWN, 3, names[0], names[DRAWN + 1])
    assert to_draw([]) == ((), 0)


def test_the_end_is_expected_as_in_the_last_nights() -> None:
    rows = [published(100, State.PUBLISHED, ended_at=NOW + MINUTE), published(101, State.PREPARING)]
    progress = progress_of(of(built("A/x86", "B/x86"), b1=rows), NOW + 2 * MINUTE)
    assert progress is not None
    assert progress.per_hour == pytest.approx(30)
    slow, fast, usual = [60.0, 900.0], [30.0, 60.0], [100.0, 400.0]
    expected = expected_end(progress, [slow, fast, usual], NOW + 2 * MINUTE)
    assert expected is not None
    # the fast one was over by now: there is nothing left of it
    assert [(end - NOW).total_seconds() for end in (expected.at, expected.earliest, expected.latest)] == [400, 120, 900]
    assert expected.nights == 3
    assert expected_end(progress, [], NOW) is None


def test_a_glance_counts_states_by_platform_with_a_shape_for_each() -> None:
    rows = [published(100, State.PUBLISHED), published(101, State.FAILED), published(102, State.PREPARING)]
    seen = of(built("b/x86", "A/x86", "c/x86", "A/arm"), b1=rows)
    arm, x86 = glance([cells(seen)[line.name] for line in seen.lines])
    assert [(cell.line.project, cell.mark) for cell in x86.cells] == [
        ("A", "\N{BALLOT X}"),
        ("b", "\N{CHECK MARK}"),
        ("c", "\N{BLACK RIGHT-POINTING TRIANGLE}"),
    ]
    assert [count for *_, count in x86.counts] == [1, 1, 1]
    assert arm.counts == (("\N{HORIZONTAL ELLIPSIS}", "wait", "open", 1),)


def test_what_is_not_there_has_its_cure_beside_it() -> None:
    skipped = [published(100, State.SKIPPED, skip_reason=skip, blocked_by="Z/x86") for skip in Skip]
    rows = [*skipped, published(100, State.FAILED, code="artifact-missing"), published(100, State.PREPARING)]
    shown = {}
    for row in rows:
        (line,) = of(built("A/x86"), b1=[row]).lines
        text, forms = cures_of(line, "main", DAY)
        shown[line.publication and (line.publication.skip_reason or line.publication.state)] = [
            text.split()[0], *(name for name, _ in forms)
        ]  # fmt: skip
    again, without = "Install again", "Publish without it"
    assert shown[Skip.BLOCKED] == ["Mend", again, without]
    assert shown[Skip.UNDONE] == ["Redo", "redo"]
    assert shown[Skip.SUPERSEDED] == ["A", again]
    assert shown[Skip.REJECTED] == ["Run", again, without]
    assert shown[State.FAILED] == ["Correct", again, without]
    assert shown[State.PREPARING] == ["It"]
    (missing,) = of(before=built("armv8/x86", day=DAY)).lines
    text, forms = cures_of(missing, "main", DAY)
    assert forms[1] == (without, "start?action=without&slot=main&build_date=2026-11-21&without=armv8%2Fx86")


def test_a_difference_of_builds_is_by_sums_the_largest_first() -> None:
    def build(day: int, **figures: ArtifactFigures) -> NightFigures:
        return NightFigures(BuildKey(DAY, f"b{day}"), figures)

    kept, size = ArtifactFigures(1, "a", 5, 50), 1000
    one = build(1, kept=kept, gone=ArtifactFigures(1, "b", 3, 30), grown=ArtifactFigures(1, "c", 4, size), bare=kept)
    other = build(2, kept=kept, grown=ArtifactFigures(1, "d", 6, 3 * size), new=ArtifactFigures(1, "e", 1, 10),
                  bare=ArtifactFigures(1, "f"))  # fmt: skip
    made = BuildDifference.of(one, other)
    assert [(change.name, change.what[2]) for change in made.changes] == [
        ("grown", "changed"), ("gone", "gone"), ("new", "new"), ("bare", "changed"),
    ]  # fmt: skip
    assert [change.grown("bytes") for change in made.changes] == [2 * size, -30, 10, None]
    assert (made.same, made.total("bytes")) == (1, (size + 130, 3 * size + 60))
