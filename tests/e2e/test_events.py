"""Events under the real Airflow: the first artifact begins a night, and one that waits hears of a new index at once."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from tests.e2e.deployment import Deployment
from tests.fakes.builds import Build, tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

SLOT, DAG, EVENTS = "early", "nightly_install_early", "index_events_early"
APPEARS_S = 240.0


def build(day: date, *projects: str, complete: bool = False) -> Build:
    made = Build(day.isoformat(), slot=SLOT, index={"complete": complete})
    for project in projects:
        made.add(project, "x86_64", tree({f"lib/{project}.so": project.encode() * 100}))
    return made


def tell(deployment: Deployment, day: date) -> None:
    """What a builder does after it has written an index."""
    (asset,) = deployment.rest("GET", "/assets", params={"name_pattern": f"index_{SLOT}"})["assets"]
    event = {"asset_id": asset["id"], "extra": {"date": day.isoformat()}}
    deployment.rest("POST", "/assets/events", json=event)


def test_a_night_begins_with_its_first_artifact_and_goes_on_when_it_is_told_of_the_next(
    deployment: Deployment,
) -> None:
    day = datetime.now(UTC).date()
    first, second = f"night__{day}__first", f"night__{day}__first__pass2"
    deployment.drop(build(day, "Gaudi"))
    deployment.api.wait_for_dag(EVENTS, timeout_s=APPEARS_S)
    # nobody triggers anything: the watcher of the triggerer finds the index
    for dag_id in (DAG, EVENTS):
        deployment.api.unpause(dag_id)
    deployment.read_files([EVENTS], APPEARS_S)  # only then Airflow starts the watcher of an unpaused DAG

    def there(run_id: str) -> bool:
        return any(run["dag_run_id"] == run_id for run in deployment.api.runs(DAG, prefix=run_id))

    deployment.wait_until(lambda: there(first), "the run that the first artifact begins", APPEARS_S)
    assert deployment.follow(DAG, first).state == "success"
    assert {name: one.state.value for name, one in deployment.publications(DAG, first).items()} == {
        "Gaudi/x86_64": "published"
    }
    deployment.wait_until(lambda: there(second), "the run of the next pass", APPEARS_S)

    def waits() -> bool:
        tasks = {one["task_id"]: one["state"] for one in deployment.tasks(DAG, second)}
        return tasks.get("find_build") == "deferred"

    deployment.wait_until(waits, "the pass to wait for more", APPEARS_S)
    # the whole index, and an event for it: the next look of its own would be ten minutes away in the end
    deployment.drop(build(day, "Gaudi", "LHCb", complete=True))
    tell(deployment, day)
    assert deployment.follow(DAG, second).state == "success"
    assert {name: one.state.value for name, one in deployment.publications(DAG, second).items()} == {
        "Gaudi/x86_64": "unchanged",
        "LHCb/x86_64": "published",
    }
    # told twice, by the watcher and by the builder, and begun once
    assert [run["dag_run_id"] for run in deployment.api.runs(DAG, prefix="night__")] == [second, first]
    assert "index_events" not in str(deployment.leases())
