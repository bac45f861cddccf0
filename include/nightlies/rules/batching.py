"""Into how many batches a run's artifacts are dealt, so that starting tasks costs little of its time. Pure.

Measured figures and reasons: docs/decisions/0008-batches-of-artifacts.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

T = TypeVar("T")

ALONE = 64
"""Up to so many artifacts, each is a batch of its own and has its own row on the page."""
AT_LEAST = 16
"""Batches of a larger run: as many as may be under way at once on a machine or two."""
TASKS_S = 4.0
"""What the two tasks of a batch cost beside their work: scheduling, a process each, connections."""
SHARE = 0.1
"""How much of its own time a batch may cost."""
ARTIFACT_S = 0.15
BYTES_PER_S = 20e6
"""What an artifact costs whatever its size, and how fast its bytes are prepared by one core."""


def work_s(size: int | None) -> float:
    """About how long preparing and publishing takes, in seconds, from the size in bytes."""
    return ARTIFACT_S + (size or 0) / BYTES_PER_S


def batch_count(sizes: Sequence[int | None], limit: int) -> int:
    """Into how many batches, `limit` at most, artifacts of these sizes (bytes; None: not known) are dealt."""
    if len(sizes) <= ALONE:
        return min(len(sizes), limit)
    wanted = math.ceil(sum(map(work_s, sizes)) * SHARE / TASKS_S)
    return min(len(sizes), limit, max(AT_LEAST, wanted))


def dealt(items: Sequence[T], sizes: Sequence[int | None], limit: int) -> tuple[tuple[T, ...], ...]:
    """The items in batches of about the same work, in their order; none is empty."""
    if limit < 1:
        raise ValueError(f"the limit of batches is {limit}; it must be at least 1")
    count = batch_count(sizes, limit)
    if not count:
        return ()
    done = list(accumulate(map(work_s, sizes)))
    cuts = [0]
    for number in range(1, count):
        wanted = bisect_left(done, done[-1] * number / count) + 1
        # at least one item for this batch, and one for each that follows
        cuts.append(min(max(wanted, cuts[-1] + 1), len(items) - (count - number)))
    cuts.append(len(items))
    return tuple(tuple(items[start:end]) for start, end in pairwise(cuts))
