"""Figures of Plotly that the pages draw."""

from __future__ import annotations

from datetime import UTC, date, datetime

from include.pages.charts import COLOURS, bars, figure, line

DAYS = [date(2026, 11, 20), date(2026, 11, 21)]


def test_days_are_categories_and_times_are_drawn_as_they_are_in_utc() -> None:
    by_day = figure("n", [bars("a", DAYS, [1, 2])])
    assert (by_day["layout"]["xaxis"]["type"], by_day["data"][0]["x"]) == ("category", ["2026-11-20", "2026-11-21"])
    by_time = figure("n", [line("a", [datetime(2026, 11, 20, 3, tzinfo=UTC)], [1])])
    assert (by_time["layout"]["xaxis"]["type"], by_time["data"][0]["x"]) == ("date", ["2026-11-20T03:00:00"])


def test_whole_numbers_have_no_mark_between_them() -> None:
    few, many = [bars("a", DAYS, [3, None]), bars("b", DAYS, [2, 5])], [bars("a", DAYS, [300, 1])]
    assert figure("n", few, whole=True)["layout"]["yaxis"]["dtick"] == 1
    assert "dtick" not in figure("n", many, whole=True)["layout"]["yaxis"]
    assert "dtick" not in figure("n", few, unit="s")["layout"]["yaxis"]
    late = [line("revision", DAYS, [1000, 1003])]
    assert figure("n", late, whole=True, from_zero=False)["layout"]["yaxis"]["dtick"] == 1
    assert figure("n", [], whole=True)["data"] == []
    # a trace keeps a colour of its own
    data = figure("n", [bars("a", DAYS, [1, 2]), bars("b", DAYS, [1, 2], colour="#ffffff")])["data"]
    assert [one["marker"]["color"] for one in data] == [COLOURS[0], "#ffffff"]
