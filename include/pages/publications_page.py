"""*Publications*: their history, and figures of the newest: rates, time of each phase, leases, failures by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, Row, Select, func, select

from include.ledger.engine import Bind, reading
from include.nightlies.records.tables import artifacts, builds, publications
from include.nightlies.rules.publication import State
from include.nightlies.steps.sources import absolute
from include.pages import publications_view as view
from include.pages.asked import Asked
from include.pages.registry import night, provenance, run_of, task_of
from include.settings.secrets import browser_url

PAGE = 50
"""Publications of one page of the history."""
NEWEST = 3000
"""So many of the newest publications are read for the figures."""
_SHOWN = (
    "id", "run_id", "repository", "destination", "state", "phase", "reason", "code", "holder", "try_number", "files",
    "bytes", "bytes_uploaded", "seconds", "lease_held_s", "revision_after", "updated_at",
)  # fmt: skip
_FIGURES = (
    "state", "code", "files", "bytes", "bytes_uploaded", "objects_new", "objects_reused", "seconds",
    "lease_held_s", "created_at", "updated_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice of publications; None: any. A `code` is that of an error, and so only failed ones have it."""

    repository: str | None = None
    state: State | None = None
    code: str | None = None

    def where(self, query: Select[Any], repository: str, state: State) -> Select[Any]:
        """The query, for one repository and state: each pair is one range of an index, in the order of rows."""
        query = query.where(publications.c.repository == repository, publications.c.state == state.value)
        return query if self.code is None else query.where(publications.c.code == self.code)


def newest(
    bind: Bind, chosen: Chosen, *, repositories: Sequence[str], below: int | None = None, limit: int = PAGE
) -> Sequence[Row[Any]]:
    """Publications with their artifacts and builds, the newest first.

    Args:
        bind: The ledger.
        chosen: Which.
        repositories: The configured ones, for a choice that names none.
        below: Only those before this row.
        limit: How many.
    """
    with reading(bind) as connection:
        ids = _ids(connection, chosen, repositories=repositories, below=below, limit=limit)
        query: Select[Any] = (
            select(
                *(publications.c[name] for name in _SHOWN),
                artifacts.c.project,
                artifacts.c.platform,
                artifacts.c.url,
                builds.c.slot,
                builds.c.build_id,
                builds.c.build_date,
            )
            .outerjoin(artifacts, publications.c.artifact == artifacts.c.id)
            .outerjoin(builds, artifacts.c.build == builds.c.id)
            .where(publications.c.id.in_(ids))
            .order_by(publications.c.id.desc())
        )
        return connection.execute(query).all()


def _ids(
    connection: Connection, chosen: Chosen, *, repositories: Sequence[str], below: int | None, limit: int
) -> Sequence[int]:
    query = select(publications.c.id).order_by(publications.c.id.desc()).limit(limit)
    if below is not None:
        query = query.where(publications.c.id < below)
    if chosen == Chosen():
        return connection.scalars(query).all()
    states = [State.FAILED] if chosen.code else [chosen.state] if chosen.state else list(State)
    numbers: list[int] = []
    for repository in [chosen.repository] if chosen.repository else repositories:
        for state in states:
            numbers += connection.scalars(chosen.where(query, repository, state)).all()
    return sorted(numbers, reverse=True)[:limit]


def newest_figures(bind: Bind, repository: str | None, *, limit: int = NEWEST) -> Sequence[Row[Any]]:
    """Figures of the newest publications of all repositories, or of those among them of one."""
    query = select(*(publications.c[name] for name in _FIGURES)).order_by(publications.c.id.desc())
    if repository is not None:
        query = query.where(publications.c.repository == repository)
    with reading(bind) as connection:
        last = connection.scalar(select(func.max(publications.c.id))) or 0
        return connection.execute(query.where(publications.c.id > last - limit)).all()


EVERY_S, OLD_S = 15, 0
"""Seconds between two updates where it shows the newest, and elsewhere: never."""


def read(asked: Asked) -> dict[str, Any]:
    """The newest publications; of one `repository`, `state`, or `code` of an error; `below` a row of the history."""
    repositories, states = asked.site.settings.repositories, {state.value: state for state in State}
    fqrn, state = asked.choice("repository", repositories), asked.choice("state", states)
    code = asked.text("code", longest=128)
    chosen = Chosen(fqrn, states[state] if state else None, code)
    below = asked.whole("below")
    ledger = asked.site.ledger
    listed = newest(ledger, chosen, repositories=sorted(repositories), below=below, limit=PAGE + 1)
    shown = listed[:PAGE]
    values = {
        "repositories": sorted(repositories),
        "states": list(states),
        "repository": fqrn,
        "state": state,
        "failed": State.FAILED,
        "code": code,
        "rows": [_row(asked, row) for row in shown],
        "older": _address(chosen, shown[-1].id) if len(listed) > PAGE else None,
        "newest": _address(chosen),
        "begun": below is not None,
        "every": EVERY_S if below is None else OLD_S,
    }
    return values | {"figures": _figures(asked, fqrn) if below is None else None}


def _address(chosen: Chosen, below: int | None = None) -> str:
    given = {
        "repository": chosen.repository,
        "state": chosen.state.value if chosen.state else None,
        "code": chosen.code,
        "below": below,
    }
    return f"publications?{urlencode({name: value for name, value in given.items() if value is not None})}"


def _row(asked: Asked, row: Any) -> dict[str, Any]:
    slot = asked.site.settings.slots.get(row.slot) if row.slot else None
    url = absolute(asked.site, slot.store, row.url) if slot is not None else row.url
    return {
        "row": row,
        "kind": view.kind_of(State(row.state)),
        "name": f"{row.project}/{row.platform}" if row.project else row.destination,
        "seconds": sum(row.seconds.values()) if row.seconds else None,
        "run": run_of(row.run_id),
        "task": task_of(row.holder, row.run_id),
        "artifact": browser_url(asked.site.settings, url) if url else None,
        "path": provenance(row.repository, row.destination),
        "night": night(row.slot, row.build_date) if row.slot else None,
        "cure": view.cure_of(row.code) if row.state == State.FAILED.value else None,
    }


def _figures(asked: Asked, fqrn: str | None) -> dict[str, Any] | None:
    read = newest_figures(asked.site.ledger, fqrn)
    if not read:
        return None
    days = view.days_of(read, whole=len(read) < NEWEST)
    phases = view.phases_of(days)
    return {
        "count": len(read),
        "days": list(reversed(days)),
        "phases": phases,
        "state_figure": view.state_figure(days),
        "phase_figure": view.phase_figure(days, phases) if phases else None,
        "lease_figure": view.lease_figure(days) if any(figures.held for _, figures in days) else None,
        "failures": [
            (failure, _address(Chosen(fqrn, State.FAILED, failure.code)) if failure.code != view.UNKNOWN else None)
            for failure in view.failures_of(read)
        ],
    }
