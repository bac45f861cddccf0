"""Read a build's index and the ledger: what is new to a night, and what it waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from include.ledger.engine import Bind
from include.nightlies.errors import BadIndex, BadIndexKey, BuildMissing, BuildMoved
from include.nightlies.records import builds, publications as records
from include.nightlies.rules.build import BuildRecord
from include.nightlies.rules.dependencies import is_taken
from include.nightlies.rules.index import BuildIndex
from include.nightlies.rules.passes import Pass, PassDecision, SeenBuild, dates, decide
from include.nightlies.rules.selection import Arrivals, arrivals, compared, older, without_wrong_time
from include.nightlies.steps.sources import index_version, read_index
from include.nightlies.steps.values import Night
from include.settings.model import Slot
from include.site.site import Site
from include.storage.errors import Forbidden, Unavailable

LASTING = (BuildMissing, BadIndex, BadIndexKey, BuildMoved, Unavailable, Forbidden)
"""Errors that may be gone at the next look: the night goes on, and reports them."""
SHOWN = 3
"""Notes on an index in the reason why a night waits."""


def fresh_artifacts(
    ledger: Bind, slot: Slot, night: Night, index: BuildIndex, build: BuildRecord | None, now: datetime
) -> Arrivals:
    """Return what of an index this pass of the night is to take."""
    taken = [artifact for artifact in index.artifacts if is_taken(slot, artifact.project, artifact.platform)]
    known = () if build is None else records.publications_of_build(ledger, build.id)
    # a partial build lists what changed: what else it depends on is in its parent build
    awaited = () if index.complete or index.base is not None else {*slot.projects, *slot.required.projects}

    def expected(project: str, platform: str) -> bool:
        return project in awaited and is_taken(slot, project, platform)

    return arrivals(taken, known, run=night.run, earlier=night.earlier, now=now, expected=expected)


@dataclass(slots=True)
class Watch:
    """Looks of a process at an index; an index that did not change is not read again.

    Attributes:
        connect: Gives the site as it is configured at that moment.
    """

    connect: Callable[[], Site]
    night: Night
    turn: Pass
    _version: object = None
    _index: BuildIndex | None = None
    _fresh_since: datetime | None = None
    _notes: list[str] = field(default_factory=list)

    def look(self, now: datetime) -> PassDecision:
        """Return what the night does next. Raises SettingsError once the slot is not configured any more."""
        site = self.connect()
        slot = site.settings.slot(self.night.slot)
        try:
            seen = self._seen(site, slot, now)
        except LASTING as error:
            seen = SeenBuild(problem=str(error))
        if not seen.fresh:
            self._fresh_since = None
        elif self._fresh_since is None:
            self._fresh_since = now
        # a run of some artifacts, or a dry run, is no part of a night that goes on
        whole = not (self.night.projects or self.night.platforms or self.night.dry_run)
        gather = timedelta(seconds=slot.gather_s) if whole else None
        return decide(seen, now=now, until=self.turn.until, fresh_since=self._fresh_since, gather=gather)

    def _seen(self, site: Site, slot: Slot, now: datetime) -> SeenBuild:
        before = self._index
        # the version first: what is written between the two is seen by the next look
        version = index_version(site, slot, self.night.date)
        if self._index is None or version is None or version != self._version:
            read, _ = read_index(site, slot, self.night.date)
            index, wrong = without_wrong_time(read, now)
            self._notes = [wrong] if wrong else []
            if before is not None and index.build_id == before.build_id and older(index, before.serial, before.created):
                self._notes.append("an older index than the last one was read, and is left aside")
                index = before
            self._index, self._version = index, version
        recorded = builds.build(site.ledger, slot.name, self._index.build_id)
        found = compared(self._index, recorded)
        sorted_out = fresh_artifacts(site.ledger, slot, self.night, found.index, recorded, now)
        settled, failed, elsewhere = map(len, (sorted_out.settled, sorted_out.failed, sorted_out.elsewhere))
        fresh, held = len(sorted_out.fresh), len(sorted_out.held)
        notes = (*self._notes, *found.notes[:SHOWN], *list(sorted_out.held.values())[:SHOWN])
        listed = settled + failed + elsewhere + fresh + held
        return SeenBuild(found.index.complete, listed, settled, failed, elsewhere, fresh, held, notes=notes)


log = logging.getLogger(__name__)


@dataclass(slots=True)
class FirstArtifacts:
    """Looks of a process at the indices of a slot's dates.

    Attributes:
        connect: Gives the site as it is configured at that moment.
    """

    connect: Callable[[], Site]
    slot: str
    _seen: dict[date, object] = field(default_factory=dict)
    _told: set[date] = field(default_factory=set)

    def look(self, now: datetime) -> list[date]:
        """The dates whose index lists an artifact now, and did not at any look before.

        An index that did not change is not read again, one that cannot be read is read again once it did. Raises
        SettingsError once the slot is not configured any more, StoreError.
        """
        site = self.connect()
        slot = site.settings.slot(self.slot)
        wanted, found = dates(slot, now), list[date]()
        self._told &= {*wanted}
        for day in wanted:
            version = None if day in self._told else index_version(site, slot, day)
            if version is None or self._seen.get(day) == version:
                continue
            self._seen[day] = version
            try:
                index, url = read_index(site, slot, day)
            except LASTING as error:
                log.warning("slot %s, %s: %s", slot.name, day, error)
                continue
            if index.artifacts:
                log.info("slot %s: the first artifact of %s is in %s", slot.name, day, url)
                self._told.add(day)
                found.append(day)
        return found
