"""One page of figures for Prometheus, made from the ledger and a check of the parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from include.care.metrics import figures
from include.care.metrics.health import Health, look_at_health
from include.care.preflight.findings import Severity
from include.ledger.engine import reading
from include.site.site import Site

REMEMBERED_S = 10.0
"""However many ask, the parts are checked and the ledger is read no more often."""

T = TypeVar("T")


class CachedAnswer(Generic[T]):
    """What a function returned lately; of several who ask at once one calls it, the others wait for its result."""

    def __init__(self, made: Callable[[], T], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._made, self._clock = made, clock
        self._lock = threading.Lock()
        self._kept: tuple[float, T] | None = None

    def __call__(self) -> T:
        with self._lock:
            if self._kept is None or self._clock() - self._kept[0] >= REMEMBERED_S:
                value = self._made()
                self._kept = self._clock(), value
            return self._kept[1]


class SiteFigures(Collector):
    """Collects all figures of one moment. Without a ledger only the parts are reported."""

    def __init__(self, site: Site, health: Health, now: datetime) -> None:
        self._site, self._health, self._now = site, health, now

    def collect(self) -> Iterator[Metric]:
        """The metrics. Raises LedgerError if the ledger was there a moment ago and is not now."""
        yield from figures.of_health(self._health)
        if any(
            finding.severity is Severity.ERROR for finding in self._health.report.findings if finding.check == "ledger"
        ):
            return
        with reading(self._site.ledger) as connection:
            yield from figures.of_leases(connection, self._health, self._now)
            yield from figures.of_publications(connection, self._now)
            yield from figures.of_collections(connection)
            yield from figures.of_replicas(connection, self._now)
            yield from figures.of_trouble(connection, self._now)
            yield from figures.of_transfers(connection, self._now)


class Scrape:
    """Health and page of a deployment, both remembered for some seconds. Raises what opening the deployment raises."""

    def __init__(self, site: Callable[[], Site]) -> None:
        self._site = site
        self.health: CachedAnswer[Health] = CachedAnswer(lambda: look_at_health(site()))
        self.page: CachedAnswer[bytes] = CachedAnswer(self._page)

    def _page(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(SiteFigures(self._site(), self.health(), datetime.now(UTC)))
        return generate_latest(registry)
