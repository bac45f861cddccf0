"""Figures of Plotly, as the pages draw them; colours of ground, text and axes come from the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import cycle
from typing import Any

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#64748b", "#06b6d4", "#d946ef")
"""Colours of traces in their order; each is seen on a light and on a dark ground."""
LEGEND = {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"}
"""Place of a legend: it grows upwards, so that its lines on a narrow page cover nothing."""
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


@dataclass(frozen=True, slots=True)
class DrawnSpan:
    """A bar from one moment to another. `row`: its line of the figure, from 0; `text`: shown beside the pointer."""

    row: int
    begin: datetime
    end: datetime
    text: str


def spans(name: str, drawn: Sequence[DrawnSpan], colour: str, *, pattern: str = "") -> dict[str, Any]:
    """Bars over time, all of one kind; a pattern tells kinds apart where colours do not."""
    return {
        "type": "bar", "orientation": "h", "name": name,
        "marker": {"color": colour, "pattern": {"shape": pattern}},
        "y": [span.row for span in drawn], "base": _times([span.begin for span in drawn]),
        "x": [(span.end - span.begin).total_seconds() * 1000 for span in drawn],
        "text": [span.text for span in drawn], "textposition": "none", "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def points(name: str, drawn: Sequence[DrawnSpan], colour: str, symbol: str) -> dict[str, Any]:
    """Marks at the beginnings of spans which are too short for a bar."""
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "marker": {"color": colour, "symbol": symbol, "size": 11, "line": {"color": colour, "width": 2}},
        "y": [span.row for span in drawn], "x": _times([span.begin for span in drawn]),
        "text": [span.text for span in drawn], "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def timeline(rows: Sequence[str], traces: Sequence[dict[str, Any]], begin: datetime, end: datetime) -> dict[str, Any]:
    """A figure of a line for each row, the first at the top, with its name above its bars.

    Args:
        rows: Names of the lines.
        traces: What `spans` and `points` gave.
        begin: Left end of the axis of time.
        end: Right end of it.
    """
    layout = {
        "height": 130 + 34 * max(len(rows), 3), "barmode": "overlay", "bargap": 0.62, "showlegend": True,
        "legend": LEGEND,
        "margin": {"l": 8, "r": 12, "t": 64, "b": 48},
        "xaxis": {"type": "date", "title": {"text": "Time (UTC)"}, "range": _times([begin, end]), "nticks": 6},
        "yaxis": {
            "range": [len(rows) - 0.4, -0.9], "tickmode": "array", "tickvals": [row - 0.47 for row in range(len(rows))],
            "ticktext": list(rows), "ticklabelposition": "inside", "showgrid": False, "zeroline": False,
            "fixedrange": True,
        },
    }  # fmt: skip
    return {"data": list(traces), "layout": layout}


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
        "height": 320, "barmode": "stack", "showlegend": len(data) > 1,
        "legend": LEGEND,
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
