"""*Publications*: their history, and figures of the newest: rates, time of each phase, leases, failures by class."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from include.nightlies.rules.states import State
from include.nightlies.steps.sources import absolute
from include.pages.addresses import night, provenance, run_of, task_of
from include.pages.asked import Asked
from include.pages.publications import rows, view
from include.settings.urls import browser_url

EVERY_S, OLD_S = 15, 0
"""How often the page asks for news where it shows the newest, and elsewhere: never."""


def read(asked: Asked) -> dict[str, Any]:
    """The newest publications; of one `repository`, `state`, or `code` of an error; `below` a row of the history."""
    known, states = asked.site.settings.repositories, {state.value: state for state in State}
    fqrn, state = asked.choice("repository", known), asked.choice("state", states)
    code = asked.text("code", longest=128)
    chosen = rows.Chosen(fqrn, states[state] if state else None, code)
    below = asked.whole("below")
    ledger = asked.site.ledger
    found = rows.newest(ledger, chosen, known=sorted(known), below=below, limit=rows.PAGE + 1)
    shown = found[: rows.PAGE]
    values = {
        "repositories": sorted(known),
        "states": list(states),
        "repository": fqrn,
        "state": state,
        "failed": State.FAILED,
        "code": code,
        "rows": [_row(asked, row) for row in shown],
        "older": _address(chosen, shown[-1].id) if len(found) > rows.PAGE else None,
        "newest": _address(chosen),
        "begun": below is not None,
        "every": EVERY_S if below is None else OLD_S,
    }
    return values | {"figures": _figures(asked, fqrn) if below is None else None}


def _address(chosen: rows.Chosen, below: int | None = None) -> str:
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
    }


def _figures(asked: Asked, fqrn: str | None) -> dict[str, Any] | None:
    read = rows.newest_figures(asked.site.ledger, fqrn)
    if not read:
        return None
    days = view.days_of(read, whole=len(read) < rows.NEWEST)
    phases = view.phases_of(days)
    return {
        "count": len(read),
        "days": list(reversed(days)),
        "phases": phases,
        "state_figure": view.state_figure(days),
        "phase_figure": view.phase_figure(days, phases) if phases else None,
        "lease_figure": view.lease_figure(days) if any(figures.held for _, figures in days) else None,
        "failures": [
            (failure, _address(rows.Chosen(fqrn, State.FAILED, failure.code)) if failure.code != view.UNKNOWN else None)
            for failure in view.failures_of(read)
        ],
    }
