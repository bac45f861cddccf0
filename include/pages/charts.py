"""Figures of Plotly, as the pages draw them; colours of ground, text and axes come from the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import cycle
from typing import Any

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#64748b", "#06b6d4", "#d946ef")
"""Of traces in their order; each is seen on a light and on a dark ground."""


def line(name: str, x: Sequence[date], y: Sequence[float | None], *, shape: str = "linear") -> dict[str, Any]:
    """A line with a mark at each value; None leaves a gap."""
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": _times(x), "y": list(y),
        "line": {"shape": shape},
    }  # fmt: skip


def bars(name: str, x: Sequence[date], y: Sequence[float | None], *, colour: str | None = None) -> dict[str, Any]:
    """Bars, stacked on those of the other traces; the colour by the order of the traces, if none is given."""
    trace = {"type": "bar", "name": name, "x": _times(x), "y": list(y)}
    return trace if colour is None else trace | {"marker": {"color": colour}}


def figure(title: str, traces: Sequence[dict[str, Any]], *, unit: str = "", integers: bool = False) -> dict[str, Any]:
    """A figure of these traces over time.

    Args:
        title: Of the vertical axis.
        traces: What `line` and `bars` gave.
        unit: Of the values, drawn with a decimal prefix.
        integers: Whether values are numbers of something, drawn without a prefix.
    """
    data = [{"marker": {"color": colour}} | trace for trace, colour in zip(traces, cycle(COLOURS), strict=False)]
    vertical: dict[str, Any] = {"title": {"text": title}, "rangemode": "normal" if integers else "tozero"}
    vertical |= {"tickformat": ",d"} if integers else {"tickformat": "~s", "ticksuffix": unit}
    layout = {
        "height": 320, "barmode": "stack", "xaxis": {"type": "date", "title": {"text": "Time (UTC)"}},
        "yaxis": vertical, "legend": {"orientation": "h", "y": 1.15}, "showlegend": len(data) > 1,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _times(x: Sequence[date]) -> list[str]:
    # Plotly draws times without a zone as they are: all are in UTC
    return [one.isoformat().removesuffix("+00:00") for one in x]
