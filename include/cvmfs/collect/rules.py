"""How a collection decides: grace, careful mode and brakes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

CAREFUL_COLLECTIONS = 14
TWICE = timedelta(hours=23)
"""Careful mode deletes what was condemned before, so long ago: a day, less what a nightly schedule drifts."""
LISTING_EVERY = timedelta(hours=20)
GRACE = timedelta(days=3)
SETTLE = timedelta(minutes=10)
"""A request without an answer may still be carried out by the store; so long after it, it is not."""


@dataclass(frozen=True, slots=True)
class CollectionRules:
    """``grace``: how long a revision stays after it was superseded. ``careful``: delete only what was condemned twice,
    a day apart; None: for the first 14 collections of the repository. ``largest_loss``: the share of preserved objects
    that may be missing since the last collection. ``accept``: the reason to go on in spite of these brakes.
    ``all_orphans``: look for orphans everywhere, not in a seventh of the names. ``pause`` is called before each group
    of deletions and may wait. ``wait`` waits so many seconds, for requests without an answer.
    """

    grace: timedelta = GRACE
    careful: bool | None = None
    largest_loss: float = 0.3
    accept: str = ""
    all_orphans: bool = False
    pause: Callable[[], None] = lambda: None
    wait: Callable[[float], None] = time.sleep

    def is_careful(self, total: int) -> bool:
        """Whether the next collection is; ``total``: how many there were."""
        return total < CAREFUL_COLLECTIONS if self.careful is None else self.careful


@dataclass(frozen=True, slots=True)
class NotDue:
    """Why nothing can be deleted now, and when something can at the earliest."""

    reason: str
    due: datetime
