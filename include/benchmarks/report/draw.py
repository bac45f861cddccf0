"""Charts drawn: as figures of Plotly for the page, and as PNG by Matplotlib."""

from __future__ import annotations

import io
import math
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from include.benchmarks.report.charts import BenchmarkChart

COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#64748b", "#06b6d4", "#d946ef")
LINES_INSIDE = 6
"""With more lines the legend is beside the chart, where it hides none of them."""
_INCHES, _DPI = (8.0, 4.5), 110


def plotly_figure(chart: BenchmarkChart) -> dict[str, Any]:
    """What `Plotly.newPlot` takes."""
    traces = []
    for number, line in enumerate(chart.lines):
        trace: dict[str, Any] = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": line.name,
            "x": [_day(x).isoformat() if chart.days else x for x, _ in line.points],
            # JSON has no word for a gap but null
            "y": [None if math.isnan(y) else y for _, y in line.points],
            "marker": {"color": COLOURS[number % len(COLOURS)]},
        }
        if line.text:
            trace |= {"text": list(line.text), "mode": "lines+markers+text", "textposition": "top center"}
        traces.append(trace)
    layout = {
        "title": {"text": chart.title},
        "height": 420,
        "xaxis": {"title": {"text": chart.x_label}, "type": _axis(chart)},
        "yaxis": {"title": {"text": chart.y_label}, "rangemode": "tozero"},
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.2},
    }
    return {"data": traces, "layout": layout}


_HEADROOM = 1.08
"""Of the vertical axis, above the highest point and its text."""


def png(chart: BenchmarkChart, subject: str) -> bytes:
    """Draw the chart as a picture; `subject`, below its title, says what was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, line in enumerate(chart.lines):
        x: list[Any] = [_day(x) if chart.days else x for x, _ in line.points]
        y = [y for _, y in line.points]
        axes.plot(x, y, marker="o", markersize=4, color=COLOURS[number % len(COLOURS)], label=_plain(line.name))
        for place, height, text in filter(itemgetter(2), zip(x, y, line.text, strict=False)):
            offset: dict[str, Any] = {"xytext": (0, 6), "textcoords": "offset points", "fontsize": 7, "ha": "center"}
            axes.annotate(_plain(text), (place, height), **offset)
    axes.set(title=_plain(f"{chart.title}\n{subject}"), xlabel=chart.x_label, ylabel=chart.y_label)
    highest = max((y for line in chart.lines for _, y in line.points if not math.isnan(y)), default=0.0)
    axes.set_ylim(0, _HEADROOM * highest or 1)
    if chart.log_x:
        axes.set_xscale("log", base=2)
    elif not chart.days and all(float(x).is_integer() for line in chart.lines for x, _ in line.points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.3)
    if len(chart.lines) > LINES_INSIDE:
        figure.legend(fontsize=7, loc="outside right upper")
    else:
        axes.legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _axis(chart: BenchmarkChart) -> str:
    if chart.days:
        return "date"
    return "log" if chart.log_x else "linear"


def _day(seconds: float) -> datetime:
    # Plotly draws times without a zone as they are
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _plain(text: str) -> str:
    """Matplotlib reads dollar signs as formulas."""
    return text.replace("$", r"\$")
