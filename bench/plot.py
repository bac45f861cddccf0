"""Plots as SVG, without a library: lines over a logarithmic or plain axis, and bars made of parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 720, 420
_RIGHT, _TOP, _BOTTOM = 20, 50, 60
_PARTS = ("#1f6fb4", "#2e8b57", "#c0392b", "#e0a030", "#8e44ad", "#5f9ea0", "#999999", "#444444")
_COLOURS = ("#1f6fb4", "#999999", "#c0392b", "#2e8b57", "#8e44ad")


@dataclass(frozen=True, slots=True)
class Series:
    """A named line through points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


def line_plot(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    log_x: bool = False,
    ticks: Sequence[float] | None = None,
) -> str:
    """The plot as the text of an SVG file; the vertical axis begins at zero.

    With `ticks`, the values of x that are written below it, the lines have no marks; else each point has both.
    """
    places = sorted({x for one in series for x, _ in one.points})
    low, high = (math.log2(value) if log_x else value for value in (places[0], places[-1]))
    top = _round_up(max(y for one in series for _, y in one.points))
    left = 45 + 8 * len(f"{top:,.0f}")  # the label of the axis beside the longest number

    def across(x: float) -> float:
        share = ((math.log2(x) if log_x else x) - low) / ((high - low) or 1)
        return left + share * (_WIDTH - left - _RIGHT)

    def up(y: float) -> float:
        return _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        *_frame(_HEIGHT, title, x_label),
        f'<g transform="translate(18 {_HEIGHT / 2}) rotate(-90)">{_text(0, 0, y_label)}</g>',
    ]
    for step in range(6):
        y = top * step / 5
        parts.append(
            f'<line x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{up(y):.1f}" y2="{up(y):.1f}" stroke="#dddddd"/>'
            + _text(left - 8, up(y) + 4, f"{y:,.0f}", anchor="end")
        )
    parts += [_text(across(x), _HEIGHT - _BOTTOM + 20, f"{x:g}") for x in (places if ticks is None else ticks)]
    for number, one in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in one.points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        marks = one.points if ticks is None else ()
        parts += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5" fill="{colour}"/>' for x, y in marks]
        at = left + 12 + number * 200
        parts.append(f'<rect x="{at}" y="{_TOP - 18}" width="14" height="4" fill="{colour}"/>')
        parts.append(_text(at + 20, _TOP - 12, one.name, anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def bar_plot(title: str, x_label: str, bars: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Horizontal bars from zero, each a row of parts by name; the names are explained once, above."""
    left = 40 + 7 * max(len(label) for label, _ in bars)
    names = list(dict.fromkeys(name for _, parts in bars for name in parts))
    longest = _round_up(max(sum(parts.values()) for _, parts in bars))
    height = _TOP + 30 + 50 * len(bars) + _BOTTOM
    scale = (_WIDTH - left - _RIGHT) / longest
    drawn = _frame(height, title, x_label)
    for number, name in enumerate(names):
        at = 20 + number * (_WIDTH - 20) // len(names)
        drawn.append(f'<rect x="{at}" y="{_TOP - 10}" width="12" height="12" fill="{_PARTS[number % len(_PARTS)]}"/>')
        drawn.append(_text(at + 17, _TOP + 1, name, anchor="start"))
    for row, (label, parts) in enumerate(bars):
        y, x = _TOP + 25 + 50 * row, float(left)
        drawn.append(_text(left - 8, y + 20, label, anchor="end"))
        for name, value in parts.items():
            colour = _PARTS[names.index(name) % len(_PARTS)]
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="30" fill="{colour}"/>')
            x += value * scale
        whole = sum(parts.values())
        drawn.append(_text(x + 6, y + 20, f"{whole:.2g}" if whole < 10 else f"{whole:,.0f}", anchor="start"))
    ticks = [longest * step / 5 for step in range(6)]
    drawn += [_text(left + tick * scale, height - _BOTTOM + 20, f"{tick:g}") for tick in ticks]
    return "\n".join([*drawn, "</svg>", ""])


def _frame(height: float, title: str, x_label: str) -> list[str]:
    """What every plot begins with."""
    box = f'viewBox="0 0 {_WIDTH} {height}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_WIDTH / 2, 22, title, size=16),
        _text(_WIDTH / 2, height - 14, x_label),
    ]


def _text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def _round_up(value: float) -> float:
    """To one, two or five times a power of ten, so that five steps are round numbers."""
    unit = 10 ** math.floor(math.log10(value or 1))
    return next(unit * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10) if unit * factor >= value)
