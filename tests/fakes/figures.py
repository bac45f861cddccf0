"""All samples that the pages of figures may have."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from include.gateway.service.telemetry import Metrics
from include.ledger.engine import open_ledger
from include.ledger.migrate import migrate
from include.monitoring.checks import Health
from include.monitoring.findings import Finding, PreflightReport, Severity
from include.monitoring.metrics import SiteFigures
from tests.fakes.plainsite import plain_site


def offered_figures(folder: Path) -> dict[str, set[str]]:
    """The names of all samples of Nightshift and its gateway, each with its labels; `folder`: for a ledger."""
    site = plain_site(folder)
    site.ledger = open_ledger(site.settings.ledger)
    migrate(site.ledger)
    up = Finding("ledger", "ledger", Severity.OK, "answers")
    health = Health(PreflightReport.of([up]), {"nights.example.org": []})
    ours = list(SiteFigures(site, health, datetime(2026, 11, 23, 4, tzinfo=UTC)).collect())
    site.ledger.dispose()
    figures = {metric.name + ("_total" if metric.type == "counter" else ""): set(metric._labelnames) for metric in ours}
    registry = Metrics().registry
    for collector in list(registry._collector_to_names):
        for metric in collector.describe():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(metric.type, ("",))
            for suffix in suffixes:
                figures[metric.name + suffix] = set(getattr(collector, "_labelnames", ())) | (
                    {"le"} if suffix == "_bucket" else set()
                )
    return figures
