"""One line for everything that becomes of a lease, in a logger of its own: who held which path, for how long, and why.

The logger is ``nightshift.leases``. A line's event is its message; its fields are in the text and, for log files of one
JSON object a line, in ``fields``. The token is in neither (docs/formats.md, gateway).
"""

from __future__ import annotations

import logging
from enum import Enum

from include.gateway.client.values import Lease

LOGGER = "nightshift.leases"

log = logging.getLogger(LOGGER)


class LeaseEvent(Enum):
    """What became of a lease. All but the first two are an end: the last line of a lease is one of these."""

    ACQUIRED = "lease acquired"
    RENEWED = "lease renewed"
    COMMITTED = "lease committed"
    DROPPED = "lease dropped"
    EXPIRED = "lease expired"
    ABANDONED = "lease abandoned"
    """It could not be given back, and ends by expiry."""


def record(event: LeaseEvent, lease: Lease, *, held_s: float, outcome: str, trace: str | None) -> None:
    """Write the line. ``held_s``: seconds since the lease was granted; ``trace``: the gateway's id of the call."""
    fields: dict[str, object] = {
        "repository": lease.repository,
        "path": lease.path or "/",
        "holder": lease.hostname,
        "key": lease.key_id,
        "held_s": round(held_s, 3),
        "outcome": outcome,
        **({"epoch": lease.epoch} if lease.epoch is not None else {}),
        **({"trace": trace} if trace else {}),
    }
    text = " ".join(f"{name}={value!r}" for name, value in fields.items())
    log.info("%s: %s", event.value, text, extra={"event": event.name.lower(), "fields": fields})
