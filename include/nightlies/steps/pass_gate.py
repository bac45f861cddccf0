"""Whether a pass before the last one left something failed: then its run fails at once, and not hours later."""

from __future__ import annotations

import logging

from include.nightlies import records
from include.nightlies.required import is_required
from include.nightlies.states import State
from include.nightlies.steps.errors import GateClosed
from include.publishers.connect import Connections
from include.settings.model import Slot

log = logging.getLogger(__name__)


def gate_of_pass(connections: Connections, run: str, slot: Slot, *, planned: bool, cause: str | None = None) -> None:
    """Let a pass end well if nothing failed that it took and that is required; what is optional is only reported.

    The night goes on all the same, and its last pass tries again what failed. `planned`: whether the plan came to its
    end, ``cause``: why it did not. Raises GateClosed with every artifact that failed and why.
    """
    if not planned:
        raise GateClosed(run, [f"{cause or 'nothing was planned'}. The next pass looks again by itself"])
    lines: list[str] = []
    for one in records.publications_of_run(connections.ledger, run):
        if one.state is not State.FAILED:
            continue
        line = f"{one.project}/{one.platform}: failed: {one.reason}"
        if is_required(slot, str(one.project), str(one.platform)):
            lines.append(line)
        else:
            log.warning("optional: %s", line)
    if lines:
        raise GateClosed(run, lines)
