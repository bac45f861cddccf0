"""What a census finds: rows that do not move, copies that are not there, files that no transfer names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from include.ledger.engine import Bind, reading, writing
from include.settings.stageout import StageoutSettings
from include.stageout.requests import pieces
from include.stageout.retry import MAX_REASON_CHARACTERS
from include.stageout.states import TransferJobState, TransferState
from include.stageout.tables import stageout_findings


class FindingKind(Enum):
    """What is wrong."""

    OLD_STATE = "old-state"
    """A transfer or an FTS job is in its state for longer than it should be."""
    HELD = "held"
    """A transfer waits for the end of a ban, or for a right."""
    CLAIM_OVER = "claim-over"
    """A claim ended long ago: its process died, and no other one has taken the row since."""
    JOB_OVER = "job-over"
    """A transfer waits for an FTS job that has ended in the ledger."""
    JOB_UNKNOWN = "job-unknown"
    """FTS and its archive do not know a job that runs in the ledger."""
    JOB_ENDED = "job-ended"
    """FTS has ended a job that runs in the ledger."""
    JOB_RUNS = "job-runs"
    """FTS runs a job that has ended in the ledger: it may still write."""
    SERVER_UNASKED = "server-unasked"
    COPY_MISSING = "copy-missing"
    """A copy that was verified does not exist any more, and its transfer is not complete yet."""
    COPY_DIFFERS = "copy-differs"
    UNKNOWN_FILE = "unknown-file"
    """An old file in a temporary area that no transfer names."""
    SITE_UNASKED = "site-unasked"


class FindingOutcome(Enum):
    """What the census did about it."""

    REPORTED = "reported"
    REPAIRED = "repaired"
    """The row is due again at once."""
    DELETABLE = "deletable"
    """It would have been deleted, if that had been asked for."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class CensusFinding:
    """One thing that is wrong, with the reason for people.

    Attributes:
        site: Where it is.
        transfer, job: The rows that it is about.
        name: The logical name of a file.
        bytes: Its size.
    """

    kind: FindingKind
    reason: str
    outcome: FindingOutcome = FindingOutcome.REPORTED
    site: str | None = None
    transfer: int | None = None
    job: int | None = None
    name: str | None = None
    bytes: int | None = None

    @classmethod
    def from_row(cls, row: Row[Any]) -> CensusFinding:
        """From a row of the table of findings."""
        kind, outcome = FindingKind(row.kind), FindingOutcome(row.outcome)
        return cls(kind, row.reason, outcome, row.site, row.transfer, row.job, row.name, row.bytes)

    def to_row(self, found_at: datetime) -> dict[str, Any]:
        """The reverse of `from_row`."""
        words = {"kind": self.kind.value, "outcome": self.outcome.value, "reason": self.reason[:MAX_REASON_CHARACTERS]}
        return {**asdict(self), **words, "found_at": found_at}


def record_findings(bind: Bind, findings: Sequence[CensusFinding], *, now: datetime) -> None:
    """Put the findings of a census in the place of those of the one before, in one transaction."""

    def work(connection: Connection) -> None:
        connection.execute(delete(stageout_findings))
        for piece in pieces(findings):
            connection.execute(insert(stageout_findings), [finding.to_row(now) for finding in piece])

    writing(bind, work)


def last_findings(bind: Bind) -> tuple[CensusFinding, ...]:
    """What the last census found."""
    with reading(bind) as connection:
        rows = connection.execute(select(stageout_findings).order_by(stageout_findings.c.id)).all()
    return tuple(map(CensusFinding.from_row, rows))


_T, _J = TransferState, TransferJobState


def longest_in_state(settings: StageoutSettings) -> Mapping[TransferState | TransferJobState, timedelta]:
    """For how long a row should be in a state at most. States without one last until a person does something."""
    hour, day = timedelta(hours=1), timedelta(days=1)
    copying = settings.queue_time + day
    return {
        # held back by the limits of its link
        _T.NEW: 2 * day,
        _T.CLAIMED: hour,
        _T.SUBMITTED: copying,
        _T.ACTIVE: day,
        _T.COPIED: 6 * hour,
        _T.DONE: timedelta(minutes=settings.block_minutes) + 6 * hour,
        _T.REGISTERED: 6 * hour,
        # removals are tried for three days
        _T.CLEANING: 4 * day,
        # the longest wait is six hours
        _T.RETRY_WAIT: 12 * hour,
        _T.NEEDS_CREDENTIAL: 3 * day,
        _T.KILLING: 6 * hour,
        _J.SUBMITTING: hour,
        _J.SUBMITTED: copying,
        _J.ACTIVE: copying,
    }
