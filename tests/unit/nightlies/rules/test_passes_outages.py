"""What counts as an outage, and how long and how often one is looked at again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from include.cvmfs.errors import ManifestConflict, SourceError
from include.gateway.errors import (
    BAD_SIGNATURE,
    GATEWAY_FAILED,
    STATE_FAILED,
    CommitUnclear,
    GatewayUnreachable,
    PathBusy,
    ReplyLost,
)
from include.nightlies.rules.passes import FIRST_PAUSE_S, LONGEST_PAUSE_S, is_outage, pauses
from include.publishers.server.errors import NodeUnreachable
from include.settings.model import SiteSettings
from include.storage.errors import Forbidden, Unavailable


def test_by_default_an_outage_of_half_an_hour_is_waited_out_with_pauses_that_grow() -> None:
    planned = pauses(SiteSettings().outage_minutes * 60)
    assert sum(planned) >= 30 * 60
    assert planned[0] == FIRST_PAUSE_S
    assert all(later in (2 * earlier, LONGEST_PAUSE_S) for earlier, later in pairwise(planned))
    assert max(planned) == LONGEST_PAUSE_S


@pytest.mark.parametrize("minutes", [0, 1, 30, 720])
def test_the_pauses_fill_the_budget_and_no_pause_begins_after_it(minutes: int) -> None:
    planned = pauses(minutes * 60)
    assert sum(planned) >= minutes * 60
    assert sum(planned[:-1]) < max(minutes * 60, 1)


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (Unavailable("503", key="a", cause="503"), True),
        (GatewayUnreachable("no connection"), True),
        (ReplyLost("no reply"), True),
        (GATEWAY_FAILED("500"), True),
        (STATE_FAILED("database is locked"), True),
        (NodeUnreachable("nights.example.org", "no route"), True),
        (CommitUnclear("no reply"), False),
        (PathBusy("busy"), False),
        (BAD_SIGNATURE("no"), False),
        (Forbidden("no", key="a"), False),
        (ManifestConflict("nights.example.org"), False),
        (SourceError("a", "b"), False),
        (RuntimeError("unknown"), False),
    ],
)
def test_only_what_cannot_be_reached_is_an_outage(error: Exception, outage: bool) -> None:
    assert is_outage(error) is outage
    assert not outage or getattr(error, "retryable", False), "what is waited for may pass by itself"
