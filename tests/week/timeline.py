"""The week as a picture, in SVG: the passes of each slot, when its links moved, freezes and kills. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from xml.sax.saxutils import escape

from tests.week.night import Happening, Ran
from tests.week.plan import SLOTS
from tests.week.reader import Sample

WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 1400, 74, 70, 20, 56, 62
STATES = {"success": "#2e8b57", "failed": "#c0392b"}
REBUILD, FREEZE, KILL, MOVE = "#8e44ad", "#1f6fb4", "#c0392b", "#222222"
TICKS = (30, 60, 120, 300, 600, 1200, 3600)


@dataclass(frozen=True, slots=True)
class Bar:
    """A run in its lane: passes of a night one below the other where they overlap."""

    ran: Ran
    lane: int


def timeline(
    title: str,
    runs: Sequence[Ran],
    samples: Sequence[Sample],
    happenings: Sequence[Happening],
    nights: Mapping[date, float],
) -> str:
    """The text of an SVG file. `nights`: when each began, in seconds of the week."""
    end = max([one.ended_s for one in runs] + [one.last_s for one in samples] + [1.0])
    height = TOP + ROW * len(SLOTS) + BOTTOM

    def across(seconds: float) -> float:
        return LEFT + seconds / end * (WIDTH - LEFT - RIGHT)

    box = f'viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(WIDTH / 2, 20, title, size=16),
    ]
    floor = TOP + ROW * len(SLOTS)
    for one in happenings:
        colour, opacity = (FREEZE, 0.25) if one.kind == "freeze" else (KILL, 1.0)
        width = max(2.0, across(one.ended_s) - across(one.began_s))
        parts.append(_box(across(one.began_s), TOP - 6, width, floor - TOP + 6, colour, one.said, opacity=opacity))
    for day, began in nights.items():
        x = across(began)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 12}" y2="{floor}" stroke="#bbbbbb"/>')
        parts.append(_text(x + 4, TOP - 10, f"{day:%a %d}", anchor="start"))
    for number, slot in enumerate(SLOTS):
        top = TOP + number * ROW
        parts.append(_text(8, top + ROW / 2, slot, anchor="start", size=14))
        for bar in bars(one for one in runs if one.slot == slot):
            ran = bar.ran
            colour = REBUILD if ran.run_id.startswith("again") else STATES.get(ran.state, "#999999")
            said = f"{ran.run_id}: {ran.state}, {ran.ended_s - ran.began_s:.0f} s"
            width = max(1.5, across(ran.ended_s) - across(ran.began_s))
            parts.append(_box(across(ran.began_s), top + 6 + 14 * (bar.lane % 3), width, 10, colour, said))
        for at, said in moves(samples, slot):
            x, y = across(at), top + 62
            parts.append(f'<path d="M{x:.1f} {y - 9} l5 9 l-10 0 z" fill="{MOVE}"><title>{escape(said)}</title></path>')
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top + ROW}" y2="{top + ROW}" stroke="#dddddd"/>')
    step = next((one for one in TICKS if end / one <= 15), TICKS[-1])
    parts += [_text(across(at), floor + 18, f"{at / 60:g} min") for at in range(0, int(end) + 1, step)]
    legend = (
        (STATES["success"], "pass that succeeded"), (STATES["failed"], "pass that failed"), (REBUILD, "rebuild"),
        (FREEZE, "frozen"), (KILL, "scheduler killed"), (MOVE, "▲ a link moves, as a reader saw it"),
    )  # fmt: skip
    for number, (colour, words) in enumerate(legend):
        x = LEFT + number * 200
        parts.append(f'<rect x="{x}" y="{floor + 36}" width="12" height="10" fill="{colour}"/>')
        parts.append(_text(x + 18, floor + 45, words, anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def bars(runs: Iterable[Ran]) -> list[Bar]:
    """Runs in lanes, in which none overlaps another."""
    free: list[float] = []
    done = []
    for ran in sorted(runs, key=lambda one: one.began_s):
        lane = next((number for number, until in enumerate(free) if until <= ran.began_s), len(free))
        free[lane : lane + 1] = [ran.ended_s]
        done.append(Bar(ran, lane))
    return done


def moves(samples: Sequence[Sample], slot: str) -> list[tuple[float, str]]:
    """When a link of a slot was first seen to lead elsewhere than before, and where."""
    found = []
    before: dict[str, str] = {}
    for one in samples:
        now = {path: led.target for path, led in one.links.items() if path.startswith(f"/nightlies/{slot}/")}
        changed = [f"{path} to {target}" for path, target in now.items() if before.get(path) != target]
        if changed:
            found.append((one.first_s, f"revision {one.revision}: {', '.join(changed)}"))
        before = now
    return found


def _box(x: float, y: float, width: float, height: float, colour: str, said: str, *, opacity: float = 1.0) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" opacity="{opacity}"'
    return f"<rect {shape}><title>{escape(said)}</title></rect>"


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'
