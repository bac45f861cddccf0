"""The figures of the page *Caches*."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from include.aliencache.records import CacheRun, CacheRunKind
from include.pages.caches_page import age_figure, space_figure

NOW = datetime(2026, 11, 21, 3, tzinfo=UTC)


def run(kind: CacheRunKind, hours: float = 0, *, dry_run: bool = False, **report: Any) -> CacheRun:
    return CacheRun("site", kind, NOW - timedelta(hours=hours), dry_run, report)


def test_space_is_drawn_from_the_oldest_look_on() -> None:
    looks = [run(CacheRunKind.LOOK, hours, bytes=int(hours), bytes_free=9) for hours in (1, 2, 3)]
    sizes, free = space_figure(looks)["data"]
    assert (sizes["y"], free["y"]) == ([3, 2, 1], [9, 9, 9])


def test_ages_have_the_line_of_the_last_trim_that_took_something() -> None:
    look = run(CacheRunKind.LOOK, ages=[(number, number * 10) for number in range(9)])
    bare = age_figure(look, [run(CacheRunKind.TRIM, line=0)])
    assert bare["data"][0]["y"] == [number * 10 for number in range(9)]
    assert "shapes" not in bare["layout"]
    line = int((NOW - timedelta(days=5)).timestamp())
    trims = [run(CacheRunKind.TRIM, dry_run=True, line=1), run(CacheRunKind.TRIM, line=line)]
    (mark,) = age_figure(look, trims)["layout"]["shapes"]
    assert mark["x0"] == 3  # the bar of less than seven days
    assert age_figure(look, trims)["layout"]["annotations"][0]["text"] == "last trim: 5.0 days"
