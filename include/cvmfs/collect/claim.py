"""The collector's hold on the collection generation: taken, renewed, and lost to one that took over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from include.cvmfs.coordination.generation import (
    TAKEOVER,
    CollectionPhase,
    CollectionStep,
    Generation,
    Look,
    look,
    write,
)
from include.cvmfs.errors import CollectionBusy
from include.storage.errors import Conflict
from include.storage.store import Store, Version

STALE = TAKEOVER / 2
"""A claim that was not renewed for so long is renewed before anything is deleted: another may have taken over."""
RENEW_EVERY = TAKEOVER / 6
OVERTAKEN = "another collection took over, while this one made no progress"


class Claim:
    """The document as this collector wrote it last. Moves may come from two threads."""

    def __init__(self, store: Store, fqrn: str, now: Callable[[], datetime]) -> None:
        self._store = store
        self._fqrn = fqrn
        self._now = now
        self._lock = threading.Lock()
        self._version: Version | None = None
        self._written: datetime | None = None
        self.document = Generation(0, CollectionPhase.IDLE, now())

    @property
    def held(self) -> bool:
        """Whether this collector has written the document."""
        return self._written is not None

    def take(self) -> Look:
        """Begin a collection, or take up one that died: its sweep is then to be finished.

        Raises CollectionBusy while another is at work, StoreError.
        """
        seen = look(self._store)
        self.document, self._version = seen.generation or self.document, seen.version
        document, now = self.document, self._now()
        dies = document.since + TAKEOVER
        if document.phase is not CollectionPhase.IDLE and now < dies:
            what = f"collection {document.number} is {document.phase.value}; it counts as dead at {dies:%H:%M} UTC"
            raise CollectionBusy(self._fqrn, f"{what} if it makes no progress; run it again then", dies)
        match document.phase:
            case CollectionPhase.IDLE:
                self.move(CollectionStep.BEGIN)
            case CollectionPhase.SWEEPING:
                self.move(CollectionStep.RENEW)
            case _:
                self.move(CollectionStep.BEGIN_ANEW)
        return seen

    def move(self, step: CollectionStep, *, condemned: str | None = None, swept: int | None = None) -> None:
        """Write the document after a step. Raises CollectionBusy if another collector has written it, StoreError."""
        with self._lock:
            now = self._now()
            document = self.document.after(step, now, condemned=condemned, swept=swept)
            try:
                self._version = write(self._store, document, expected=self._version)
            except Conflict:
                raise CollectionBusy(self._fqrn, OVERTAKEN, now + TAKEOVER) from None
            self.document, self._written = document, now

    @property
    def age(self) -> timedelta:
        """Since when it was not written. Before the first time: zero."""
        return timedelta() if self._written is None else self._now() - self._written

    @property
    def fresh(self) -> bool:
        """Whether no other collector can have taken over."""
        return self.held and timedelta() <= self.age < STALE

    def keep(self) -> None:
        """Renew it from time to time, in work that takes long."""
        if self.held and not timedelta() <= self.age < RENEW_EVERY:
            self.move(CollectionStep.RENEW)
