"""Figures of the service, for Prometheus; every service has a registry of its own."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The figures. Names end in their unit; labels have few values: a route's pattern, never a path of a caller's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        within: dict[str, Any] = {"namespace": "nightshift_gateway", "registry": self.registry}
        self.requests = Counter("http_requests", "Requests answered", ("method", "route", "status"), **within)
        self.request_seconds = Histogram(
            "http_request_seconds", "From the request's head to its answer", ("route",), buckets=_SECONDS, **within
        )
        self.leases = Gauge("leases", "Leases that are held", **within)
        self.lease_events = Counter("lease_events", "What happened to leases", ("event",), **within)
        self.commits = Counter("commits", "Commits by outcome", ("repository", "outcome"), **within)
        self.commit_seconds = Histogram(
            "commit_seconds", "From the commit's arrival to its outcome", ("repository",), buckets=_SECONDS, **within
        )
        self.group_size = Histogram(
            "group_size", "Commits that went together", ("repository",), buckets=_SIZES, **within
        )
        self.group_seconds = Histogram(
            "group_seconds", "Making one revision", ("repository",), buckets=_SECONDS, **within
        )
        self.payloads = Counter("payloads", "Payloads by outcome", ("repository", "outcome"), **within)
        self.payload_objects = Counter("payload_objects", "Objects of payloads", ("repository", "found"), **within)
        self.payload_bytes = Counter("payload_bytes", "Bytes of payloads that were stored", ("repository",), **within)
        self.queue = Gauge("commits_waiting", "Commits that wait for their turn", ("repository",), **within)
        self.waiting = Gauge("paths_waited_for", "Publishers that wait for a busy path", **within)
        self.limited = Counter("requests_limited", "Requests refused by a limit", ("limit",), **within)
        self.clock_steps = Counter("clock_steps", "Steps of the wall clock over 5 s that were noticed", **within)

    def page(self) -> bytes:
        """All of them in the text format."""
        return generate_latest(self.registry)
