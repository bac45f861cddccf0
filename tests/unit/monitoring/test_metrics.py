"""Figures of publications, how long a result is remembered, and the alert rules over all figures that there are."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

from include.monitoring.metrics import REMEMBERED_S, CachedAnswer, publication_metrics, routes
from include.pages.registry import PAGES, PREFIX
from include.settings.errors import SettingsError
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from tests.fakes.airflowhome import ROOT
from tests.fakes.figures import offered_figures
from tests.fakes.plainsite import plain_site

FQRN = "nights.example.org"
NOW = datetime(2026, 11, 23, 4, tzinfo=UTC)
RULES = ROOT / "config" / "prometheus" / "alerts.yaml"
DURATION = re.compile(r"[1-9][0-9]*[smhdw]")


def row(state: str, **values: Any) -> Any:
    empty = {"code": None, "files": None, "bytes": None, "bytes_uploaded": None, "seconds": {}, "lease_held_s": None}
    return {"repository": FQRN, "state": state, **empty, **values}


def values(metrics: Iterator[Metric]) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels."""
    return {(one.name, *one.labels.values()): one.value for metric in metrics for one in metric.samples}


def test_publications_are_counted_by_state_and_what_was_published_is_summed_by_phase() -> None:
    figures = {"files": 3, "bytes": 100, "bytes_uploaded": 40}
    found = values(
        publication_metrics(
            [
                row("published", **figures, seconds={"prepare": 2.0, "commit": 0.5}, lease_held_s=0.25),
                row("published", **figures, seconds={"prepare": 1.0}, lease_held_s=0.75),
                row("unchanged", files=9, bytes=900, seconds={"prepare": 7.0}),
                row("failed", code="store-unavailable", seconds={"prepare": 9.0}),
                row("failed", code=None),
            ]
        )
    )
    assert found == {
        ("nightshift_publications", FQRN, "published"): 2,
        ("nightshift_publications", FQRN, "unchanged"): 1,
        ("nightshift_publications", FQRN, "failed"): 2,
        ("nightshift_publication_failures", FQRN, "store-unavailable"): 1,
        ("nightshift_publication_failures", FQRN, "unknown"): 1,
        ("nightshift_publication_files", FQRN): 6,
        ("nightshift_publication_bytes", FQRN): 200,
        ("nightshift_publication_uploaded_bytes", FQRN): 80,
        ("nightshift_publication_seconds", FQRN, "prepare"): 3.0,
        ("nightshift_publication_seconds", FQRN, "commit"): 0.5,
        ("nightshift_publication_lease_seconds", FQRN): 1.0,
        ("nightshift_publication_lease_longest_seconds", FQRN): 0.75,
    }


def test_a_result_is_remembered_for_some_seconds_and_a_failure_is_not() -> None:
    now, results = [100.0], iter([LookupError(), 2, 3])

    def made() -> int:
        result: Any = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    remembered = CachedAnswer(made, clock=lambda: now[0])
    with pytest.raises(LookupError):
        remembered()
    assert [remembered(), remembered()] == [2, 2]
    now[0] += REMEMBERED_S
    assert remembered() == 3


def test_of_many_who_ask_at_once_one_looks() -> None:
    asked, go, calls = threading.Barrier(5), threading.Event(), []

    def made() -> int:
        calls.append(1)
        assert go.wait(30)
        return len(calls)

    remembered = CachedAnswer(made)
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(lambda: (asked.wait(30), remembered())[1]) for _ in range(4)]
        asked.wait(30)
        go.set()
        assert [answer.result(30) for answer in answers] == [1] * 4
    assert len(calls) == 1


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return offered_figures(tmp_path_factory.mktemp("site"))


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    assert set(document) == {"groups"}
    for group in document["groups"]:
        assert set(group) == {"name", "rules"}
    names = [group["name"] for group in document["groups"]]
    assert len(set(names)) == len(names)
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_the_alert_rules_have_the_form_of_prometheus() -> None:
    alerts = [rule["alert"] for rule in rules()]
    assert len(set(alerts)) == len(alerts)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", rule["alert"])
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description", "page", "runs", "runbook_url"}, rule["alert"]
        assert DURATION.fullmatch(rule.get("for", "1m")), rule["alert"]
        for text in (*rule["annotations"].values(), rule["expr"]):
            assert isinstance(text, str), rule["alert"]
            assert text.count("{{") == text.count("}}"), rule["alert"]
        expression = re.sub(r'"[^"]*"', "", rule["expr"])
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), rule["alert"]
        assert all(DURATION.fullmatch(span) for span in re.findall(r"\[([^\]]*)\]", expression)), rule["alert"]


def test_every_alert_leads_to_a_page_and_to_the_runs_of_a_dag_that_exist() -> None:
    pages = {f"{PREFIX}/{page.name}" for page in PAGES} | {f"{PREFIX}/health"}
    files = (RULES.parents[2] / "dags").glob("*.py")
    dags = {dag for file in files for dag in re.findall(r'dag_id="(\w+)"', file.read_text()) or [file.stem]}
    for rule in rules():
        page, _, query = rule["annotations"]["page"].partition("?")
        assert page in pages, rule["alert"]
        for part in filter(None, query.split("&")):
            name, _, value = part.partition("=")
            assert value == f"{{{{ $labels.{name} }}}}", rule["alert"]
        dag = rule["annotations"]["runs"].removeprefix("/dags/").replace("_{{ $labels.slot }}", "")
        assert dag in dags | {"{{ $labels.dag }}"}, rule["alert"]


