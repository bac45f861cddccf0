"""Figures of Plotly, as the pages draw them; colours of ground, text and axes come from the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import cycle
from typing import Any

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#64748b", "#06b6d4", "#d946ef")
"""Colours of traces in their order; each is seen on a light and on a dark ground."""
STEPS = 8
"""An axis of whole numbers that is no higher has a mark at each."""


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


def figure(
    title: str, traces: Sequence[dict[str, Any]], *, unit: str = "", whole: bool = False, from_zero: bool = True
) -> dict[str, Any]:
    """A figure of these traces over days or over time.

    Args:
        title: Of the vertical axis.
        traces: What `line` and `bars` gave, all with the same days or times.
        unit: Of the values, drawn with a decimal prefix.
        whole: Whether values are numbers of something, drawn without a prefix.
        from_zero: Whether the vertical axis has zero in it.
    """
    data = [{"marker": {"color": colour}} | trace for trace, colour in zip(traces, cycle(COLOURS), strict=False)]
    vertical: dict[str, Any] = {"title": {"text": title}, "rangemode": "tozero" if from_zero else "normal"}
    vertical |= {"tickformat": ",d"} if whole else {"tickformat": "~s", "ticksuffix": unit}
    if whole and _height(traces, from_zero) <= STEPS:
        vertical["dtick"] = 1
    days = all("T" not in moment for trace in traces for moment in trace["x"])
    layout = {
        "height": 320, "barmode": "stack", "legend": {"orientation": "h", "y": 1.15}, "showlegend": len(data) > 1,
        "xaxis": {"type": "category" if days else "date", "title": {"text": "Day (UTC)" if days else "Time (UTC)"}},
        "yaxis": vertical,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _height(traces: Sequence[dict[str, Any]], from_zero: bool) -> float:
    """Return the highest value of the vertical axis."""
    values = [[value or 0 for value in trace["y"]] for trace in traces if trace["y"]]
    if not from_zero:
        return max(map(max, values), default=0) - min(map(min, values), default=0)
    return sum(map(max, values))


def _times(x: Sequence[date]) -> list[str]:
    # Plotly draws times without a zone as they are: all are in UTC
    return [moment.isoformat().removesuffix("+00:00") for moment in x]
