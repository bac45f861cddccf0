"""Dashboards and alert rules in a genuine Prometheus that scraped every figure."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests

from docs.generate_dashboards import DASHBOARDS, FOLDER
from lab.ports import LOOPBACK, free_port
from lab.servers.process import ServerProcess
from tests.fakes.airflowhome import ROOT
from tests.fakes.figures import offered_figures
from tests.fakes.loopback import Heard, LoopbackServer, respond

pytestmark = pytest.mark.server("prometheus")
RULES = ROOT / "config/prometheus/alerts.yaml"
VALUES = {"quantile": ("0.95",), "le": ("0.1", "+Inf"), "verdict": ("blocked",)}
"""Values of labels that queries choose by."""


def exposition(figures: dict[str, set[str]], number: int) -> str:
    """A page with a sample of each figure, larger at each scrape; a flag is 1."""
    lines = []
    for name, labels in figures.items():
        value = 1 if name.endswith("verdict") else 10 * number
        for values in itertools.product(*(VALUES.get(label, ("x",)) for label in labels)):
            pairs = ",".join(f'{label}="{text}"' for label, text in zip(labels, values, strict=True))
            lines.append(f"{name}{{{pairs}}} {value}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def ask(need: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Calls the API of a Prometheus that has scraped every figure twice."""
    program, folder = need("prometheus"), tmp_path_factory.mktemp("prometheus")
    figures, scrapes = offered_figures(folder), itertools.count(1)

    class Page(LoopbackServer):
        METHODS = ("GET",)

        def serve(self, handler: BaseHTTPRequestHandler, request: Heard) -> None:
            respond(handler, 200, exposition(figures, next(scrapes)).encode(), {"Content-Type": "text/plain"})

    with Page() as page:
        target = {"static_configs": [{"targets": [page.address]}]}
        scraped = {"job_name": "nightshift", "scrape_interval": "1s", "scrape_timeout": "1s", **target}
        document = {"rule_files": [str(RULES)], "scrape_configs": [scraped]}
        (folder / "prometheus.yml").write_text(json.dumps(document))
        url = f"http://{LOOPBACK}:{(port := free_port())}"
        command = [
            program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={LOOPBACK}:{port}",
        ]  # fmt: skip

        def call(path: str, **query: str) -> Any:
            answer = requests.get(f"{url}/api/v1/{path}", params=query, timeout=30).json()
            assert answer["status"] == "success", answer
            return answer["data"]

        def ready() -> bool:
            try:
                return requests.get(f"{url}/-/ready", timeout=5).ok
            except requests.ConnectionError:
                return False

        process = ServerProcess("prometheus", command, log=folder / "prometheus.log", ready=ready)
        process.start()
        try:
            deadline = time.monotonic() + 60
            twice = "count_over_time(nightshift_collections_total[1m]) > 1"
            while not call("query", query=twice)["result"]:
                assert time.monotonic() < deadline, "nothing was scraped"
                time.sleep(0.2)
            yield call
        finally:
            process.kill()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_shows_a_series(ask: Callable[..., Any], name: str) -> None:
    panels = json.loads((FOLDER / f"{name}.json").read_text())["panels"]
    assert len(panels) > 5
    for panel in panels:
        (target,) = panel["targets"]
        result = ask("query", query=target["expr"])["result"]
        assert result, panel["title"]
        shown = {label for label in result[0]["metric"] if f"{{{{{label}}}}}" in target["legendFormat"]}
        assert target["legendFormat"].count("{{") == len(shown), panel["title"]


def test_the_configuration_of_the_monitoring_profile_is_one_of_prometheus(
    need: Callable[[str], str], tmp_path: Path
) -> None:
    token, config = tmp_path / "token", tmp_path / "prometheus.yaml"
    token.write_text("of a test")
    text = (RULES.parent / "prometheus.yaml").read_text()
    config.write_text(text.replace("/run/secrets/metrics-token", str(token)))
    (tmp_path / RULES.name).write_text(RULES.read_text())
    checked = subprocess.run([need("promtool"), "check", "config", config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "1 rule files found" in checked.stdout


def test_the_alert_rules_are_read_and_evaluated(need: Callable[[str], str], ask: Callable[..., Any]) -> None:
    checked = subprocess.run(
        [need("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 20
    for rule in rules:
        ask("query", query=rule["query"])
        assert rule.get("lastError", "") == "", rule["name"]
