"""*Caches*: size, space, ages, trims, verifications and warms of each shared cache, as the ledger has them."""

from __future__ import annotations

from typing import Any

from include.aliencache.records import CacheRun, CacheRunKind, cache_runs_of
from include.aliencache.scan import DAYS
from include.ledger.engine import Bind
from include.pages.asked import Asked
from include.pages.charts import COLOURS, figure, line
from include.settings.caches import CacheSettings

EVERY_S = 30
SHOWN, POINTS = 10, 300
"""Runs in a table, and looks in a plot."""


def read(asked: Asked) -> dict[str, Any]:
    """All caches of the configuration; with `cache` that one alone."""
    settings = asked.site.settings.caches
    chosen = asked.choice("cache", settings)
    names = [chosen] if chosen else sorted(settings)
    return {
        "caches": sorted(settings),
        "cache": chosen,
        "every": EVERY_S,
        "all": [_cache(asked.site.ledger, settings[name]) for name in names],
    }


def _cache(ledger: Bind, settings: CacheSettings) -> dict[str, Any]:
    looks = cache_runs_of(ledger, settings.name, CacheRunKind.LOOK, limit=POINTS)
    trims = cache_runs_of(ledger, settings.name, CacheRunKind.TRIM, limit=SHOWN)
    look = looks[0] if looks else None
    return {
        "name": settings.name,
        "settings": settings,
        "look": look,
        "space_figure": space_figure(looks) if len(looks) > 1 else None,
        "age_figure": age_figure(look, trims) if look and look.report["objects"] else None,
        "trims": trims,
        "checks": cache_runs_of(ledger, settings.name, CacheRunKind.VERIFY, limit=SHOWN),
        "warms": cache_runs_of(ledger, settings.name, CacheRunKind.WARM, limit=SHOWN),
    }


def space_figure(looks: list[CacheRun]) -> dict[str, Any]:
    """Bytes of a cache, and free bytes of its file system, over time."""
    looks = sorted(looks, key=lambda look: look.ended_at)
    times = [look.ended_at for look in looks]
    traces = [
        line("bytes of the cache", times, [look.report["bytes"] for look in looks]),
        line("free bytes", times, [look.report["bytes_free"] for look in looks]),
    ]
    return figure("Bytes", traces, unit="B")


def age_figure(look: CacheRun, trims: list[CacheRun]) -> dict[str, Any]:
    """Bytes by days since their last use, with the line of the last trim that took something."""
    labels = [f"< {days:g}" for days in DAYS] + [f"{DAYS[-1]:g} and more"]
    sizes = [size for _, size in look.report["ages"]]
    data = [{"type": "bar", "name": "bytes", "x": labels, "y": sizes, "marker": {"color": COLOURS[0]}}]
    layout: dict[str, Any] = {
        "height": 320, "showlegend": False, "xaxis": {"type": "category", "title": {"text": "Days since the last use"}},
        "yaxis": {"title": {"text": "Bytes"}, "rangemode": "tozero", "tickformat": "~s", "ticksuffix": "B"},
    }  # fmt: skip
    cut = next((trim for trim in trims if trim.report["line"] and not trim.dry_run), None)
    if cut is not None:
        days = (cut.ended_at.timestamp() - cut.report["line"]) / 86400
        place = next((number for number, end in enumerate(DAYS) if days < end), len(DAYS))
        layout["shapes"] = [{
            "type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "yref": "paper",
            "line": {"color": COLOURS[4], "dash": "dash"},
        }]  # fmt: skip
        layout["annotations"] = [{
            "x": place, "y": 1, "yref": "paper", "text": f"last trim: {days:.1f} days", "showarrow": False,
        }]  # fmt: skip
    return {"data": data, "layout": layout}
