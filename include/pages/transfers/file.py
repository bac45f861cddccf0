"""*Transfer*: one file with its whole history, the reason of each move, and its job at FTS."""

from __future__ import annotations

from typing import Any

from include.fts.client.open import server_url
from include.pages.asked import Asked, BadPageQuery
from include.pages.transfers import rows, view
from include.pages.transfers.overview import CHANGES, address
from include.settings.errors import SettingsError
from include.stageout.archive import history
from include.stageout.status import transfer_status

EVERY_S = 10


def read(asked: Asked) -> dict[str, Any]:
    """The transfer `id`, if it is the user's own or an operator asks. Raises BadPageQuery."""
    number = asked.whole("id", least=1)
    found = None if number is None else transfer_status(asked.site.ledger, number)
    if found is None or not asked.user.may_see(found.owner):
        raise BadPageQuery("id", f"you have no transfer {number}")
    server = rows.server_of(asked.site.ledger, found.fts_id) if found.fts_id else None
    return {
        "row": found,
        "kind": view.kind_of(found.state),
        "moves": view.shown_moves(found.created_at, history(asked.site.ledger, found.id)),
        "changes": () if found.archived or not asked.user.may_change else CHANGES,
        "retries": view.retries_of(found.failure),
        "server": server,
        "job": _job_url(asked, server, found.fts_id) if server and found.fts_id else None,
        "user_url": address({"user": found.owner}),
        "workflow_url": address({"user": found.owner, "workflow": found.workflow}),
        "link_url": address({"source": found.source, "destination": found.destination}),
        "every": 0 if found.archived else EVERY_S,
    }


def _job_url(asked: Asked, server: str, fts_id: str) -> str | None:
    """The job in the REST interface of its FTS server; None: the connection is not known here."""
    try:
        return f"{server_url(asked.site.secrets.get(server))}/jobs/{fts_id}"
    except SettingsError:
        return None
