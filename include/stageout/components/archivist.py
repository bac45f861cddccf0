"""The archivist: what has ended leaves the tables of work, and is counted in the daily sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial

from include.stageout.archive import archive_transfers, forget_blocks, forget_jobs, forget_requests, forget_workflows
from include.stageout.components.tools import Stageout
from include.stageout.registration.blocks import BlockState
from include.stageout.requests import AT_ONCE
from include.stageout.states import JOB_ENDED, TransferState

KEYS_KEPT = timedelta(days=7)
"""For how long after the last resubmission an idempotency key is still known."""


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What one pass archived or deleted; of jobs: checked. Nothing was due if all are 0."""

    transfers: int = 0
    jobs: int = 0
    blocks: int = 0
    requests: int = 0
    workflows: int = 0


def archive(stageout: Stageout, *, now: Callable[[], datetime], limit: int) -> ArchiveReport:
    """One bounded pass: archive transfers that have ended, then delete jobs, blocks and requests without transfers.

    Complete transfers are archived after `archive_hours`; failed and killed ones after `resubmit_days`, until which
    they can be resubmitted.

    Args:
        stageout: What the component works with.
        now: The clock.
        limit: How many rows of each kind at most.
    """
    ledger, time = stageout.ledger, now()
    complete = time - timedelta(hours=stageout.settings.archive_hours)
    final = time - timedelta(days=stageout.settings.resubmit_days)
    old = min(complete, final) - KEYS_KEPT
    whole, late = (TransferState.CLEANED, TransferState.KEPT), (TransferState.FAILED, TransferState.KILLED)
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
