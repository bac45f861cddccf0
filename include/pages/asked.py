"""A request for a page: the deployment as its settings are now, who asks, when, and the parameters of the URL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from include.dag_runs import DagState
from include.errors import NightshiftError
from include.pages.services import Services
from include.settings.load import settings_path
from include.site.site import Site
from include.stageout.rest.questions import StageoutUser
from include.stageout.rest.remembered import RememberedCounts


class BadPageQuery(NightshiftError):
    """A parameter of a page's URL has a value that it cannot have."""

    code = "page-query-invalid"
    hint = "Open the page from Airflow's navigation and choose there."

    def __init__(self, name: str, detail: str) -> None:
        self.name = name
        super().__init__(f"parameter {name}: {detail}. {self.hint}")


LONGEST = 1024
AskDag = Callable[[str], DagState]
"""Tells of a DAG by its id."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. Parameters come from people and from links: each is checked when it is read."""

    site: Site
    services: Services
    remembered: RememberedCounts
    user: StageoutUser
    now: datetime
    query: Mapping[str, str]
    dag: AskDag

    def text(self, name: str, *, longest: int = LONGEST) -> str | None:
        """A parameter; None if it is absent or empty. Raises BadPageQuery if it is too long."""
        value = self.query.get(name, "").strip()
        if len(value) > longest:
            raise BadPageQuery(name, f"longer than {longest} characters")
        return value or None

    def day(self, name: str) -> date | None:
        """A date as YYYY-MM-DD; None if it is absent. Raises BadPageQuery."""
        value = self.text(name)
        try:
            return None if value is None else date.fromisoformat(value)
        except ValueError:
            raise BadPageQuery(name, "not a date like 2026-11-23") from None

    def whole(self, name: str, default: int | None = None, *, least: int = 0, most: int = 2**62) -> int | None:
        """A whole number; the default if it is absent. Raises BadPageQuery."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and len(value) <= 19 and least <= int(value) <= most):
            raise BadPageQuery(name, f"not a whole number from {least} to {most}")
        return int(value)

    def choice(self, name: str, known: Mapping[str, object]) -> str | None:
        """Return the parameter as one of these names; None if it is absent. Raises BadPageQuery."""
        value = self.text(name)
        if value is not None and value not in known:
            raise BadPageQuery(name, f"{value!r} is not configured; known: {', '.join(sorted(known)) or 'none'}")
        return value


class OpenSite:
    """Gives the deployment: opened once, and again when the file of its settings changes.

    Raises what opening it raises; the next call tries again.
    """

    def __init__(self, open_site: Callable[[], Site], path: Callable[[], Path] = settings_path) -> None:
        self._open = open_site
        self._path = path
        self._lock = threading.Lock()
        self._site: Site | None = None
        self._mark: tuple[int, int] | None = None

    def __call__(self) -> Site:
        with self._lock:
            mark = self._changed()
            if self._site is None or mark != self._mark:
                self._site, self._mark = self._open(), mark
            return self._site

    def _changed(self) -> tuple[int, int] | None:
        try:
            found = self._path().stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
