"""The DAGs of stage-out through whole runs: real copies by the embedded FTS between two folders, in a small ledger."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout
from sqlalchemy import select

from include.federation.records import hold, release
from include.fts.client import FtsClient
from include.settings.load import load
from include.settings.secrets import EnvSecrets
from include.site.site import Site
from include.stageout.blocks import close_workflow
from include.stageout.components import reporter
from include.stageout.files import FileToTransfer, StageoutRequest
from include.stageout.opening import open_stageout
from include.stageout.requests import record_request
from include.stageout.status import TransferFilter, TransferStatus, list_transfers
from include.stageout.tables import stageout_jobs
from operators import stageout
from operators.lease_task import Killed
from operators.stageout import NICENESS, StageoutPassOperator
from sensors.sites import RegisteredSensor, SiteHealthSensor
from tests.dags.conftest import MiniSite, read_dags, record
from tests.fakes.ftsservice import FtsService
from tests.fakes.taskcontext import task_context

DAGS = (
    "stage_out_submit", "stage_out_monitor", "stage_out_read_back", "stage_out_finish", "stage_out_census",
    "stage_out_analytics", "site_health",
)  # fmt: skip
AREA, HOME = "/store/temp/user/ada", "/store/user/ada"


@dataclass
class StagedSite:
    """Two folders as sites, an FTS that copies between them, and a clock that a test moves."""

    mini: MiniSite
    folder: Path
    later: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def path(self, site: str, name: str) -> Path:
        return self.folder / "sites" / site / name.removeprefix("/store/")

    def request(self, workflow: str, *names: str, absent: str = "", dataset: str | None = None) -> None:
        """Leave files in the temporary area of the north, and request them in the south. `absent`: is not there."""
        files = []
        for name in names:
            content, source = f"{workflow}/{name}".encode(), f"{AREA}/{workflow}/{name}"
            if name != absent:
                path = self.path("north", source)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            checksum = f"adler32:{zlib.adler32(content):08x}"
            files.append(
                FileToTransfer(
                    "north", source, "south", f"{HOME}/{workflow}/{name}", size=len(content), checksum=checksum,
                    dataset=dataset,
                )
            )  # fmt: skip
        request = StageoutRequest("ada", workflow, workflow, tuple(files))
        record_request(self.mini.opened.ledger, request, now=self.now())

    def found(self, workflow: str) -> dict[str, TransferStatus]:
        """The transfers of a workflow, by the last part of their names."""
        rows = list_transfers(self.mini.opened.ledger, TransferFilter(workflow=workflow)).rows
        return {row.destination_name.rpartition("/")[2]: row for row in rows}

    def states(self, workflow: str) -> Counter[str]:
        return Counter(row.state.value for row in self.found(workflow).values())

    def run(self, dag_id: str) -> dict[str, str]:
        """The states of the tasks of a run, a minute after what was before."""
        self.later += timedelta(minutes=1)
        return self.mini.run(dag_id).tasks

    def client(self) -> FtsClient:
        return open_stageout(self.mini.opened, "a test").fts("fts_default", "ada", "north", "south")

    def await_fts(self) -> None:
        """Wait until FTS has ended all jobs of the ledger that it knows."""
        with self.mini.opened.ledger.connect() as connection:
            job_ids = list(connection.scalars(select(stageout_jobs.c.fts_id)))
        client = self.client()
        while not all(job.job_state.terminal for job in client.status(job_ids, files=()).jobs.values()):
            pass


@pytest.fixture(scope="module")
def _opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MiniSite, Path]]:
    folder = tmp_path_factory.mktemp("staged")
    with FtsService(folder, "--folder", str(folder / "sites")) as fts:
        rules = {
            site: [{"prefix": "/store", "url": f"file://{folder}/sites/{site}"}] for site in ("north", "south")
        }  # fmt: skip
        settings = {
            "ledger": f"sqlite:///{folder}/ledger.db",
            "paths": {"var": str(folder)},
            "sites": {
                site: {"read": rule, "write": rule, "third_party": rule, "temporary": "/store/temp", "clean": True}
                for site, rule in rules.items()
            },
        }
        (folder / "site.yaml").write_text(json.dumps(settings))
        environment = {
            "NIGHTSHIFT_CONFIG": str(folder / "site.yaml"),
            "AIRFLOW_CONN_FTS_DEFAULT": json.dumps({"conn_type": "fts", "host": fts.url}),
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            opened, bag = Site(load(), EnvSecrets({**os.environ})), read_dags("stage_out", "site_health")
        record(bag)
        yield MiniSite(folder, opened, "", bag, environment), folder
        opened.ledger.dispose()


@pytest.fixture
def staged(_opened: tuple[MiniSite, Path], monkeypatch: pytest.MonkeyPatch) -> StagedSite:
    made = StagedSite(*_opened)
    for name, value in made.mini.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stageout, "clock", made.now)
    return made


def test_only_the_dags_of_stage_out_are_there_without_repositories(staged: StagedSite) -> None:
    assert {name for name in staged.mini.dags if name.startswith(("stage_out", "site_"))} == set(DAGS)


def test_sites_are_checked_and_a_sensor_waits_for_those_that_are_held(staged: StagedSite) -> None:
    sensor = SiteHealthSensor(task_id="usable", sites="north", timeout=0.5, poke_interval=0.1, deferrable=False)
    assert sensor.execute(task_context()) == {"north": "ok"}
    assert staged.run("site_health") == {"check": "success"}
    hold(staged.mini.opened.ledger, "north", by="ann", reason="disks are moved", now=staged.now())
    with pytest.raises(AirflowSensorTimeout):
        sensor.execute(task_context())
    staged.request("kept-out", "a")
    staged.run("stage_out_submit")
    assert staged.found("kept-out")["a"].reason == "held: north: it is held by ann: disks are moved"
    release(staged.mini.opened.ledger, "north", by="ann", reason="", now=staged.now())
    staged.run("stage_out_submit")
    assert staged.states("kept-out") == {"submitted": 1}


def test_files_are_submitted_verified_registered_and_their_sources_removed(staged: StagedSite) -> None:
    staged.request("whole", "a", "b", "c", absent="b", dataset="/ada/whole")
    taken = staged.path("south", f"{HOME}/whole/c")
    taken.parent.mkdir(parents=True)
    taken.write_bytes(b"of another")
    assert staged.run("stage_out_submit") == {"submit[0]": "success", "submit[1]": "success"}
    assert staged.states("whole") == {"submitted": 3}
    staged.await_fts()
    assert set(staged.run("stage_out_monitor").values()) == {"success"}
    found = staged.found("whole")
    assert {name: row.state.value for name, row in found.items()} == {"a": "done", "b": "failed", "c": "failed"}
    assert (found["b"].failure, found["c"].failure) == ("source-missing", "destination-exists")
    assert taken.read_bytes() == b"of another"
    staged.run("stage_out_finish")
    assert staged.states("whole")["done"] == 1, "its block is open"
    short = {"timeout": 0.3, "poke_interval": 0.1, "deferrable": False}
    sensor = RegisteredSensor(task_id="registered", owner="ada", workflow="whole", allow_failed=True, **short)
    for waiting in (sensor, RegisteredSensor(task_id="other", owner="ada", workflow="none", **short)):
        with pytest.raises(AirflowSensorTimeout):
            waiting.execute(task_context())
    close_workflow(staged.mini.opened.ledger, "ada", "whole", now=staged.now())
    assert set(staged.run("stage_out_finish").values()) == {"success"}
    assert staged.states("whole") == {"cleaned": 1, "failed": 2}
    assert sensor.execute(task_context()) == {"cleaned": 1, "failed": 2}
    with pytest.raises(AirflowSensorTimeout):
        RegisteredSensor(task_id="all", owner="ada", workflow="whole", **short).execute(task_context())
    assert staged.path("south", f"{HOME}/whole/a").read_bytes() == b"whole/a"
    assert not staged.path("north", f"{AREA}/whole/a").exists()
    assert staged.path("north", f"{AREA}/whole/c").exists(), "the source of a failed transfer stays"


def test_a_large_copy_is_read_by_a_dag_of_its_own(staged: StagedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "READ_IN_PASS", 3)
    staged.request("large", "a", "b")
    staged.run("stage_out_submit")
    staged.await_fts()
    staged.run("stage_out_monitor")
    assert staged.states("large") == {"copied": 2}
    assert staged.run("stage_out_read_back") == {"read": "success"}
    assert staged.states("large") == {"done": 2}


def test_a_run_with_nothing_to_do_changes_nothing(staged: StagedSite) -> None:
    before = staged.found("whole")
    for dag_id in ("stage_out_submit", "stage_out_census", "stage_out_analytics"):
        tasks = staged.run(dag_id)
        assert set(tasks.values()) == {"skipped" if name == "delete_runs" else "success" for name in tasks}
    assert staged.found("whole") == before


def test_a_killed_task_loses_and_doubles_nothing(staged: StagedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    staged.request("killed", *"abcd")
    operator = StageoutPassOperator(task_id="submit", components=["submit"], seconds=50, batch=100)
    sent = FtsClient.submit

    def killed(client: FtsClient, *arguments: Any) -> str:
        job_id = sent(client, *arguments)
        operator.on_kill()
        return job_id

    with monkeypatch.context() as patch:
        patch.setattr(FtsClient, "submit", killed)
        with pytest.raises(Killed):
            operator.execute(task_context())
    assert staged.states("killed") == {"claimed": 4}
    staged.later += timedelta(minutes=10)
    staged.run("stage_out_submit")
    staged.await_fts()
    staged.run("stage_out_monitor")
    staged.run("stage_out_finish")
    assert staged.states("killed") == {"cleaned": 4}
    with staged.mini.opened.ledger.connect() as connection:
        job_ids = list(connection.scalars(select(stageout_jobs.c.fts_id)))
    copies = Counter(
        file.dest_surl for job in staged.client().status(job_ids).jobs.values() for file in job.files
        if "/killed/" in file.dest_surl
    )  # fmt: skip
    assert sorted(copies.values()) == [1, 1, 1, 1]
    assert operator.on_kill() is None  # type: ignore[func-returns-value]


def test_a_pass_ends_with_its_time(staged: StagedSite) -> None:
    staged.request("late", "a")
    operator = StageoutPassOperator(task_id="submit", components=["submit"], seconds="0.000001", batch="1")
    assert operator.execute(task_context())["ended"] == "the time is over"
    assert staged.states("late") == {"new": 1}


def test_a_pass_steps_back_on_its_machine_as_preparing_does(
    staged: StagedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged.request("nice", "a")
    operator = StageoutPassOperator(task_id="submit", components=["submit"], seconds=50, batch=100)
    sent, seen = FtsClient.submit, []

    def noted(client: FtsClient, *arguments: Any) -> str:
        seen.append(os.getpriority(os.PRIO_PROCESS, 0))
        return sent(client, *arguments)

    monkeypatch.setattr(FtsClient, "submit", noted)
    with ThreadPoolExecutor(1) as thread:  # only root may go back
        thread.submit(operator.execute, task_context()).result()
    assert seen == [max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS)]
