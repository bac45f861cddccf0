"""The points of a commit, by name, from the request to the reply: where a test may stop or inspect the service.

With ``NIGHTSHIFT_GATEWAY_DIE_AT=<point>`` in its environment a service kills itself when a commit reaches that point;
``<point>:<n>`` when it is reached for the n-th time.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Mapping
from enum import Enum

from include.cvmfs.commit.commit import SwitchStep

DIE_AT = "NIGHTSHIFT_GATEWAY_DIE_AT"


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


def from_environment(environment: Mapping[str, str] = os.environ) -> OnPoint:
    """What the environment wants done at the points. Raises ValueError for a point that there is not."""
    wanted = environment.get(DIE_AT, "")
    if not wanted:
        return pass_by
    name, _, times = wanted.partition(":")
    point, last = Point(name), int(times or 1)
    reached = itertools.count(1)

    def die(at: Point) -> None:
        if at is point and next(reached) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return die
