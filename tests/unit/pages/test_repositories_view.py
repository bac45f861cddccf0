"""What the page *Repositories* makes of rows of the ledger."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from include.pages import repositories_view
from include.pages.repositories_view import CollectionRow
from include.replicas.states import ReplicaLook, ReplicaState

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)


def change(revision: int, path: str = "/a", kind: str | None = None, minutes: int = 0) -> Any:
    at, run = NOW + timedelta(minutes=minutes), "nightly_install/night"
    return SimpleNamespace(
        revision=revision, path=path, kind=kind, run_id=run, holder=f"{run}/reserve try 1", published_at=at
    )


def published(revision: int | None, *, days: int = 0, **figures: int | None) -> Any:
    known = {"files": 3, "bytes": 100, "bytes_uploaded": 40, "objects_new": 1, "objects_reused": 3} | figures
    return SimpleNamespace(revision_after=revision, updated_at=NOW - timedelta(days=days), **known)


def look(name: str, state: ReplicaState, hours: int = 0) -> ReplicaLook:
    return ReplicaLook(
        repository="r", replica=name, url="http://r", state=state, reason="", looked_at=NOW, state_since=NOW,
        head_revision=9, behind_since=NOW - timedelta(hours=hours),
    )  # fmt: skip


def test_a_revision_has_its_changes_its_run_and_what_it_published() -> None:
    changes = [change(8, "/b", minutes=5), change(8, "/a", "link"), change(7)]
    newest, oldest = repositories_view.revisions_of(
        "r", changes, [published(8), published(8), published(None)], whole=True
    )
    assert (newest.revision, newest.at, newest.changes) == (8, NOW, Counter({"tree": 1, "link": 1}))
    assert (newest.path, newest.path_url) == ("/b", "provenance?repository=r&path=%2Fb")
    assert newest.task_url == "../dags/nightly_install/runs/night/tasks/reserve?try_number=1"
    assert newest.published == repositories_view.PublishedSum(2, 6, 200, 80, 2, 6)
    assert newest.published.reused == 0.75
    assert oldest.published is None


def test_revisions_and_days_of_which_not_all_was_read_are_left_out() -> None:
    changes = [change(8), change(7)]
    assert [one.revision for one in repositories_view.revisions_of("r", changes, [], whole=False)] == [8]
    assert [one.revision for one in repositories_view.revisions_of("r", changes[:1], [], whole=False)] == [8]
    rows = [published(3), published(2, days=1), published(1, days=2)]
    for whole, numbers in ((True, (19, 20, 21)), (False, (20, 21))):
        assert [day for day, _ in repositories_view.days_of(rows, whole=whole)] == [
            date(2026, 11, number) for number in numbers
        ]
    uncounted = published(1, files=None, bytes=None, bytes_uploaded=None, objects_new=None, objects_reused=None)
    ((_, day),) = repositories_view.days_of([uncounted], whole=True)
    assert (day, day.reused) == (repositories_view.PublishedSum(artifacts=1), None)


def test_plots_divide_bytes_into_sent_and_not_sent_and_go_from_the_oldest_collection_on() -> None:
    days = [(date(2026, 11, 21), repositories_view.PublishedSum(bytes=100, uploaded=40))]
    sent, had = repositories_view.size_figure(days)["data"]
    assert (sent["x"], sent["y"], had["y"]) == (["2026-11-21"], [40], [60])
    rows = [CollectionRow(NOW - timedelta(days=days), 10 - days, 1, 1, 2, 0, 1.0) for days in (0, 1)]
    kept, garbage, _ = repositories_view.object_figure(rows)["data"]
    assert (kept["x"], kept["y"]) == (["2026-11-20T03:00:00", "2026-11-21T03:00:00"], [9, 10])
    assert garbage["y"] == [2, 2]


def test_a_replica_that_is_not_trusted_is_worse_than_one_that_lags_and_a_whitelist_that_ends_soon_is_marked() -> None:
    for days, kind in ((-1, "bad"), (0.5, "bad"), (6, "wait"), (20, "good")):
        assert repositories_view.whitelist_kind(NOW + timedelta(days=days), NOW) == kind
    away, late, fresh = (
        look("away", ReplicaState.UNREACHABLE), look("late", ReplicaState.BEHIND, 5), look("new", ReplicaState.IN_SYNC)
    )  # fmt: skip
    assert repositories_view.worst([fresh, late]) == late
    assert repositories_view.worst([late, away]) == away
    assert repositories_view.worst([]) is None
    assert [repositories_view.replica_kind(one) for one in (away, late, fresh)] == ["bad", "wait", "good"]


def test_growth_has_a_mark_for_each_collection_within_it() -> None:
    def size(hour: int, size: int) -> repositories_view.RevisionSize:
        return repositories_view.RevisionSize(NOW + timedelta(hours=hour), hour, 1, size, 1)

    def ended(hours: float) -> CollectionRow:
        return CollectionRow(NOW + timedelta(hours=hours), 1, 1, 1, 0, 0, 1.0)

    sizes, rows = [size(0, 10), size(2, 30)], [ended(3), ended(1), ended(-1)]
    line, marks = repositories_view.growth_figure(sizes, rows)["data"]
    assert (line["y"], marks["y"], marks["mode"]) == ([10, 30], [10], "markers")
    assert len(repositories_view.growth_figure(sizes, [])["data"]) == 1
