"""`preflight` and `night_watch` through `dag.test()`, on a site with a real store and gateway."""

from __future__ import annotations

import json

import pytest

from include.monitoring.alerts import ticks
from include.notify.records import alerts_since
from operators.base import clock, log_of
from tests.dags.conftest import FQRN, MiniSite

pytestmark = pytest.mark.server("weed")


def test_a_site_that_is_well_passes_the_look_before_the_night(site: MiniSite) -> None:
    run = site.run("preflight")
    assert run.state == "success", run
    assert site.leases() == []


def test_a_gateway_key_that_is_wrong_fails_it_and_is_told_with_the_cure(
    site: MiniSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock()
    wrong = {**json.loads(site.environment["AIRFLOW_CONN_GATEWAY"]), "password": "not-it"}
    monkeypatch.setitem(site.environment, "AIRFLOW_CONN_GATEWAY", json.dumps(wrong))
    run = site.run("preflight", slot="main")
    assert (run.state, run.tasks) == ("failed", {"look": "failed"})
    (alert,) = [one for one in alerts_since(site.opened.ledger, began) if "key worker" in one.title]
    assert "Correct login and password of connection 'gateway'" in alert.text
    assert "not-it" not in alert.text


def test_a_night_that_airflow_never_began_is_told(site: MiniSite, monkeypatch: pytest.MonkeyPatch) -> None:
    began = clock().replace(hour=12)  # whatever time it is, the slot's last night was to begin hours ago
    monkeypatch.setattr("operators.watch.clock", lambda: began)
    run = site.run("night_watch")
    assert run.state == "success", run
    (tick,) = ticks(site.opened.settings.slot("main"), began)
    keys = {one.key for one in alerts_since(site.opened.ledger, began)}
    assert f"not-started:main:{tick.date}" in keys
    assert not [key for key in keys if key.startswith("stuck-lease")], FQRN


@pytest.mark.parametrize(
    ("dag_id", "conf", "why"),
    [
        (
            "publication",
            {"repository": FQRN, "path": "/alerts/1", "source": "s3://elsewhere/1.tar.gz"},
            "source-not-allowed",
        ),
        ("undo_build", {"slot": "main", "build_id": "none", "reason": "a test"}, "build-unknown"),
    ],
)
def test_a_run_by_hand_that_fails_sends_an_alert_with_its_cause(
    site: MiniSite, dag_id: str, conf: dict[str, str], why: str
) -> None:
    began = clock()
    run = site.run(dag_id, **conf)
    assert run.state == "failed", run
    (alert,) = [one for one in alerts_since(site.opened.ledger, began) if one.event == "run-failed"]
    assert alert.key == f"run-failed:{run.name}"
    assert alert.title.endswith(f"of {dag_id} failed: {why}")
    assert log_of(run.name) in alert.text


def test_a_run_is_found_in_airflows_pages_by_its_name_in_the_ledger() -> None:
    assert log_of("night/manual__2026-01-01T00:00:00+00:00").endswith(
        "/dags/night/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"
    )
