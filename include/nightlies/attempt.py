"""Attempt: a try of a task of a run, as its steps are handed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

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
    """

    run: str
    holder: str
    number: int
    clock: Clock
    last: bool = True
    outlast: bool = False
    on_lease: OnLease | None = None

    def outlasts(self, error: Exception) -> bool:
        """Tell whether the caller waits this error out: a step raises it then, and records nothing of it."""
        return self.outlast and is_outage(error)

    def move(self, bind: Bind, key: PublicationKey, move: Move) -> Publication:
        """Record that this try moved the publication. Raises what `publications.move` raises."""
        return records.move(bind, key, move, try_number=self.number, now=self.clock(), holder=self.holder)
