"""Attempt: a try of a task of a run, as its steps are handed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from include.ledger.acts import Act, ActKind
from include.ledger.engine import Bind
from include.nightlies.records import publications as records
from include.nightlies.rules.passes import is_outage
from include.nightlies.rules.publication import Move, Publication, PublicationKey

Clock = Callable[[], datetime]
OnLease = Callable[[Callable[[], object]], None]


@dataclass(frozen=True, slots=True)
class Attempt:
    """Try of a task of a run, which records what it does to a publication.

    `holder`: what others see as the holder of its leases; `number`: which try it is; `last`: no try follows.
    `outlast`: the caller waits out an outage and calls again. `on_lease` gets what gives the current lease back.
    `by`: who started the run; "": no person.
    """

    run: str
    holder: str
    number: int
    clock: Clock
    last: bool = True
    outlast: bool = False
    on_lease: OnLease | None = None
    by: str = ""

    def act(self, kind: ActKind, what: str, why: str, *, dry_run: bool = False) -> Act:
        """Return the record of a destructive act of this try."""
        return Act(self.clock(), kind, what, self.by or self.holder, why, self.run, dry_run)

    def outlasts(self, error: Exception) -> bool:
        """Tell whether the caller waits this error out: a step raises it then, and records nothing of it."""
        return self.outlast and is_outage(error)

    def move(self, bind: Bind, key: PublicationKey, move: Move) -> Publication:
        """Record that this try moved the publication. Raises what `publications.move` raises."""
        return records.move(bind, key, move, try_number=self.number, now=self.clock(), holder=self.holder)
