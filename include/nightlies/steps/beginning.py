"""See the first artifact of a build date, which begins a night where the slot says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime

from include.nightlies.begin import dates
from include.nightlies.steps.reading import index_version, read_index
from include.nightlies.steps.watching import LASTING
from include.publishers.connect import Connections

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FirstArtifacts:
    """What one process saw of the indices of a slot's dates, look by look.

    :param connect: gives the site as it is configured at that moment.
    """

    connect: Callable[[], Connections]
    slot: str
    _seen: dict[date, object] = field(default_factory=dict)
    _told: set[date] = field(default_factory=set)

    def look(self, now: datetime) -> list[date]:
        """The dates whose index lists an artifact now, and did not at any look before.

        An index that did not change is not read again, one that cannot be read is looked at again once it did. Raises
        SettingsError once the slot is not configured any more, StoreError.
        """
        connections = self.connect()
        slot = connections.site.slot(self.slot)
        wanted, found = dates(slot, now), list[date]()
        self._told &= {*wanted}
        for day in wanted:
            version = None if day in self._told else index_version(connections, slot, day)
            if version is None or self._seen.get(day) == version:
                continue
            self._seen[day] = version
            try:
                index, url = read_index(connections, slot, day)
            except LASTING as error:
                log.warning("slot %s, %s: %s", slot.name, day, error)
                continue
            if index.artifacts:
                log.info("slot %s: the first artifact of %s is in %s", slot.name, day, url)
                self._told.add(day)
                found.append(day)
        return found
