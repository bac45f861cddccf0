"""*Sites*: state of each storage site, its history as a strip over time, its probes, and what readers report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from include.federation.records import HELD, RELEASED, SiteChange, changes_of, health_of, probes_since, reports_since
from include.federation.states import EvidenceSource, SiteHealth, SiteObservation, SiteState
from include.pages.asked import Asked
from include.pages.charts import DrawnSpan, figure, line, spans, timeline

EVERY_S = 60
HISTORY, LATELY, HOUR = timedelta(days=7), timedelta(hours=24), timedelta(hours=1)
FIRST = "first byte"
SHOWN = 50
"""Changes in the table."""
_LOOKS = {"ok": ("#10b981", ""), "degraded": ("#f59e0b", "/"), "failed": ("#ef4444", "x"), "held": ("#64748b", ".")}
"""Colour and pattern of each state."""


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
    probes = [(at, probe) for at, probe in probes_since(ledger, now - HOUR) if probe.site in health]
    firsts = [(at, probe) for at, probe in probes_since(ledger, now - LATELY, FIRST) if probe.site in health]
    reports = reports_since(ledger, now - LATELY)
    recent = sorted(
        (change for name in names for change in changes.get(name, ()) if change.at > now - HISTORY),
        key=lambda change: change.at,
        reverse=True,
    )
    return {
        "every": EVERY_S,
        "rows": [site_row(health[name], probes, reports) for name in names],
        "strip": strip(health, changes, now) if names else None,
        "latencies": latencies(firsts),
        "changes": recent[:SHOWN],
        "probed": [name for name in names if asked.site.settings.sites[name].probe],
    }


def site_row(
    health: SiteHealth, probes: Sequence[tuple[datetime, SiteObservation]], reports: Sequence[SiteObservation]
) -> SiteRow:
    """The figures of a site; `probes`: of the last hour, the newest first; `reports`: of the last day."""
    last: dict[str, SiteObservation] = {}
    for _, probe in probes:
        if probe.site == health.site:
            last.setdefault(probe.what, probe)
    counts: Counter[str] = Counter()
    readers: Counter[str] = Counter()
    for result in reports:
        if result.site == health.site and result.source is EvidenceSource.TRANSFER:
            counts.update({"good": result.good, "failed": result.failed})
        elif result.site == health.site:
            for name in ("good", "failed", "bytes", "seconds", "requests", "retries"):
                readers[name] += getattr(result, name)
    shown = HELD if health.held_by is not None else health.state.value
    return SiteRow(health, shown, list(last.values())[::-1], (counts["good"], counts["failed"]), readers)


def strip(
    health: Mapping[str, SiteHealth], changes: Mapping[str, Sequence[SiteChange]], now: datetime
) -> dict[str, Any]:
    """A row for each site, coloured by its state over time."""
    parts: dict[str, list[DrawnSpan]] = {state: [] for state in _LOOKS}
    names = sorted(health)
    for number, name in enumerate(names):
        for state, begin, end in periods(changes.get(name, ()), now):
            parts[state].append(DrawnSpan(number, begin, end, f"{name}: {state} from {begin:%Y-%m-%d %H:%M:%S}"))
    traces = [
        spans(state, drawn, _LOOKS[state][0], pattern=_LOOKS[state][1]) for state, drawn in parts.items() if drawn
    ]
    return timeline(names, traces, now - HISTORY, now)


def periods(changes: Iterable[SiteChange], now: datetime) -> list[tuple[str, datetime, datetime]]:
    """The states of a site within the history, each with its begin and end; `changes`: some may be older."""
    result: list[tuple[str, datetime, datetime]] = []
    state, held, begin = SiteState.OK.value, False, now - HISTORY
    for change in sorted(changes, key=lambda change: change.at):
        if change.at > begin:
            result.append((HELD if held else state, begin, change.at))
            begin = change.at
        if change.change in (HELD, RELEASED):
            held = change.change == HELD
        else:
            state = change.change
    return [*result, (HELD if held else state, begin, now)]


def latencies(firsts: Sequence[tuple[datetime, SiteObservation]]) -> dict[str, Any] | None:
    """Seconds until the first byte of each site over time; `firsts`: the newest first."""
    points: dict[str, list[tuple[datetime, float]]] = {}
    for at, probe in reversed(firsts):
        if probe.good:
            points.setdefault(probe.site, []).append((at, probe.seconds))
    traces = [
        line(name, [at for at, _ in some], [seconds for _, seconds in some]) for name, some in sorted(points.items())
    ]
    return figure("Seconds until the first byte", traces, unit="s") if traces else None
