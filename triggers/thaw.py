"""Watches a frozen repository until it is thawed. It only watches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from triggers.objects import StoreTrigger

if TYPE_CHECKING:
    from include.publishers.connect import Connections
    from include.settings.model import Site

POLL_S = 15.0


class ThawTrigger(StoreTrigger):
    """Fires when no freeze holds in `repository` any more, by a thaw or by its own end. There is no deadline."""

    def __init__(self, repository: str, poll_s: float = POLL_S) -> None:
        super().__init__(None, poll_s)
        self.repository = repository

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("triggers.thaw.ThawTrigger", {"repository": self.repository, "poll_s": self.poll_s})

    def _store_name(self, site: Site) -> str:
        return site.repository(self.repository).store

    def _look(self, connections: Connections) -> str | None:
        from include.cvmfs.coordination.freeze import look

        frozen = look(connections.repository_store(self.repository), datetime.now(UTC))
        return None if frozen else f"{self.repository} is frozen no more"
