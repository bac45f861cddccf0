"""Writes the dashboards of config/grafana from the table below: `make docs`. A test asks Prometheus for each panel."""

# ruff: noqa: INP001 - a script beside the pages that it writes
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "config" / "grafana"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 12, 8
DAY_S, GB = 86_400, 10**9


@dataclass(frozen=True)
class Panel:
    """A panel. `legend`: of its series, by their labels; `unit`: as Grafana names it; `warns_at`: from where it is red.

    `kind`: a curve over time (`timeseries`), or the last value of each series (`bargauge`, `stat`).
    """

    title: str
    query: str
    legend: str
    unit: str = "short"
    kind: str = "timeseries"
    warns_at: float | None = None

    def document(self, number: int) -> dict[str, Any]:
        """Return the panel as Grafana has it."""
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if self.warns_at is not None:
            steps.append({"color": "red", "value": self.warns_at})
        return {
            "id": number + 1,
            "type": self.kind,
            "title": self.title,
            "datasource": SOURCE,
            "gridPos": {"x": WIDTH * (number % 2), "y": HEIGHT * (number // 2), "w": WIDTH, "h": HEIGHT},
            "fieldConfig": {
                "defaults": {"unit": self.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
                "overrides": [],
            },
            "targets": [{
                "refId": "A", "datasource": SOURCE, "expr": self.query, "legendFormat": self.legend,
                "instant": self.kind != "timeseries", "range": self.kind == "timeseries",
            }],
        }  # fmt: skip


DASHBOARDS = {
    "night": [
        Panel("Artifacts of the newest build", "nightshift_night_artifacts", "{{slot}} {{state}}", kind="bargauge"),
        Panel("Age of what the links lead to", "nightshift_link_build_age_seconds", "{{slot}} {{path}}", "s",
              warns_at=2 * DAY_S),
        Panel("Quality: last verdicts", "nightshift_quality_verdict == 1", "{{slot}} {{suite}}: {{verdict}}",
              kind="stat"),
        Panel("Failures of 24 hours", "sum by (repository, code) (nightshift_publication_failures)",
              "{{repository}} {{code}}", warns_at=1),
        Panel("Published in 24 hours", "nightshift_publication_bytes", "{{repository}}", "decbytes"),
        Panel("Time by phase, of 24 hours", "sum by (phase) (nightshift_publication_seconds)", "{{phase}}", "s"),
        Panel("Longest lease of 24 hours", "nightshift_publication_lease_longest_seconds", "{{repository}}", "s"),
        Panel("DAGs that are paused", "nightshift_dag_paused > 0", "{{dag}}", kind="stat", warns_at=1),
        Panel("Parts that do not answer", "count(nightshift_part_up == 0) or vector(0)", "parts", kind="stat",
              warns_at=1),
    ],
    "transfers": [
        Panel("Files that are not complete", "nightshift_transfers", "{{state}}"),
        Panel("For how long one is due", "nightshift_transfer_due_seconds", "{{state}}", "s", warns_at=1800),
        Panel("Failures of 24 hours", "nightshift_transfer_failures", "{{failure}}", warns_at=1000),
        Panel("Ended today or yesterday, by link", "sum by (source, destination) (nightshift_transfers_archived)",
              "{{source}} to {{destination}}", kind="bargauge"),
        Panel("Bytes today and yesterday, by destination", "sum by (destination) (nightshift_transfer_archived_bytes)",
              "{{destination}}", "decbytes", kind="bargauge"),
        Panel("From request to registration, 95 %", 'nightshift_transfer_registered_seconds{quantile="0.95"}',
              "{{source}} to {{destination}}", "s"),
        Panel("Retries today and yesterday", "sum by (source, destination) (nightshift_transfer_retries)",
              "{{source}} to {{destination}}", kind="bargauge"),
    ],
    "repositories": [
        Panel("Objects that the last collection kept", "nightshift_collection_kept_objects", "{{repository}}"),
        Panel("Deleted by collections", "rate(nightshift_collection_deleted_bytes_total[1d]) * 86400", "{{repository}}",
              "decbytes"),
        Panel("Since the last collection", "time() - nightshift_collection_last_timestamp_seconds", "{{repository}}",
              "s", warns_at=4 * DAY_S),
        Panel("Lost objects", "nightshift_damaged_objects", "{{repository}}", kind="stat", warns_at=1),
        Panel("Days until the whitelist ends", "nightshift_whitelist_days", "{{repository}}", kind="stat"),
        Panel("Open leases", "nightshift_leases", "{{repository}}"),
        Panel("Commits a minute",
              "sum by (repository, outcome) (rate(nightshift_gateway_commits_total[5m])) * 60",
              "{{repository}} {{outcome}}"),
        Panel("Commit, 95 %",
              "histogram_quantile(0.95, sum by (repository, le) (rate(nightshift_gateway_commit_seconds_bucket[5m])))",
              "{{repository}}", "s"),
        Panel("Commits that wait", "nightshift_gateway_commits_waiting", "{{repository}}", warns_at=20),
    ],
    "storage": [
        Panel("Stores and gateways that answer", "nightshift_part_up", "{{part}} {{name}}", kind="stat"),
        Panel("Free space of the deployment", "nightshift_disk_free_bytes", "{{path}}", "decbytes"),
        Panel("Sent to stores in 24 hours", "nightshift_publication_uploaded_bytes", "{{repository}}", "decbytes"),
        Panel("Requests to the gateway", "sum by (status) (rate(nightshift_gateway_http_requests_total[5m]))",
              "{{status}}", "reqps"),
        Panel("Stored for stock publishers", "rate(nightshift_gateway_payload_bytes_total[5m])", "{{repository}}",
              "Bps"),
        Panel("Messages that could not be sent", "nightshift_notifications_failed", "messages", kind="stat",
              warns_at=1),
    ],
    "sites-and-caches": [
        Panel("Sites that have failed or are held", 'nightshift_site_state{state!="ok"}', "{{site}} {{state}}"),
        Panel("Probes", "nightshift_site_probe_seconds", "{{site}} {{probe}}", "s"),
        Panel("Replicas: behind by", "nightshift_replica_lag_seconds", "{{repository}} {{replica}}", "s",
              warns_at=DAY_S),
        Panel("Replicas that clients trust", "nightshift_replica_trusted", "{{repository}} {{replica}}", kind="stat"),
        Panel("Size of caches", "nightshift_cache_bytes", "{{cache}}", "decbytes"),
        Panel("Free space of caches", "nightshift_cache_free_bytes", "{{cache}}", "decbytes"),
        Panel("Damaged objects of caches", "nightshift_cache_damaged_objects", "{{cache}}", kind="stat", warns_at=1),
    ],
}  # fmt: skip


def render(name: str) -> str:
    """Return a dashboard as a file for Grafana's provisioning or its import."""
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    document = {
        "uid": f"nightshift-{name}",
        "title": f"Nightshift: {name.replace('-', ' ')}",
        "tags": ["nightshift"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-7d", "to": "now"},
        "templating": {"list": [source]},
        "links": [{"type": "dashboards", "tags": ["nightshift"], "title": "Nightshift", "asDropdown": True}],
        "panels": [panel.document(number) for number, panel in enumerate(DASHBOARDS[name])],
    }
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard}.json").write_text(render(dashboard))
