"""The lives of a transfer and of an FTS job, each as one table of moves; pure.

Every move has exactly one component that makes it. A move that is not in the table is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from include.stageout.errors import MOVE_REFUSED


class StageoutComponent(Enum):
    """The maker of a move."""

    SUBMITTER = "submitter"
    MONITOR = "monitor"
    REPORTER = "reporter"
    RETRY = "retry"
    REGISTER = "register"
    CLEANER = "cleaner"
    PERSON = "person"
    """A user or an operator, by REST API, page or command."""


class TransferState(Enum):
    """The state of a transfer."""

    NEW = "new"
    CLAIMED = "claimed"
    """A submitter has it; in a job from the moment that the job's request may be sent."""
    SUBMITTED = "submitted"
    ACTIVE = "active"
    COPIED = "copied"
    """FTS has finished it; its destination is not verified yet."""
    DONE = "done"
    """Its destination is verified; it waits for its registration."""
    REGISTERED = "registered"
    CLEANING = "cleaning"
    """Its source may be removed."""
    CLEANED = "cleaned"
    KEPT = "kept"
    """Complete; the source is not removed."""
    RETRY_WAIT = "retry-wait"
    NEEDS_CREDENTIAL = "needs-credential"
    FAILED = "failed"
    KILLING = "killing"
    """A kill was requested; nothing of it may write any more before it is killed. Jobs end with their files."""
    KILLED = "killed"
    RETRACTED = "retracted"
    """Taken out of the catalogue again by a person; its data set does not have it."""


class TransferJobState(Enum):
    """The state of an FTS job."""

    SUBMITTING = "submitting"
    """Recorded with its id before the request is sent: its outcome may be unknown."""
    SUBMITTED = "submitted"
    ACTIVE = "active"
    FINISHED = "finished"
    FINISHED_DIRTY = "finished-dirty"
    FAILED = "failed"
    CANCELED = "canceled"
    REFUSED = "refused"
    """FTS refused the request."""
    LOST = "lost"
    """FTS and its archive do not know it, and destinations were compared."""
    DEAD = "dead"
    """An operator declared that its FTS server does not run it any more."""


@dataclass(frozen=True, slots=True)
class MoveRule:
    """The maker of a move, and its transfers: of those with (True) or without (False) registration, None: of all."""

    component: StageoutComponent
    registration: bool | None = None


_C, _T, _J = StageoutComponent, TransferState, TransferJobState
_SUBMITTER, _MONITOR, _PERSON = MoveRule(_C.SUBMITTER), MoveRule(_C.MONITOR), MoveRule(_C.PERSON)
_REPORTER, _RETRY, _CLEANER = MoveRule(_C.REPORTER), MoveRule(_C.RETRY), MoveRule(_C.CLEANER)

