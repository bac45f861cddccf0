"""The collector's hold on the collection generation: taken, renewed, and lost to one that took over."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

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
        self.took_over = False
        """Whether another collector began what is under way: its requests may still be carried out by the store."""

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
        if document.phase is not CollectionPhase.IDLE and now < dies and not is_dead(document.collector):
            what = f"collection {document.number} is {document.phase.value}; it counts as dead at {dies:%H:%M} UTC"
            raise CollectionBusy(self._fqrn, f"{what} if it makes no progress; run it again then", dies)
        match document.phase:
            case CollectionPhase.IDLE:
                self.move(CollectionStep.BEGIN)
            case CollectionPhase.SWEEPING:
                self.took_over = True
                self.move(CollectionStep.RENEW)
            case _:
                self.move(CollectionStep.BEGIN_ANEW)
        return seen

    def move(self, step: CollectionStep, *, condemned: str | None = None, swept: int | None = None) -> None:
        """Write the document after a step. Raises CollectionBusy if another collector has written it, StoreError."""
        with self._lock:
            now = self._now()
            document = self.document.after(step, now, condemned=condemned, swept=swept)
            at_work = document.phase is not CollectionPhase.IDLE
            document = replace(document, collector=process_name(os.getpid()) if at_work else None)
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


def process_name(process: int) -> str | None:
    """A name of a process of this machine that no other process has, before or after it; None if it is not found.

    Boot of the machine, name space of process numbers (of a container), number, and start in ticks since the boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").stat().st_ino
        return f"{boot}:{space}:{process}:{_state(process)[19]}"
    except OSError:
        return None


def is_dead(name: str | None) -> bool:
    """Whether it is proven that a process has ended: it was one of this machine and of this container."""
    mine = process_name(os.getpid())
    if name is None or mine is None:
        return False
    boot, space, _, _ = mine.split(":")
    if (match := re.fullmatch(rf"{boot}:{space}:([0-9]{{1,9}}):[0-9]+", name)) is None:
        return False
    process = int(match[1])
    try:
        os.kill(process, 0)
        return _state(process)[0] in _ENDED or process_name(process) != name
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it is another user's, and /proc may hide it


def _state(process: int) -> list[str]:
    """What /proc tells of a process after its name: state, parent, and so on. Raises OSError."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


_ENDED = frozenset("ZXx")
