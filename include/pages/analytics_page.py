"""*Analytics*: ended transfers of a period by day, link, user and class of failure, and their times to registration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from include.pages.asked import NOT_YET, Asked, BadPageQuery
from include.pages.charts import bars, figure, line
from include.pages.registry import PREFIX, STAGEOUT_API
from include.pages.transfers_view import help_of
from include.stageout.states import TransferState
from include.stageout.sums import COMPLETE, SumFilter, TransferSums, group_sums, group_times, percentile_s

EVERY_S, SOON_S = 300, 2
"""Seconds between two updates, and as long as the sums are not there yet."""
KEPT_S = 60.0
USUAL, LONGEST = timedelta(days=30), timedelta(days=366)
_STATES = {state.value: state for state in (TransferState.FAILED, TransferState.NEEDS_CREDENTIAL)}
DRAWN, SHOWN = 7, 50
"""Destinations with a colour of their own, and rows of a table."""
HALF, MOST = 0.5, 0.95
API = STAGEOUT_API.removeprefix(f"{PREFIX}/")


@dataclass(frozen=True, slots=True)
class SumRow:
    """Ended transfers of a link or user. `half_s`, `most_s`: within which half and 95 % of the complete ones came."""

    name: str
    complete: TransferSums
    failed: int
    half_s: float | None
    most_s: float | None


def read(asked: Asked) -> dict[str, Any]:
    """The days from `since` to `until`, of all users that the one who asks may see."""
    since, until = _period(asked)
    owner = asked.text("user", longest=128)
    if not asked.user.operator:
        if owner not in (None, asked.user.name):
            raise BadPageQuery("user", "only operators see transfers of other users")
        owner = asked.user.name
    site = asked.choice("site", asked.site.settings.sites)
    chosen = SumFilter(_beginning(since), _beginning(until + timedelta(days=1)), owner, site)
    # beside the request: the sums of a year by very many workflows take seconds
    answer = asked.counts.ask(("analytics", chosen), lambda: _read(asked, chosen), fresh_s=KEPT_S)
    values = answer.value or {"total": None}
    query = {"since": since.isoformat(), "until": (until + timedelta(days=1)).isoformat()}
    sheet = urlencode({**query, "user": owner} if owner else query)
    return {
        **values, "every": SOON_S if answer is NOT_YET else EVERY_S, "fault": answer.fault, "since": since,
        "until": until, "user": owner, "site": site, "shown": SHOWN, "sites": sorted(asked.site.settings.sites),
        "operator": asked.user.operator, "csv": f"{API}/analytics.csv?{sheet}",
    }  # fmt: skip


def _period(asked: Asked) -> tuple[date, date]:
    until = asked.day("until") or asked.now.astimezone(UTC).date()
    since = asked.day("since") or until - USUAL
    if not timedelta() <= until - since < LONGEST:
        raise BadPageQuery("since", f"the period is not one of 1 to {LONGEST.days} days")
    return since, until


def _beginning(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _read(asked: Asked, chosen: SumFilter) -> dict[str, Any]:
    def rows(*names: str) -> list[SumRow]:
        ledger = asked.site.ledger
        return _rows(group_sums(ledger, [*names, "state"], chosen), group_times(ledger, names, chosen))

    days = group_sums(asked.site.ledger, ["day", "state", "failure"], chosen)
    places = group_sums(asked.site.ledger, ["day", "destination", "state"], chosen)
    times = group_times(asked.site.ledger, ["day"], chosen)
    total: defaultdict[tuple[Any, ...], TransferSums] = defaultdict(TransferSums)
    failed: defaultdict[tuple[Any, ...], TransferSums] = defaultdict(TransferSums)
    for (_, state, failure), figures in days.items():
        total[(state,)] += figures
        if state not in COMPLETE:
            failed[state, failure] += figures
    buckets: Counter[int] = Counter()
    for counts in times.values():
        buckets.update(counts)
    all_rows = _rows(total, {(): buckets})
    return {
        "total": all_rows,
        "files_figure": files_figure(days) if days else None,
        "bytes_figure": bytes_figure(places) if places else None,
        "times_figure": times_figure(times) if times else None,
        "links": rows("source", "destination"),
        "users": [replace(row, name=chosen.owner) for row in all_rows] if chosen.owner else rows("owner"),
        "failures": sorted(
            (
                (failure or state, row, help_of(_STATES[state], failure) if state in _STATES else "")
                for (state, failure), row in failed.items()
            ),
            key=lambda row: -row[1].files,
        ),
    }


def _rows(
    sums: Mapping[tuple[Any, ...], TransferSums], times: Mapping[tuple[Any, ...], Mapping[int, int]]
) -> list[SumRow]:
    """Rows by what is before the state in the keys, those with most files first."""
    complete: dict[tuple[Any, ...], TransferSums] = {}
    failed: dict[tuple[Any, ...], int] = {}
    for (*names, state), figures in sums.items():
        key = tuple(names)
        complete.setdefault(key, TransferSums())
        failed.setdefault(key, 0)
        if state in COMPLETE:
            complete[key] += figures
        else:
            failed[key] += figures.files
    rows = [
        SumRow(
            " to ".join(key), figures, failed[key],
            percentile_s(times.get(key, {}), HALF), percentile_s(times.get(key, {}), MOST),
        )
        for key, figures in complete.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row.complete.files - row.failed, row.name))


def files_figure(days: Mapping[tuple[Any, ...], TransferSums]) -> dict[str, Any]:
    """Files by day: complete ones, and those that ended otherwise by the class of their failure."""
    names = {key: "complete" if key[1] in COMPLETE else str(key[2] or key[1]) for key in days}
    return figure("Files", _stacked({key: row.files for key, row in days.items()}, names, first="complete"), whole=True)


def bytes_figure(places: Mapping[tuple[Any, ...], TransferSums]) -> dict[str, Any]:
    """Bytes of complete files by day and destination; the smaller ones together."""
    sizes = {key: row.bytes for key, row in places.items() if key[2] in COMPLETE}
    totals: dict[str, int] = {}
    for (_, place, _), size in sizes.items():
        totals[place] = totals.get(place, 0) + size
    large = set(sorted(totals, key=lambda place: -totals[place])[:DRAWN])
    return figure("Bytes", _stacked(sizes, {key: key[1] if key[1] in large else "others" for key in sizes}), unit="B")


def times_figure(times: Mapping[tuple[Any, ...], Mapping[int, int]]) -> dict[str, Any]:
    """The time from request to registration within which half and 95 % of the complete files of each day came."""
    days = sorted(times)
    traces = [
        line(name, [day.date() for (day,) in days], [_minutes(percentile_s(times[day], share)) for day in days])
        for name, share in (("half", HALF), ("95 %", MOST))
    ]
    return figure("Minutes from request to registration", traces, whole=True)


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 60, 1)


def _stacked(
    values: Mapping[tuple[Any, ...], int], names: Mapping[tuple[Any, ...], str], *, first: str = ""
) -> list[dict[str, Any]]:
    """A bar a day of each name; the days are the first part of the keys."""
    days = sorted({key[0] for key in values})
    sums: dict[str, dict[datetime, int]] = {}
    for key, value in values.items():
        row = sums.setdefault(names[key], {})
        row[key[0]] = row.get(key[0], 0) + value
    order: Sequence[str] = sorted(sums, key=lambda name: (name != first, -sum(sums[name].values())))
    return [bars(name, [day.date() for day in days], [sums[name].get(day, 0) for day in days]) for name in order]
