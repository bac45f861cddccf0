"""Files of a task: a request of the ledger that passes of the real components carry out; and waiting for FTS jobs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from hooks.task import OnSite
from include.fts.client import FtsClient
from include.fts.errors import FTS_JOB_FAILED, JobUnknown
from include.fts.jobs import FtsFile, FtsJob
from include.ledger.migrate import migrate
from include.site.site import Site
from include.stageout.errors import (
    DIRECT_REFUSED,
    FILE_REFUSED,
    FILES_FAILED,
    FILES_UNTRANSFERABLE,
    NO_PASS,
    NO_SITE_URL,
)
from include.stageout.opening import open_stageout
from include.stageout.passes import COMPONENTS, note_passes, run_pass
from include.stageout.status import TransferFilter, TransferStatus, list_transfers
from operators import fts as operators
from operators.fts import FtsTransferOperator
from operators.lease_task import Killed, WaitedTooLong
from sensors.fts import FtsJobSensor
from tests.fakes.ftsserver import FtsServer
from tests.fakes.ledgers import from_a_template
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context
from triggers import fts as triggers
from triggers.fts import TransfersTrigger

A, B = (f"davs://here.example.org/store/{name}" for name in "ab")
SOURCE = "davs://there.example.org/store"
FILES = [[f"{SOURCE}/a", A], [f"{SOURCE}/b", B]]
EXISTS = "DESTINATION [17] Destination file exists and overwrite is not enabled"
BROKEN = "TRANSFER [104] Connection reset by peer"
MISSING = "SOURCE [2] Result HTTP 404 : File not found"


@dataclass
class Deployment:
    """A site with the sites Here and There, a ledger, an FTS server that copies nothing by itself, and a clock."""

    fts: FtsServer
    site: Site
    later: timedelta = field(default_factory=timedelta)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later

    def passes(self) -> None:
        """A pass of each component, some minutes after the last."""
        self.later += timedelta(minutes=3)
        note_passes(self.site.ledger, COMPONENTS, now=self.now())
        run_pass(open_stageout(self.site, "a test"), COMPONENTS, now=self.now, left=lambda: True).require_sound()

    def transfers(self) -> list[TransferStatus]:
        return sorted(list_transfers(self.site.ledger, TransferFilter()).rows, key=lambda row: row.id)

    def states(self) -> set[str]:
        return {row.state.value for row in self.transfers()}

    def job(self) -> str:
        """The newest job of FTS."""
        return list(self.fts.jobs)[-1]

    def copied(self, **reasons: str) -> None:
        """All is submitted, and FTS ends it, these files by a failure; the passes see it through."""
        self.passes()
        self.fts.end(self.job(), **reasons)
        for _ in range(3):
            self.passes()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    with FtsServer() as server:
        rules = [{"prefix": "/", "url": "davs://here.example.org"}]
        there = [{"prefix": "/", "url": "davs://there.example.org"}, {"prefix": "/", "url": "s3://there.example.org"}]
        sites = {"Here": {"third_party": rules}, "There": {"third_party": there}}
        (tmp_path / "site.yaml").write_text(json.dumps({"ledger": f"sqlite:///{tmp_path}/ledger.db", "sites": sites}))
        monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
        monkeypatch.setenv("AIRFLOW_CONN_FTS_DEFAULT", json.dumps({"conn_type": "fts", "host": server.url}))
        monkeypatch.setenv("AIRFLOW_CONN_FTS_OTHER", json.dumps({"conn_type": "fts", "host": server.url}))
        from_a_template(monkeypatch)
        deployment = Deployment(server, OnSite().site())
        migrate(deployment.site.ledger)
        monkeypatch.setattr(operators, "clock", deployment.now)
        yield deployment
        deployment.site.ledger.dispose()


def operator(files: Any = FILES, **more: Any) -> FtsTransferOperator:
    return FtsTransferOperator(task_id="copy", files=files, **{"deferrable": True, "retries": 2, "owner": "ann"} | more)


def begin(files: Any = FILES, try_number: int = 1, max_tries: int = 2, **more: Any) -> Callable[[], dict[str, Any]]:
    """A try until it waits; how it ends when it comes back from its wait, in another process."""
    with pytest.raises(TaskDeferred) as deferred:
        operator(files, **more).execute(task_context(try_number=try_number, max_tries=max_tries))
    waiting = deferred.value
    path, row = waiting.trigger.serialize()
    assert (path, json.loads(json.dumps(row))) == ("triggers.fts.TransfersTrigger", row)
    event = {"found": True, "reason": "ended", "since": row["since"]}
    task = operator(files, **more)
    return lambda: task.ended(task_context(try_number=try_number), event, **waiting.kwargs or {})


def test_files_are_copied_by_the_passes_and_accounted(here: Deployment) -> None:
    ended = begin(priority=4, fts_conn_id="fts_other", verify="target")
    assert here.states() == {"new"}
    here.copied()
    assert ended() == {"files": 2, "bytes": 0, "existing": 0}
    (job,) = here.fts.jobs.values()
    params = job["params"]
    assert (params["overwrite"], params["priority"], params["verify_checksum"]) == (False, 4, "target")
    (owners, workflows) = ({row.owner for row in here.transfers()}, {row.workflow for row in here.transfers()})
    assert (owners, workflows, here.states()) == ({"ann"}, {"night/run-1"}, {"kept"})


def test_names_at_sites_become_urls_of_a_protocol_that_both_ends_have(here: Deployment) -> None:
    sites = {"source": "There:/store/a", "destination": "Here:/store/a", "size": "7", "checksum": "ADLER32:0a"}
    begin([sites, ["There:/store/b", "s3://other.example.org/b"], [f"{SOURCE}/c", "Here:/store/c"]])
    here.passes()
    files = {file["dest_surl"]: file for job in here.fts.jobs.values() for file in job["files"]}
    assert {url: file["source_surl"] for url, file in files.items()} == {
        A: "davs://there.example.org/store/a",
        "s3://other.example.org/b": "s3://there.example.org/store/b",
        "davs://here.example.org/store/c": f"{SOURCE}/c",
    }
    assert (files[A]["filesize"], files[A]["checksum"]) == (7, "adler32:0000000a")


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ([], DIRECT_REFUSED),
        ("a", DIRECT_REFUSED),
        ([[A]], DIRECT_REFUSED),
        ([{"source": A, "destination": B, "extra": 1}], DIRECT_REFUSED),
        ([{"source": A, "destination": B, "size": -1}], DIRECT_REFUSED),
        ([{"source": A, "destination": B, "checksum": "no sum"}], DIRECT_REFUSED),
        ([["file:///etc/passwd", A]], DIRECT_REFUSED),
        ([["Nowhere:/a", A]], DIRECT_REFUSED),
        ([[A, f"{B}{'b' * 1024}"]], DIRECT_REFUSED),
        ([FILES[0], ["There:/a/../b", A]], FILE_REFUSED),
        ([["There:/a", "root://other.example.org/a"]], NO_SITE_URL),
        ([["There:/a", A]] * 1001, DIRECT_REFUSED),
    ],
)
def test_malformed_files_are_refused_before_anything_is_recorded(here: Deployment, files: Any, error: Any) -> None:
    with refused(error) as caught:
        operator(files).execute(task_context())
    assert here.transfers() == []
    if error is FILE_REFUSED:
        assert caught.value.__notes__ == ["in file 1 of the task"]


def test_a_task_fails_after_10_minutes_without_a_pass_and_names_the_dag(here: Deployment) -> None:
    ended = begin()
    here.later += timedelta(minutes=9)
    with pytest.raises(TaskDeferred):
        ended()
    note_passes(here.site.ledger, ["monitor", "register"], now=here.now())
    here.later += timedelta(minutes=2)
    with refused(NO_PASS, retryable=False) as caught:
        ended()
    assert "DAG stage_out_submit" in str(caught.value)
    assert here.states() == {"killed"}
    assert begin(try_number=2, max_tries=3)
    assert here.states() == {"new", "killed"}, "a cleared task begins again"


def test_the_next_try_has_the_same_transfers_and_tries_again_what_failed(here: Deployment) -> None:
    files = [*FILES, [f"{SOURCE}/c", "davs://here.example.org/store/c"]]
    ended = begin(files)
    here.copied(b=MISSING)
    with refused(FILES_UNTRANSFERABLE, retryable=False) as caught:
        ended()
    assert "File not found" in str(caught.value)
    ended = begin(files, try_number=2)
    here.copied()
    assert ended()["files"] == 3
    assert [len(job["files"]) for job in here.fts.jobs.values()] == [3, 1]


def test_a_failure_that_may_pass_is_retried_by_the_ledger_and_replaces_its_own_part(here: Deployment) -> None:
    ended = begin()
    here.copied(b=BROKEN)
    here.copied()
    assert ended()["files"] == 2
    assert [job["params"]["overwrite"] for job in here.fts.jobs.values()] == [False, True]


def test_a_file_that_exists_at_a_url_is_never_replaced_but_by_overwrite(here: Deployment) -> None:
    ended = begin(FILES[:1])
    here.copied(a=EXISTS)
    with refused(FILES_UNTRANSFERABLE):
        ended()
    begin(FILES[:1], overwrite=True)
    here.passes()
    assert here.fts.jobs[here.job()]["params"]["overwrite"]


def test_a_copy_of_another_size_or_checksum_is_copied_again(here: Deployment) -> None:
    files = [{"source": f"{SOURCE}/a", "destination": A, "size": 3, "checksum": "adler32:0a"}]
    ended = begin(files)
    for reported in ({"filesize": 4}, {"filesize": 3, "checksum": "adler32:0b"}):
        here.passes()
        here.fts.jobs[here.job()]["files"][0] |= reported
        here.fts.end(here.job())
        here.passes()
        assert "mismatch" in here.transfers()[-1].reason
        here.later += timedelta(hours=1)
        here.passes()
    here.passes()
    here.fts.jobs[here.job()]["files"][0] |= {"filesize": 3, "checksum": "ADLER32:000A"}
    here.copied()
    assert ended() == {"files": 1, "bytes": 3, "existing": 0}
    assert [job["params"]["overwrite"] for job in here.fts.jobs.values()] == [False, True, True]


def test_urls_are_shown_without_what_their_queries_hide(here: Deployment) -> None:
    ended = begin([[f"{SOURCE}/a?sig=hidden", f"{A}?token=hidden"]])
    here.passes()
    for file in here.fts.jobs[here.job()]["files"]:
        assert "hidden" in file["source_surl"]
        file |= {"file_state": "FAILED", "reason": MISSING}
    here.fts.jobs[here.job()]["job_state"] = "FAILED"
    here.passes()
    with refused(FILES_UNTRANSFERABLE) as caught:
        ended()
    assert "hidden" not in f"{caught.value} {here.transfers()}"


def test_a_cleared_task_copies_all_again(here: Deployment) -> None:
    ended = begin()
    here.copied()
    ended()
    ended = begin(try_number=2, max_tries=3)
    here.copied()
    assert ended()["files"] == 2
    assert len(here.fts.jobs) == 2
    assert [row.archived for row in here.transfers()] == [True, True, False, False]


def test_a_destination_of_another_task_that_copies_is_waited_for(here: Deployment) -> None:
    begin()
    with refused(FILES_FAILED, retryable=True):
        operator(overwrite=True).execute(task_context())


def test_a_job_that_fts_has_forgotten_is_submitted_again(here: Deployment) -> None:
    ended = begin()
    here.passes()
    here.fts.jobs.clear()
    here.passes()
    assert here.states() == {"retry-wait"}
    here.later += timedelta(days=3)
    here.copied()
    here.copied()
    assert ended()["files"] == 2


def test_the_task_itself_waits_where_it_is_not_deferrable_and_transfers_are_killed_at_the_limit(
    here: Deployment,
) -> None:
    waits = operator(deferrable=False, timeout=0.05, poll_interval=0.01)
    with refused(WaitedTooLong):
        waits.execute(task_context())
    assert here.states() == {"killed"}


@pytest.mark.parametrize("deferred", [False, True])
def test_a_kill_ends_the_transfers_and_waits_until_fts_confirms_it(
    here: Deployment, deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = operator()
    with pytest.raises(TaskDeferred) as waiting:
        task.execute(task_context())
    here.passes()
    killed = threading.Event()
    trigger = waiting.value.trigger
    assert isinstance(trigger, TransfersTrigger)

    def kill() -> None:
        if deferred:
            asyncio.run(trigger.on_kill())
        else:
            with pytest.raises(Killed):
                task.on_kill()
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    while here.states() != {"killing"}:
        assert thread.is_alive()
    assert not killed.is_set()
    for _ in range(3):
        here.passes()
    thread.join(triggers.KILL_S)
    assert (here.states(), here.fts.jobs[here.job()]["job_state"]) == ({"killed"}, "CANCELED")
    assert operator().on_kill() is None  # type: ignore[func-returns-value]


def test_a_trigger_fires_once_all_transfers_have_ended(here: Deployment) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        operator(poll_interval=0.02).execute(task_context())
    here.copied()
    event = asyncio.run(_first(deferred.value.trigger))
    assert (event["found"], event["reason"]) == (True, "2 of 2 files have ended")


async def _first(trigger: Any) -> Any:
    return (await anext(trigger.run())).payload


def submitted(here: Deployment, name: str) -> str:
    with FtsClient(here.fts.url) as client:
        return client.submit(FtsJob((FtsFile(f"{SOURCE}/{name}", f"davs://here.example.org/store/{name}"),)))


def sensor(*job_ids: str, **more: Any) -> Any:
    wait = FtsJobSensor(task_id="wait", job_ids=list(job_ids), deferrable=True, **more)
    return wait.execute(task_context())


def test_jobs_of_others_are_waited_for_in_one_request_and_failed_ones_fail_the_sensor(here: Deployment) -> None:
    first, second = submitted(here, "a"), submitted(here, "b")
    here.fts.end(first)
    with pytest.raises(TaskDeferred):
        sensor(first, second)
    assert here.fts.count("GET", "^/jobs/") == 1
    here.fts.end(second, b=MISSING)
    with refused(FTS_JOB_FAILED, job_id=second):
        sensor(first, second)
    assert sensor(first, second, allow_failed=True) == {first: "FINISHED", second: "FAILED"}
    here.fts.archive[first] = here.fts.jobs.pop(first)
    assert FtsJobSensor(task_id="wait", job_ids=first, deferrable=False).execute(task_context()) is not None


def test_a_job_that_nobody_knows_ends_the_wait(here: Deployment) -> None:
    unknown = "01874efb-4735-4595-bc9c-591aef8240c9"
    with refused(JobUnknown, job_id=unknown):
        sensor(unknown, allow_failed=True)