TRANSFER_MOVES: Mapping[tuple[TransferState, TransferState], MoveRule] = {
    (_T.NEW, _T.CLAIMED): _SUBMITTER,
    (_T.NEW, _T.KILLED): _PERSON,
    # a copy of an earlier attempt may still write
    (_T.NEW, _T.KILLING): _PERSON,
    # the ledger was restored from a backup, and its copy exists
    (_T.NEW, _T.COPIED): _PERSON,
    (_T.RETRY_WAIT, _T.COPIED): _PERSON,
    # given back, or the submitter died before the job was recorded
    (_T.CLAIMED, _T.NEW): _SUBMITTER,
    (_T.CLAIMED, _T.SUBMITTED): _SUBMITTER,
    (_T.CLAIMED, _T.RETRY_WAIT): _SUBMITTER,
    (_T.CLAIMED, _T.NEEDS_CREDENTIAL): _SUBMITTER,
    (_T.CLAIMED, _T.FAILED): _SUBMITTER,
    (_T.CLAIMED, _T.KILLING): _PERSON,
    (_T.SUBMITTED, _T.ACTIVE): _MONITOR,
    (_T.SUBMITTED, _T.COPIED): _MONITOR,
    (_T.SUBMITTED, _T.RETRY_WAIT): _MONITOR,
    (_T.SUBMITTED, _T.NEEDS_CREDENTIAL): _MONITOR,
    (_T.SUBMITTED, _T.FAILED): _MONITOR,
    (_T.SUBMITTED, _T.KILLING): _PERSON,
    # a retry of FTS itself
    (_T.ACTIVE, _T.SUBMITTED): _MONITOR,
    (_T.ACTIVE, _T.COPIED): _MONITOR,
    (_T.ACTIVE, _T.RETRY_WAIT): _MONITOR,
    (_T.ACTIVE, _T.NEEDS_CREDENTIAL): _MONITOR,
    (_T.ACTIVE, _T.FAILED): _MONITOR,
    (_T.ACTIVE, _T.KILLING): _PERSON,
    (_T.KILLING, _T.KILLED): _MONITOR,
    # the copy was complete before the cancel
    (_T.KILLING, _T.COPIED): _MONITOR,
    (_T.COPIED, _T.DONE): _REPORTER,
    (_T.COPIED, _T.RETRY_WAIT): _REPORTER,
    (_T.COPIED, _T.FAILED): _REPORTER,
    (_T.RETRY_WAIT, _T.NEW): _RETRY,
    (_T.RETRY_WAIT, _T.KILLED): _PERSON,
    (_T.RETRY_WAIT, _T.KILLING): _PERSON,
    (_T.NEEDS_CREDENTIAL, _T.NEW): _RETRY,
    (_T.NEEDS_CREDENTIAL, _T.KILLED): _PERSON,
    (_T.NEEDS_CREDENTIAL, _T.KILLING): _PERSON,
    (_T.DONE, _T.REGISTERED): MoveRule(_C.REGISTER, registration=True),
    (_T.DONE, _T.FAILED): MoveRule(_C.REGISTER, registration=True),
    (_T.DONE, _T.CLEANING): MoveRule(_C.REGISTER, registration=False),
    (_T.REGISTERED, _T.CLEANING): _CLEANER,
    (_T.CLEANING, _T.CLEANED): _CLEANER,
    (_T.CLEANING, _T.KEPT): _CLEANER,
    # resubmitted
    (_T.FAILED, _T.NEW): _PERSON,
    (_T.KILLED, _T.NEW): _PERSON,
    (_T.REGISTERED, _T.RETRACTED): MoveRule(_C.PERSON, registration=True),
    (_T.CLEANED, _T.RETRACTED): MoveRule(_C.PERSON, registration=True),
    (_T.KEPT, _T.RETRACTED): MoveRule(_C.PERSON, registration=True),
}
TRANSFER_ENDED = frozenset({_T.CLEANED, _T.KEPT, _T.FAILED, _T.KILLED, _T.RETRACTED})
"""States in which nothing more happens without a person."""

_RESULTS = (_J.FINISHED, _J.FINISHED_DIRTY, _J.FAILED, _J.CANCELED, _J.LOST)
_OPEN = (_J.SUBMITTED, _J.ACTIVE)

JOB_MOVES: Mapping[tuple[TransferJobState, TransferJobState], MoveRule] = {
    (_J.SUBMITTING, _J.SUBMITTED): _SUBMITTER,
    (_J.SUBMITTING, _J.REFUSED): _SUBMITTER,
    (_J.SUBMITTING, _J.DEAD): _PERSON,
    (_J.SUBMITTED, _J.ACTIVE): _MONITOR,
    # every active file waits for a retry of FTS itself
    (_J.ACTIVE, _J.SUBMITTED): _MONITOR,
    **{(current, result): _MONITOR for current in _OPEN for result in _RESULTS},
    **{(current, _J.DEAD): _PERSON for current in _OPEN},
}
JOB_ENDED = frozenset({*_RESULTS, _J.REFUSED, _J.DEAD})


def require_transfer_move(current: TransferState, to: TransferState, by: StageoutComponent) -> MoveRule:
    """The rule of a move of transfers; whether each has a registration is the caller's to compare with it.

    Raises StageoutError: MOVE_REFUSED for a move that the table does not have, or has for another component.
    """
    return _require("transfer", TRANSFER_MOVES.get((current, to)), current, to, by)


def require_job_move(current: TransferJobState, to: TransferJobState, by: StageoutComponent) -> None:
    """Check a move of FTS jobs. Raises as `require_transfer_move`."""
    _require("FTS job", JOB_MOVES.get((current, to)), current, to, by)


def _require(what: str, rule: MoveRule | None, current: Enum, to: Enum, by: StageoutComponent) -> MoveRule:
    if rule is None:
        raise MOVE_REFUSED(what, f"no move leads from {current.value} to {to.value}")
    if rule.component is not by:
        made = rule.component.value
        raise MOVE_REFUSED(what, f"the {made} moves it from {current.value} to {to.value}, not the {by.value}")
    return rule
