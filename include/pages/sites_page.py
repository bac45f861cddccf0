"""*Sites*: state of each storage site, its history as a strip over time, its probes, and what readers report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from include.federation.records import HELD, RELEASED, SiteChange, changes_of, health_of, results_since
from include.federation.states import EvidenceSource, SiteHealth, SiteObservation, SiteState
from include.pages.asked import Asked
from include.pages.charts import figure, line

EVERY_S = 60
HISTORY, LATELY = timedelta(days=7), timedelta(hours=24)
SHOWN = 50
"""Changes in the table."""
_COLOURS = {"ok": "#10b981", "degraded": "#f59e0b", "failed": "#ef4444", "held": "#64748b"}
Results = Mapping[str, Sequence[tuple[datetime, SiteObservation]]]


@dataclass(frozen=True, slots=True)
class SiteRow:
    """A site as the page shows it; ``shown``: its state, or `held`."""

    health: SiteHealth
    shown: str
    probes: Sequence[SiteObservation]
    transfers: tuple[int, int]
    """Good ones, and those that failed by the site's fault."""
    readers: Mapping[str, float]


def read(asked: Asked) -> dict[str, Any]:
    """All sites of the configuration."""
    now, ledger = datetime.now(UTC), asked.site.ledger
    names = sorted(asked.site.settings.sites)
    health, changes = health_of(ledger, names), changes_of(ledger, now - HISTORY)
    results = {name: some for name, some in results_since(ledger, now - LATELY).items() if name in health}
    recent = sorted(
        (change for name in names for change in changes.get(name, ())), key=lambda change: change.at, reverse=True
    )
    return {
        "every": EVERY_S,
        "rows": [site_row(health[name], results.get(name, ())) for name in names],
        "strip": strip(health, changes, now) if names else None,
        "latencies": latencies(results),
        "changes": recent[:SHOWN],
        "probed": [name for name in names if asked.site.settings.sites[name].probe],
    }


def site_row(health: SiteHealth, results: Sequence[tuple[datetime, SiteObservation]]) -> SiteRow:
    """The figures of a site of the last day; `results`: the newest first."""
    probes: dict[str, SiteObservation] = {}
    counts: Counter[str] = Counter()
    readers: Counter[str] = Counter()
    for _, result in results:
        if result.source is EvidenceSource.PROBE:
            probes.setdefault(result.what, result)
        elif result.source is EvidenceSource.TRANSFER:
            counts.update({"good": result.good, "failed": result.failed})
        else:
            for name in ("good", "failed", "bytes", "seconds", "requests", "retries"):
                readers[name] += getattr(result, name)
    shown = HELD if health.held_by is not None else health.state.value
    return SiteRow(health, shown, list(probes.values())[::-1], (counts["good"], counts["failed"]), readers)


def strip(
    health: Mapping[str, SiteHealth], changes: Mapping[str, Sequence[SiteChange]], now: datetime
) -> dict[str, Any]:
    """A row for each site, coloured by its state over time."""
    parts: dict[str, list[tuple[str, datetime, datetime]]] = {state: [] for state in _COLOURS}
    for name in sorted(health, reverse=True):
        for state, begin, end in periods(changes.get(name, ()), now):
            parts[state].append((name, begin, end))
    data = [
        {
            "type": "bar", "orientation": "h", "name": state, "marker": {"color": _COLOURS[state]},
            "y": [name for name, _, _ in periods_], "base": [_time(begin) for _, begin, _ in periods_],
            "x": [(end - begin).total_seconds() * 1000 for _, begin, end in periods_],
            "hovertemplate": f"%{{y}}: {state} from %{{base}}<extra></extra>",
        }
        for state, periods_ in parts.items() if periods_
    ]  # fmt: skip
    layout = {
        "height": max(320, 110 + 34 * len(health)), "barmode": "overlay", "bargap": 0.5, "showlegend": True,
        "legend": {"orientation": "h", "y": 1.15},
        "xaxis": {"type": "date", "title": {"text": "Time (UTC)"}, "range": [_time(now - HISTORY), _time(now)]},
        "yaxis": {"type": "category", "automargin": True},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def periods(changes: Iterable[SiteChange], now: datetime) -> list[tuple[str, datetime, datetime]]:
    """The states of a site within the history, each with its begin and end; `changes`: the newest first."""
    result: list[tuple[str, datetime, datetime]] = []
    state, held, begin = SiteState.OK.value, False, now - HISTORY
    for change in sorted(changes, key=lambda change: change.at):
        result.append((HELD if held else state, begin, change.at))
        begin = change.at
        if change.change in (HELD, RELEASED):
            held = change.change == HELD
        else:
            state = change.change
    return [*result, (HELD if held else state, begin, now)]


def latencies(results: Results) -> dict[str, Any] | None:
    """Seconds until the first byte of each site over time."""
    traces = []
    for name, some in sorted(results.items()):
        points = [(at, result.seconds) for at, result in reversed(some) if result.what == "first byte" and result.good]
        if points:
            traces.append(line(name, [at for at, _ in points], [seconds for _, seconds in points]))
    return figure("Seconds until the first byte", traces, unit="s") if traces else None


def _time(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")
