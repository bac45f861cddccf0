"""What a cell of the matrix shows, how progress is estimated, and where links lead. No ledger, no app."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from include.nightlies.records.progress import NotedProgress
from include.nightlies.rules.states import Skip, State
from include.pages.app import number, span
from include.pages.nights_view import NEARLY, ArtifactCell, cell_of, going, matrices, progress_of
from include.pages.registry import provenance, run_of, start, task_of
from tests.fakes.summaries import NOW, built, of, published

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
