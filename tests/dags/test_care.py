"""DAGs that look after a deployment, through whole runs: what each does, and what fails it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from airflow.sdk import DAG

from include.monitoring.alerts import ticks
from include.nightlies.records import damage
from include.provenance import interventions
from operators.base import clock, log_of
from tests.dags.conftest import FQRN, KEY, MiniSite
from tests.fakes.alerts import alerts_since

pytestmark = pytest.mark.server("weed")


@pytest.fixture(scope="module")
def dead(site: MiniSite) -> str:
    """The holder's name of a task that ended: the look before the night of a site that is well."""
    run = site.run("preflight")  # `dag.test()` forgets the run before of the DAG of the tests
    assert run.state == "success", run
    assert site.leases() == []
    return f"{run.name}/look try 1"


def test_the_lease_of_a_dead_task_ends_and_all_others_stand(site: MiniSite, dead: str) -> None:
    others = {"/live": "nobody@node", "/unknown": "other/run/publish try 1", "/dead/not": "x"}
    with site.client() as client:
        leases = [client.acquire(FQRN, path, hostname=name) for path, name in others.items()]
        client.acquire(FQRN, "/dead/one", hostname=dead)
        dry = site.run("leases", dry_run=True)
        assert (dry.state, dry.tasks) == ("success", {"look": "success", "end": "skipped"})
        assert len(site.leases()) == 4
        run = site.run("leases", dry_run=False)
        assert (run.state, run.tasks) == ("success", {"look": "success", "end": "success"})
        assert site.leases() == sorted(f"{FQRN}{path}" for path in others)
        again = site.run("leases", dry_run=False)
        assert again.tasks == {"look": "success", "end": "skipped"}
        assert all(client.drop(lease) for lease in leases)


def test_a_gateway_without_an_administrators_key_for_us_fails_the_run_and_ends_nothing(
    site: MiniSite, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.client() as client, client.lease(FQRN, "/dead/two", hostname=dead):
        environment = dict(site.environment)
        environment["AIRFLOW_CONN_GATEWAY_ADMIN"] = environment["AIRFLOW_CONN_GATEWAY"]
        monkeypatch.setattr(site, "environment", environment)
        run = site.run("leases", dry_run=False)
        assert (run.state, run.tasks["end"]) == ("failed", "failed")
        assert site.leases() == [f"{FQRN}/dead/two"]


def test_it_runs_every_quarter_of_an_hour_one_at_a_time(site: MiniSite) -> None:
    dag: DAG = site.dags["leases"]
    assert dag.timetable.expression == "*/15 * * * *"  # type: ignore[attr-defined]
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert KEY[1] not in (dag.doc_md or "")


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
    monkeypatch.setattr("operators.operations.clock", lambda: began)
    run = site.run("night_watch")
    assert run.state == "success", run
    (tick,) = ticks(site.opened.settings.slot("main"), began)
    keys = {one.key for one in alerts_since(site.opened.ledger, began)}
    assert f"not-started:main:{tick.date}" in keys
    assert not [key for key in keys if key.startswith("stuck-lease")], FQRN


def test_a_run_by_hand_that_fails_sends_an_alert_with_its_cause(site: MiniSite) -> None:
    began = clock()
    run = site.run("undo_build", slot="main", build_id="none", reason="a test")
    assert run.state == "failed", run
    (alert,) = [one for one in alerts_since(site.opened.ledger, began) if one.event == "run-failed"]
    assert alert.key == f"run-failed:{run.name}"
    assert alert.title.endswith("of undo_build failed: build-unknown")
    assert log_of(run.name) in alert.text


def test_a_run_is_found_in_airflows_pages_by_its_name_in_the_ledger() -> None:
    assert log_of("night/manual__2026-01-01T00:00:00+00:00").endswith(
        "/dags/night/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00"
    )


def test_a_whitelist_that_ends_too_soon_fails_its_task_and_no_other_of_a_sound_repository(site: MiniSite) -> None:
    file, revision = site.folder / "site.yaml", site.revision()
    before = file.read_text()
    file.write_text(before.replace("    gateway: gateway\n", "    gateway: gateway\n    care: {whitelist_days: 90}\n"))
    try:
        run = site.run("repository_care")
    finally:
        file.write_text(before)
    assert run.state == "failed", run
    assert run.tasks == {
        "care.whitelist[0]": "failed",
        "care.prune_tags[0]": "skipped",  # there is no rule for its tags
        "care.unfinished[0]": "success",
        "care.check[0]": "success",
        "care.replicas[0]": "skipped",
    }
    assert site.revision() == revision
    assert damage.of_repository(site.opened.ledger, FQRN) == ()


def test_a_repository_is_frozen_and_thawed_and_the_ledger_says_why(site: MiniSite) -> None:
    frozen = site.run("intervene", action="freeze", repository=FQRN, reason="a disk is replaced", hours=2)
    try:
        assert frozen.state == "success", frozen
        found = interventions.standing(site.opened, FQRN, datetime.now(UTC)).frozen
        assert found is not None
        assert (found.reason, found.who.endswith("@airflow")) == ("a disk is replaced", True)
        assert found.until is not None
        assert (found.until - found.since).total_seconds() == 7200
    finally:
        thawed = site.run("intervene", action="thaw", repository=FQRN)
    assert thawed.state == "success", thawed
    assert interventions.standing(site.opened, FQRN, datetime.now(UTC)).frozen is None
    kinds = [one.kind for one in interventions.interventions_of(site.opened.ledger, FQRN, limit=2)]
    assert kinds == ["thaw", "freeze"]
