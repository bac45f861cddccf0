"""The archivist: ended transfers leave the tables of work, and are counted in the daily sums and analytics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial

from include.stageout.archive import archive_transfers, forget_blocks, forget_jobs, forget_requests, forget_workflows
from include.stageout.blocks import BlockState
from include.stageout.opening import Stageout
from include.stageout.requests import AT_ONCE
from include.stageout.states import JOB_ENDED, TRANSFER_ENDED, TransferState
from include.stageout.sums import TransferSums, read_sums

OTHER_LINKS = ("other", "other")
_COMPLETE = frozenset({TransferState.CLEANED.value, TransferState.KEPT.value})


@dataclass(frozen=True, slots=True)
class DaySummary:
    """The sums of a day.

    `day`: its beginning, in UTC. `complete`: the sums of complete transfers. `failed`: files that failed, by the class
    of the last failure; as far as they are archived. `links`: the sums of complete transfers by source and destination,
    those with the most files first.
    """

    day: datetime
    complete: TransferSums = field(default_factory=TransferSums)
    failed: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[tuple[str, str], TransferSums] = field(default_factory=dict)


def summarise(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> DaySummary:
    """The summary of the last day whose complete transfers are all archived.

    `limit`: how many links at most; the rest is one entry, `OTHER_LINKS`.
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


KEYS_KEPT = timedelta(days=7)
"""For how long after the last resubmission an idempotency key is still known."""


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """Rows that one pass archived or deleted; of jobs: checked. Nothing was due if all are 0."""

    transfers: int = 0
    jobs: int = 0
    blocks: int = 0
    requests: int = 0
    workflows: int = 0


def archive(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> ArchiveReport:
    """Return one bounded pass: archive transfers that have ended, then delete jobs, blocks and requests without
    transfers.

    Complete and retracted transfers are archived after `archive_hours`; failed and killed ones after `resubmit_days`,
    until which they can be resubmitted.

    `limit`: how many rows of each kind at most.
    """
    ledger, time = stageout.ledger, now()
    complete = time - timedelta(hours=stageout.settings.archive_hours)
    final = time - timedelta(days=stageout.settings.resubmit_days)
    old = min(complete, final) - KEYS_KEPT
    late = (TransferState.FAILED, TransferState.KILLED)
    whole = sorted(TRANSFER_ENDED.difference(late), key=lambda state: state.value)
    transfers = _each(partial(archive_transfers, ledger), whole, complete, limit)
    transfers += _each(partial(archive_transfers, ledger), late, final, limit - transfers)
    ended = (BlockState.REGISTERED, BlockState.REFUSED)
    return ArchiveReport(
        transfers,
        _each(partial(forget_jobs, ledger), JOB_ENDED, complete, limit),
        _each(partial(forget_blocks, ledger), ended, complete, limit),
        _pieces(partial(forget_requests, ledger, before=old), limit),
        _pieces(partial(forget_workflows, ledger, before=old), limit),
    )


def _each(step: Callable[..., int], states: Iterable[Enum], before: datetime, limit: int) -> int:
    """Do the step for each state, until all have `limit` rows together."""
    done = 0
    for state in states:
        done += _pieces(partial(step, state, before=before), limit - done)
    return done


def _pieces(step: Callable[..., int], limit: int) -> int:
    """Do the step in transactions of bounded size, until there is no more or there are `limit` rows."""
    done = 0
    while done < limit:
        wanted = min(AT_ONCE, limit - done)
        found = step(limit=wanted)
        done += found
        if found < wanted:
            break
    return done
