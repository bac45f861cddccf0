"""Watches a repository and its gateway until a place is free or reserved. It only watches, and holds no lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triggers.objects import StoreTrigger

if TYPE_CHECKING:
    from include.publishers.connect import Connections
    from include.settings.model import Site

POLL_S = 5.0


class PlaceTrigger(StoreTrigger):
    """Fires when `path` is as `wanted` (`free` or `reserved`), or can never be, or at the deadline with the reason."""

    def __init__(
        self,
        repository: str,
        path: str,
        wanted: str,
        replaces: bool = False,
        deadline: str | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        super().__init__(deadline, poll_s)
        self.repository = repository
        self.path = path
        self.wanted = wanted
        self.replaces = replaces
        self._why = "not looked at yet"

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "repository": self.repository,
            "path": self.path,
            "wanted": self.wanted,
            "replaces": self.replaces,
            "deadline": self.deadline,
            "poll_s": self.poll_s,
        }
        return ("triggers.place.PlaceTrigger", arguments)

    def _store_name(self, site: Site) -> str:
        return site.repository(self.repository).store

    def _connection_ids(self, site: Site) -> list[str | None]:
        return [*super()._connection_ids(site), site.repository(self.repository).gateway]

    def _look(self, connections: Connections) -> str | None:
        from include.publishers.path_state import WantedPlace, look_at

        seen = look_at(connections, self.repository, self.path, WantedPlace(self.wanted), replaces=self.replaces)
        self._why = seen.reason
        return seen.reason if seen.ready else None

    def _missing(self) -> str:
        return self._why
