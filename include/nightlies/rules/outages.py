"""How long to wait for a store, gateway or publisher node that cannot be reached, and in which pauses. Pure."""

from __future__ import annotations

from include.errors import NightshiftError

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 300.0


def is_outage(error: BaseException) -> bool:
    """Whether an error means that a service cannot be reached, so that only waiting helps."""
    return isinstance(error, NightshiftError) and error.outage


def pauses(budget_s: float) -> tuple[float, ...]:
    """Seconds between the checks of a service that is away: each twice the one before, together at least the budget."""
    planned: list[float] = []
    pause_s = FIRST_PAUSE_S
    while sum(planned) < budget_s:
        planned.append(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    return tuple(planned)
