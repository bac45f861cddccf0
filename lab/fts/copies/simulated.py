"""Copies that only take time, between `mock://host/path` names, and the storages that they pretend to fill.

A name exists once it was created or copied to. A source that was never created exists too, with the size of its query
(`?size=N`) or one made from its name, until it is removed. As in gfal2's mock plugin, a URL's query may also set the
copy's `time=` in seconds and its failure, `transfer_errno=`.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log
from random import Random
from urllib.parse import parse_qs

from include.fts.states import FailureReason, FailureScope
from lab.fts.copies.copier import DESTINATION_EXISTS, SOURCE_MISSING, CopyEnd, CopyOrder
from lab.fts.errors import FtsServiceError

SCHEME = "mock"
_LARGEST_MADE_UP = 4 << 30

_S = FailureScope
FAILURES: Mapping[str, FailureReason] = {
    "source-missing": SOURCE_MISSING,
    "source-unreachable": FailureReason(_S.SOURCE, 112, "Result Could not connect to server  after 1 attempts"),
    "source-checksum": FailureReason(
        _S.SOURCE, errno.EIO, "Source and user-defined adler32 checksum do not match (0 != 1)"
    ),
    "network": FailureReason(_S.TRANSFER, errno.ETIMEDOUT, "Connection timed out"),
    "stalled": FailureReason(_S.TRANSFER, errno.EIO, "No performance marker received for 180 seconds"),
    "destination-full": FailureReason(_S.TRANSFER, errno.ENOSPC, "No space left on device"),
    "destination-denied": FailureReason(_S.DESTINATION, 1, "HTTP 403 : Permission refused"),
    "destination-checksum": FailureReason(
        _S.DESTINATION, errno.EIO, "User-defined and destination adler32 checksum do not match (1 != 00000000)"
    ),
}
"""Failures that the model can draw, by the names that settings have for them."""


@dataclass(frozen=True, slots=True)
class SimulationModel:
    """How long copies take and how many fail.

    `mean_s`, `spread`: mean of the seconds, and sigma of their log-normal distribution; 0 for a fixed time. `failures`:
    fraction of copies that end with each of `FAILURES`.
    """

    mean_s: float = 20.0
    spread: float = 0.6
    failures: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None


Content = tuple[int, int]
"""Size, and adler32 checksum as a number."""


class Namespace:
    """The files of all simulated storages: their size and checksum, by URL without query.

    None as a value means that a source, which would otherwise exist, was removed. `changed` has what the state file
    does not have yet.
    """

    def __init__(self) -> None:
        self.names: dict[str, Content | None] = {}
        self.changed: dict[str, Content | None] = {}

    def put(self, url: str, content: Content | None) -> None:
        self.names[url] = self.changed[url] = content

    def find(self, url: str, *, source: bool = False) -> Content | None:
        """Return what a URL has. ``source``: one that was never created exists as well."""
        name, _, query = url.partition("?")
        if name in self.names:
            return self.names[name]
        size = _number(parse_qs(query), "size")
        if size is None:
            if not source:
                return None
            size = zlib.crc32(name.encode()) % _LARGEST_MADE_UP
        return int(size), made_up_checksum(name, int(size))

    def remove(self, url: str) -> bool:
        """Remove a file; False if it was removed before."""
        name = url.partition("?")[0]
        existed = self.names.get(name, (0, 0)) is not None
        self.put(name, None)
        return existed

    def list(self, prefix: str, most: int) -> Iterator[tuple[str, Content]]:
        """The created and copied files below a prefix, sorted."""
        found = sorted(name for name, content in self.names.items() if content and name.startswith(prefix))
        for name in found[:most]:
            content = self.names[name]
            if content is not None:
                yield name, content


def made_up_checksum(name: str, size: int) -> int:
    """The checksum of a simulated file; a copy has that of its source."""
    return zlib.adler32(f"{name}:{size}".encode())


def digits_of(checksum: int) -> str:
    return f"{checksum:08x}"


def parsed_fractions(texts: Iterable[str]) -> dict[str, float]:
    """Fractions of `FAILURES` from texts as `network=0.01`. Raises FtsServiceError."""
    fractions = {}
    for text in texts:
        name, _, number = text.partition("=")
        fraction = _number({"": [number]}, "")
        if name not in FAILURES or fraction is None or fraction > 1:
            known = ", ".join(FAILURES)
            raise FtsServiceError(f"{text!r} is no failure of simulated copies: give <name>=<fraction> of {known}")
        fractions[name] = fraction
    return fractions


class SimulatedCopier:
    """Copies between simulated storages, by a heap of the times at which they end: no task and no thread for each."""

    def __init__(self, namespace: Namespace, model: SimulationModel) -> None:
        self._namespace = namespace
        self.model = model
        self._random = Random(model.seed)  # noqa: S311 - a model, no secret
        self._running: dict[int, CopyOrder] = {}
        self._ends: list[tuple[float, int]] = []

    def start(self, order: CopyOrder, now: float) -> None:
        self._running[order.file_id] = order
        seconds = None
        if "time=" in order.source or "time=" in order.destination:
            seconds = _asked(order, "time")
        heappush(self._ends, (now + (self._seconds() if seconds is None else seconds), order.file_id))

    def cancel(self, file_id: int) -> None:
        self._running.pop(file_id, None)

    def ended(self, now: float) -> Iterable[CopyEnd]:
        ends = []
        while self._ends and self._ends[0][0] <= now:
            order = self._running.pop(heappop(self._ends)[1], None)
            if order is not None:
                ends.append(self._end(order))
        return ends

    def clean(self, destination: str, draft: str) -> None:
        """A name exists when its copy is whole: there is nothing to remove."""

    def close(self) -> None:
        self._running.clear()

    def _end(self, order: CopyOrder) -> CopyEnd:
        file_id = order.file_id
        source = self._namespace.find(order.source, source=True)
        if source is None:
            return CopyEnd(file_id, SOURCE_MISSING)
        size, digits = source[0], digits_of(source[1])
        checked = not order.strict and order.expected[0] == "adler32"
        failure = order.source_fault(digits) if checked and order.verify in "bs" else None
        exists = self._namespace.names.get(order.destination.partition("?")[0]) is not None
        if failure is None and exists and not order.overwrite and not order.strict:
            return CopyEnd(file_id, DESTINATION_EXISTS)
        failure = failure or self._drawn(order)
        if failure is None and checked and order.verify in "bt":
            failure = order.destination_fault(digits, digits)
        if failure is not None:
            return CopyEnd(file_id, failure)
        self._namespace.put(order.destination.partition("?")[0], source)
        return CopyEnd(file_id, size=size, checksum=f"ADLER32:{digits}")

    def _seconds(self) -> float:
        mean, spread = self.model.mean_s, self.model.spread
        if not mean or not spread:
            return mean
        return self._random.lognormvariate(log(mean) - spread * spread / 2, spread)

    def _drawn(self, order: CopyOrder) -> FailureReason | None:
        """The failure that the URLs ask for, or that the model draws."""
        asked = "errno=" in order.source or "errno=" in order.destination
        if asked and (number := int(_asked(order, "transfer_errno") or 0)):
            return FailureReason(FailureScope.TRANSFER, number, f"Simulated failure of errno {number}")
        drawn = self._random.random() if self.model.failures else 1.0
        for name, fraction in self.model.failures.items():
            drawn -= fraction
            if drawn < 0:
                return FAILURES[name]
        return None


def _asked(order: CopyOrder, name: str) -> float | None:
    for url in (order.destination, order.source):
        number = _number(parse_qs(url.partition("?")[2]), name)
        if number is not None:
            return number
    return None


def _number(query: Mapping[str, list[str]], name: str) -> float | None:
    """A number of a query that is not negative; None for anything else."""
    text = query.get(name, [""])[0]
    return float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else None
