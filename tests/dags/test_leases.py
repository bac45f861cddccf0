"""The leases DAG on the real services: dead tasks' leases end, and nobody else's."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG

from tests.dags.conftest import FQRN, KEY, MiniSite

pytestmark = pytest.mark.server("weed")


@pytest.fixture(scope="module")
def dead(site: MiniSite) -> str:
    """The holder's name of a task that ended."""
    run = site.run("preflight")  # `dag.test()` forgets the run before of the DAG of the tests
    assert run.state == "success", run
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
