"""What the page *Publications* makes of rows of the ledger."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from include.nightlies.rules.publication import State
from include.pages import publications_view

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)


def row(state: str = "published", *, days: int = 0, minutes: int = 0, **more: Any) -> Any:
    at = NOW - timedelta(days=days)
    known = {
        "state": state, "code": None, "files": 3, "bytes": 1000, "bytes_uploaded": 40,
        "objects_new": 1, "objects_reused": 3, "seconds": {"prepare": 2.0, "lease": 0.5}, "lease_held_s": 0.25,
        "created_at": at, "updated_at": at + timedelta(minutes=minutes),
    }  # fmt: skip
    return SimpleNamespace(**known | more)


def test_a_day_has_its_rates_and_times_by_what_was_published_only() -> None:
    ((day, one),) = publications_view.days_of([row(minutes=30), row(seconds={"prepare": 4.0})], whole=True)
    assert (day, one.published.artifacts, one.per_hour) == (date(2026, 11, 21), 2, 4.0)
    assert one.bytes_per_s == 2000 / 6
    assert (one.mean("prepare"), one.mean("lease"), one.mean("commit")) == (3.0, 0.25, None)
    ((_, one),) = publications_view.days_of([row("failed"), row("unchanged")], whole=True)
    assert one.states == {State.FAILED: 1, State.UNCHANGED: 1}
    assert (one.published.artifacts, one.bytes_per_s, one.per_hour, one.held_at(1.0)) == (0, None, None, None)
    assert not one.seconds
    rows = [row(lease_held_s=seconds / 100) for seconds in range(1, 101)] + [row(lease_held_s=None)]
    ((_, one),) = publications_view.days_of(rows, whole=True)
    assert [one.held_at(share) for share in (0.0, 0.5, 0.95, 1.0)] == [0.01, 0.5, 0.95, 1.0]


def test_a_day_of_which_not_all_was_read_is_left_out() -> None:
    rows = [row(), row(days=1)]
    assert [day.day for day, _ in publications_view.days_of(rows, whole=False)] == [21]
    assert [day.day for day, _ in publications_view.days_of(rows, whole=True)] == [20, 21]
    assert [day.day for day, _ in publications_view.days_of(rows[:1], whole=False)] == [21]


def test_failures_are_counted_by_code_the_most_frequent_first() -> None:
    rows = [
        row("failed", code="b"), row("failed", code="a", days=1), row("failed", code="a"), row("failed"), row(),
    ]  # fmt: skip
    first, *others = publications_view.failures_of(rows)
    assert first == publications_view.FailureClass("a", 2, NOW)
    assert [one.code for one in others] == ["b", publications_view.UNKNOWN]


def test_plots_have_a_trace_for_each_state_and_phase_that_occurred() -> None:
    days = publications_view.days_of([row(), row("failed", days=1)], whole=True)
    traces = publications_view.state_figure(days)["data"]
    assert [(one["name"], one["y"]) for one in traces] == [("published", [0, 1]), ("failed", [1, 0])]
    assert publications_view.phases_of(days) == ["prepare", "lease"]
    prepare, _ = publications_view.phase_figure(days, publications_view.phases_of(days))["data"]
    assert (prepare["x"], prepare["y"]) == (["2026-11-20", "2026-11-21"], [None, 2.0])
    assert publications_view.lease_figure(days)["data"][0]["y"] == [None, 0.25]
    # every state has a style and a colour of its own
    days = publications_view.days_of([row(state.value) for state in State], whole=True)
    colours = [one["marker"]["color"] for one in publications_view.state_figure(days)["data"]]
    assert len(set(colours)) == len(State) == len(colours)
    assert {publications_view.kind_of(state) for state in State} == {"good", "bad", "busy", "wait"}


def test_every_error_has_a_cure_by_its_hint_or_by_what_it_concerns() -> None:
    assert publications_view.cure_of("gateway-unreachable").startswith("Start the gateway, or correct host")
    assert publications_view.cure_of("store-unavailable").startswith("Check the object store")
    for code in ("source-invalid", "not-one-of-ours", None):
        assert publications_view.cure_of(code).endswith("install it again.")
