"""Nights under the real Airflow that nobody starts: their index grows after the first pass; links move at the end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial

import pytest

from include.cvmfs.format.paths import link_target
from include.notify import Alert
from tests.e2e.deployment import FQRN, RUN_S, TICK, Deployment
from tests.fakes.alerts import alerts_since
from tests.fakes.builds import Build, tree

pytestmark = [pytest.mark.server("weed"), pytest.mark.slow]

APPEARS_S = 240.0
FOLDER = "/nightlies/evening"


@dataclass(frozen=True)
class Night:
    """A night of a slot, and the ids of the runs of its two passes."""

    slot: str
    day: date
    first: str
    second: str

    @property
    def dag_id(self) -> str:
        return f"nightly_install_{self.slot}"

    @property
    def events(self) -> str:
        return f"index_events_{self.slot}"

    def build(self, *projects: str, complete: bool = False) -> Build:
        made = Build(self.day.isoformat(), slot=self.slot, index={"complete": complete})
        for project in projects:
            made.add(project, "x86_64", tree({f"lib/{project}.so": project.encode() * 100}))
        return made


def tell(deployment: Deployment, night: Night) -> None:
    """Do what a builder does after it has written an index."""
    (asset,) = deployment.rest("GET", "/assets", params={"name_pattern": f"index_{night.slot}"})["assets"]
    event = {"asset_id": asset["id"], "extra": {"date": night.day.isoformat()}}
    deployment.rest("POST", "/assets/events", json=event)


def states(deployment: Deployment, night: Night, run_id: str) -> dict[str, str]:
    return {name: one.state.value for name, one in deployment.publications(night.dag_id, run_id).items()}


def runs(deployment: Deployment, night: Night) -> list[str]:
    return [run["dag_run_id"] for run in deployment.api.runs(night.dag_id, prefix="")]


def begun(deployment: Deployment, night: Night, run_id: str) -> bool:
    return run_id in runs(deployment, night)


def waits(deployment: Deployment, night: Night) -> bool:
    tasks = {one["task_id"]: one["state"] for one in deployment.tasks(night.dag_id, night.second)}
    return tasks.get("find_build") == "deferred"


def links(deployment: Deployment) -> dict[str, str]:
    """Return the targets of the links of the scheduled slot."""
    seen, found = deployment.site.head(FQRN).revision, {}
    for name in ("latest", f"{TICK:%a}"):
        entry = seen.lookup(f"{FOLDER}/{name}")
        if entry is not None:
            found[name] = link_target(f"{FOLDER}/{name}", entry.symlink)
    return found


def test_nights_go_on_after_their_first_pass_when_they_are_told_of_more_and_links_move_at_the_end(
    deployment: Deployment,
) -> None:
    """The scheduler begins one of them, its first artifact the other."""
    today = datetime.now(UTC).date()
    of_artifact, of_schedule = f"night__{today}__first", f"night__{TICK.date()}__{TICK:%H%M}"
    evening = Night("evening", TICK.date(), f"scheduled__{TICK.isoformat()}", f"{of_schedule}__pass2")
    early = Night("early", today, of_artifact, f"{of_artifact}__pass2")
    nights = (evening, early)
    for night in nights:
        deployment.drop(night.build("Gaudi"))
        deployment.api.wait_for_dag(night.events, timeout_s=APPEARS_S)
        for dag_id in (night.dag_id, night.events):
            deployment.api.unpause(dag_id)
    deployment.read_files([early.events], APPEARS_S)  # only then Airflow starts the watcher of an unpaused DAG

    for night in nights:
        deployment.wait_until(partial(begun, deployment, night, night.first), f"run {night.first}", APPEARS_S)
        assert deployment.follow(night.dag_id, night.first).state == "success"
        assert states(deployment, night, night.first) == {"Gaudi/x86_64": "published"}
        deployment.wait_until(partial(begun, deployment, night, night.second), f"run {night.second}", APPEARS_S)
        deployment.wait_until(partial(waits, deployment, night), f"{night.second} waits for more", APPEARS_S)
    assert links(deployment) == {}
    # a task that waits has a log, of the task and of its trigger
    said = partial(deployment.task_log, evening.dag_id, evening.second, "find_build")
    deployment.wait_until(lambda: '"logger": "triggers.night' in said(), "the trigger logs", APPEARS_S)
    log = said()
    assert "the index is not complete; more is waited for until" in log
    assert "Could not read served logs" not in log

    # the whole index, and an event for it: the next look of its own would be ten minutes away in the end
    for night in nights:
        deployment.drop(night.build("Gaudi", "LHCb", complete=True))
        tell(deployment, night)
    for night in nights:
        assert deployment.follow(night.dag_id, night.second).state == "success"
        assert states(deployment, night, night.second) == {"Gaudi/x86_64": "unchanged", "LHCb/x86_64": "published"}
        # the night of the first artifact was told of twice, by the watcher and by the builder, and begun once
        assert runs(deployment, night) == [night.second, night.first]
    built = f"{FOLDER}/{evening.build().build_id}"
    assert links(deployment) == {"latest": built, f"{TICK:%a}": built}
    assert deployment.leases() == []


def test_a_command_installs_a_build_and_ends_with_the_exit_code_of_its_night_whose_failure_is_an_alert(
    deployment: Deployment,
) -> None:
    date, begun_at = "2026-11-16", datetime.now(UTC) - timedelta(seconds=1)
    deployment.drop(Build(date).add("Gaudi", "x86_64", tree({"lib/own.so": b"of that night"})))
    deployment.unpause_quietly("nightly_install_main")
    before = deployment.revision()
    done = deployment.run("nightly", "install", "--slot", "main", "--date", date, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "success" in done.stdout
    assert deployment.revision() > before
    absent = deployment.run("nightly", "install", "--slot", "main", "--date", "2026-02-01", "--wait")
    assert absent.returncode == 1, absent.stdout
    assert "failed" in absent.stdout
    run = "nightly_install_main/night__2026-02-01__1"

    def alerts() -> list[Alert]:
        """The DAG processor sends one, after the run."""
        return [alert for alert in alerts_since(deployment.site.ledger, begun_at) if alert.key == f"run-failed:{run}"]

    deployment.wait_until(lambda: bool(alerts()), "an alert", RUN_S)
    (alert,) = alerts()
    assert f"{deployment.lab.airflow_url}/dags/{run.replace('/', '/runs/')}" in alert.text