def test_every_figure_and_label_of_an_alert_rule_exists(offered: dict[str, set[str]]) -> None:
    for rule in rules():
        used = re.findall(r"(nightshift_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert used, rule["alert"]
        names = {name for name, _ in used}
        assert names <= set(offered), f"{rule['alert']}: {names - set(offered)}"
        for name, chosen in used:
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", chosen)) <= offered[name], rule["alert"]
        known = set.intersection(*(offered[name] for name in names))
        grouped = re.search(r"sum by \(([^)]*)\)", rule["expr"])
        if grouped:
            by = set(re.split(r"\s*,\s*", grouped.group(1)))
            assert by <= known, rule["alert"]
            known = by
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= known, rule["alert"]


TOKEN = "the token of prometheus"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LOGIN = {"Cookie": "login=yes"}


async def logged_in(request: Request) -> bool:
    return request.cookies.get("login") == "yes"


def site_of(folder: Path, *, connection: str | None = "metrics", password: str | None = TOKEN) -> Site:
    settings = plain_site(folder).settings.model_copy(update={"metrics_connection": connection})
    defined = {
        "AIRFLOW_CONN_METRICS": json.dumps({"conn_type": "generic", "password": password}),
        "AIRFLOW_CONN_GATEWAY": json.dumps({"conn_type": "cvmfs_gateway", "host": "127.0.0.1", "port": 1}),
    }
    return Site(settings, EnvSecrets(defined))


def client_of(site: Site) -> TestClient:
    return TestClient(Starlette(routes=routes(lambda: site, logged_in)), raise_server_exceptions=False)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "builds").mkdir()
    found = site_of(tmp_path)
    yield found
    found.ledger.dispose()


def test_without_the_token_there_are_no_figures_and_without_a_login_either_no_health(tmp_path: Path) -> None:
    client, wrong = client_of(site_of(tmp_path)), (f"Bearer {TOKEN}x", "Bearer ", TOKEN, f"Basic {TOKEN}")
    given = [{}, {"Cookie": "login=no"}, *({"Authorization": one} for one in (*wrong, "Bearer käse".encode("latin-1")))]
    for path, headers in product(("/metrics", "/health"), given):
        reply = client.get(path, headers=headers)
        assert (reply.status_code, reply.json()) == (401, {"detail": "Not authenticated"})
        assert reply.headers["www-authenticate"] == "Bearer"


def test_a_login_gives_health_and_no_figures_and_a_site_without_a_token_gives_none_to_anybody(
    site: Site, tmp_path: Path
) -> None:
    assert client_of(site).get("/metrics", headers=LOGIN).status_code == 401
    assert client_of(site).get("/health", headers=LOGIN).status_code == 503
    for of in ({"connection": None}, {"connection": "other"}, {"password": None}, {"password": ""}):
        client = client_of(site_of(tmp_path, **of))
        for given in ("Bearer None", "Bearer ", f"Bearer {TOKEN}"):
            assert client.get("/metrics", headers={"Authorization": given}).status_code == 401


def test_health_names_what_is_away_and_figures_tell_it_too(site: Site) -> None:
    client = client_of(site)
    reply = client.get("/health", headers=BEARER)
    found = reply.json()
    assert (reply.status_code, found["status"], found["ready"]) == (503, "failed", False)
    assert {(one["check"], one["subject"]): one["severity"] for one in found["findings"]} == {
        ("gateway", "gateway"): "error",
        ("ledger", "ledger"): "ok",
        ("store", "builds"): "ok",
    }
    page = client.get("/metrics", headers=BEARER)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = page.text.splitlines()
    assert 'nightshift_part_up{name="gateway",part="gateway"} 0.0' in lines
    assert 'nightshift_part_up{name="ledger",part="ledger"} 1.0' in lines
    assert TOKEN not in reply.text + page.text


def test_a_ledger_that_is_away_is_told_and_nothing_else(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    away = site.settings.model_copy(update={"ledger": "mysql+pymysql://night:hidden@127.0.0.1:1/ledger"})
    client = client_of(Site(away, site.secrets))
    reply, page = client.get("/health", headers=BEARER), client.get("/metrics", headers=BEARER)
    assert reply.status_code == 503
    assert 'nightshift_part_up{name="ledger",part="ledger"} 0.0' in page.text
    assert "nightshift_publications" not in page.text
    assert "hidden" not in reply.text + page.text


def test_settings_that_cannot_be_read_refuse_the_token_and_say_so_to_who_is_logged_in() -> None:
    def broken() -> Site:
        raise SettingsError("site.yaml:3: no such thing")

    client = TestClient(Starlette(routes=routes(broken, logged_in)), raise_server_exceptions=False)
    assert client.get("/metrics", headers=BEARER).status_code == 401
    reply = client.get("/health", headers=LOGIN)
    assert (reply.status_code, reply.json()) == (503, {"status": "failed", "detail": "site.yaml:3: no such thing"})
