"""The points of a commit, by name, from the request to the reply: where a test may stop or inspect the service."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from include.cvmfs.commit.commit import SwitchStep


class Point(Enum):
    """In the order in which a commit comes by; those of the switch are ``SwitchStep``'s, of the same names."""

    REQUEST_READ = "request read"
    QUEUED = "queued"
    TAKEN = "taken into a group"
    HEAD_READ = SwitchStep.HEAD_READ.value
    MERGED = SwitchStep.MERGED.value
    CATALOGS_STORED = SwitchStep.CATALOGS_STORED.value
    HISTORY_STORED = SwitchStep.HISTORY_STORED.value
    REFLOG_WRITTEN = SwitchStep.REFLOG_WRITTEN.value
    BEFORE_SWITCH = SwitchStep.BEFORE_SWITCH.value
    FENCED = SwitchStep.FENCED.value
    SWITCHED = SwitchStep.SWITCHED.value
    RECORDED = "outcome recorded"
    REPLYING = "replying"


OnPoint = Callable[[Point], None]


def pass_by(_: Point) -> None:
    """Do nothing at any point."""
