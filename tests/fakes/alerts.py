"""Alerts that the ledger has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select

from include.ledger.engine import Bind, reading
from include.notify import SEEN, Alert, alerts


def alerts_since(bind: Bind, since: datetime) -> Sequence[Alert]:
    """The causes that were seen since then, the newest first."""
    query = select(alerts).where(alerts.c.last_seen_at >= since, alerts.c.event != SEEN)
    query = query.order_by(alerts.c.last_seen_at.desc(), alerts.c.cause)
    with reading(bind) as connection:
        return [Alert.from_row(row) for row in connection.execute(query).mappings()]
