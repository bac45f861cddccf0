"""What to do after each outcome of a call to a gateway, as one table; pure.

``retryable`` of an error says whether a publication may be tried again at all; this says how. Our own service keeps a
lease usable after a failed commit; a stock gateway does not, so the common way is to drop it and to take a new one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from include.gateway import errors
from include.gateway.errors import GatewayError, PathBusy

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class Action(Enum):
    """How to go on."""

    WAIT = "wait until the path is free, at most what is left of its holder's lease"
    REPEAT = "send the same call again after a pause"
    LOOK = "read the manifest, for the change may be published; if it is not, go on as for a new lease"
    NEW_LEASE = "drop the lease, take a new one, and derive the change again from the current revision"
    PAUSE = "wait for an administrator"
    STOP = "correct what the error names first"


TABLE: tuple[tuple[type[GatewayError], Action], ...] = (
    (errors.PathBusy, Action.WAIT),
    (errors.RepositoryDisabled, Action.PAUSE),
    (errors.CommitUnclear, Action.LOOK),
    (errors.ReplyLost, Action.REPEAT),
    (errors.GatewayUnreachable, Action.REPEAT),
    (errors.ServerTrouble, Action.REPEAT),
    (errors.LeaseLost, Action.NEW_LEASE),
    (errors.TagRefused, Action.STOP),
    (errors.ReflogMissing, Action.STOP),
    (errors.BaseMoved, Action.NEW_LEASE),
    (errors.ManifestMoved, Action.NEW_LEASE),
    (errors.CollectionMoved, Action.NEW_LEASE),
    (errors.RootMissing, Action.NEW_LEASE),
    (errors.StorageFailed, Action.NEW_LEASE),
    # merge_error, miscellaneous, crash texts: a stock receiver may have failed after it had published
    (errors.CommitFailed, Action.LOOK),
    (GatewayError, Action.STOP),
)
"""The first row that fits counts."""


@dataclass(frozen=True, slots=True)
class Advice:
    """How to go on, and after how many seconds."""

    action: Action
    pause_s: float


def advice(error: GatewayError, attempt: int, *, jitter: float = 1.0) -> Advice:
    """What to do after the ``attempt``-th failure, counted from 1; ``jitter``: 0 to 1, of the pause."""
    action = next(action for kind, action in TABLE if isinstance(error, kind))
    if action is Action.STOP:
        return Advice(action, 0.0)
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt - 1, 30))
    if isinstance(error, PathBusy) and error.time_remaining_s > 0:
        pause_s = min(pause_s, error.time_remaining_s)
    return Advice(action, pause_s * jitter)
