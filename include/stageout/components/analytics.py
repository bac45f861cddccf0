"""Analytics: what the daily sums say of a day, by link and by class of failure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from include.stageout.components.tools import Stageout
from include.stageout.states import TransferState
from include.stageout.sums import TransferSums, read_sums

OTHER_LINKS = ("other", "other")
_COMPLETE = frozenset({TransferState.CLEANED.value, TransferState.KEPT.value})


@dataclass(frozen=True, slots=True)
class DaySummary:
    """What ended on a day.

    Attributes:
        day: Its beginning, in UTC.
        complete: The sums of complete transfers.
        failed: Files that failed, by the class of the last failure; as far as they are archived.
        links: The sums of complete transfers by source and destination, those with the most files first.
    """

    day: datetime
    complete: TransferSums = field(default_factory=TransferSums)
    failed: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[tuple[str, str], TransferSums] = field(default_factory=dict)


def summarise(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> DaySummary:
    """The summary of the last day whose complete transfers are all archived.

    Args:
        stageout: What the component works with.
        now: The clock.
        limit: How many links at most; the rest is one entry, `OTHER_LINKS`.
    """
    until = now().astimezone(UTC) - timedelta(hours=stageout.settings.archive_hours)
    until = until.replace(hour=0, minute=0, second=0, microsecond=0)
    day = until - timedelta(days=1)
    complete = TransferSums()
    failed: defaultdict[str, int] = defaultdict(int)
    links: defaultdict[tuple[str, str], TransferSums] = defaultdict(TransferSums)
    for key, sums in read_sums(stageout.ledger, since=day, until=until):
        if key.state in _COMPLETE:
            complete += sums
            links[key.source, key.destination] += sums
        elif key.state == TransferState.FAILED.value:
            failed[key.failure or "unknown"] += sums.files
    ordered = sorted(links.items(), key=lambda item: (-item[1].files, item[0]))
    rest = sum((sums for _, sums in ordered[limit:]), TransferSums())
    shown = dict(ordered[:limit]) | ({OTHER_LINKS: rest} if rest.files else {})
    return DaySummary(day, complete, dict(sorted(failed.items())), shown)
