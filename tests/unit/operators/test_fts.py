"""Files that a task hands to FTS: each copied once, whatever replies, tries and jobs are lost; and waiting for jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from include.fts.errors import FTS_JOB_FAILED, JobUnknown, StorageBanned
from include.fts.states import JobState
from include.stageout.errors import (
    DIRECT_REFUSED,
    FILE_REFUSED,
    FILES_FAILED,
    FILES_UNTRANSFERABLE,
    NO_SITE_URL,
    StageoutError,
)
from operators.fts import FtsTransferOperator
from operators.lease_task import Killed, WaitedTooLong
from sensors.fts import FtsJobSensor
from tests.fakes.ftsserver import FtsServer
from tests.fakes.refused import refused
from tests.fakes.taskcontext import task_context
from triggers.checks import CHECKS
from triggers.fts import FtsJobTrigger

A, B = (f"davs://here.example.org/store/{name}" for name in "ab")
SOURCE = "davs://there.example.org/store"
FILES = [[f"{SOURCE}/a", A], [f"{SOURCE}/b", B]]
EXISTS = "DESTINATION [17] Destination file exists and overwrite is not enabled"
BROKEN = "TRANSFER [104] Connection reset by peer"
TIMED_OUT = "TRANSFER [110] Operation timed out"
MISSING = "SOURCE [2] Result HTTP 404 : File not found"


@pytest.fixture
def fts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FtsServer]:
    """A server that copies nothing by itself, and two sites."""
    with FtsServer() as server:
        rules = [{"prefix": "/", "url": "davs://here.example.org"}]
        there = [{"prefix": "/", "url": "davs://there.example.org"}, {"prefix": "/", "url": "s3://there.example.org"}]
        sites = {"Here": {"third_party": rules}, "There": {"third_party": there}}
        (tmp_path / "site.yaml").write_text(json.dumps({"ledger": f"sqlite:///{tmp_path}/ledger.db", "sites": sites}))
        monkeypatch.setenv("NIGHTSHIFT_CONFIG", str(tmp_path / "site.yaml"))
        monkeypatch.setenv("AIRFLOW_CONN_FTS_DEFAULT", json.dumps({"conn_type": "fts", "host": server.url}))
        yield server


def operator(files: Any = FILES, **more: Any) -> FtsTransferOperator:
    return FtsTransferOperator(task_id="copy", files=files, deferrable=True, retries=2, **more)


def begin(files: Any = FILES, try_number: int = 1, max_tries: int = 2, **more: Any) -> TaskDeferred:
    """A try until it waits."""
    with pytest.raises(TaskDeferred) as deferred:
        operator(files, **more).execute(task_context(try_number=try_number, max_tries=max_tries))
    return deferred.value


def end(waiting: TaskDeferred, files: Any = FILES, try_number: int = 1, **more: Any) -> dict[str, Any]:
    """What becomes of a try when it comes back from its wait, in another process."""
    event = {"found": True, "reason": "ended", "since": waiting.trigger.serialize()[1]["since"]}
    done: dict[str, Any] = operator(files, **more).ended(task_context(try_number=try_number), event)
    return done


def submitted(fts: FtsServer) -> list[tuple[list[str], bool]]:
    """The destinations of each job, and whether it replaces what is there."""
    return [([file["dest_surl"] for file in job["files"]], job["params"]["overwrite"]) for job in fts.jobs.values()]


def only_job(fts: FtsServer) -> str:
    (job_id,) = fts.jobs
    return job_id


def test_files_are_submitted_once_waited_for_by_the_triggerer_and_accounted(fts: FtsServer) -> None:
    waiting = begin(priority=4)
    path, row = waiting.trigger.serialize()
    assert (path, row["job_ids"]) == ("triggers.fts.FtsJobTrigger", [only_job(fts)])
    assert json.loads(json.dumps(row)) == row
    params = fts.jobs[only_job(fts)]["params"]
    assert (params["overwrite"], params["dst_file_report"], params["priority"]) == (False, True, 4)
    assert params["max_time_in_queue"] == "43200s"
    fts.end(only_job(fts))
    assert end(waiting) == {"files": 2, "bytes": 0, "existing": 0}
    assert fts.count("POST", "^/jobs$") == 1


def test_names_at_sites_become_urls_of_a_protocol_that_both_ends_have(fts: FtsServer) -> None:
    sites = {"source": "There:/store/a", "destination": "Here:/store/a", "size": "7", "checksum": "adler32:0a"}
    begin([sites, ["There:/store/b", "s3://other.example.org/b"], [f"{SOURCE}/c", "Here:/store/c"]])
    (job,) = fts.jobs.values()
    assert [(file["source_surl"], file["dest_surl"]) for file in job["files"]] == [
        ("davs://there.example.org/store/a", A),
        ("s3://there.example.org/store/b", "s3://other.example.org/b"),
        (f"{SOURCE}/c", "davs://here.example.org/store/c"),
    ]
    assert (job["files"][0]["filesize"], job["files"][0]["checksum"]) == (7, "adler32:0a")


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
        ([["There:/a/../b", A]], FILE_REFUSED),
        ([["There:/a", "root://other.example.org/a"]], NO_SITE_URL),
        ([["There:/a", A]] * 1001, DIRECT_REFUSED),
    ],
)
def test_malformed_files_are_refused_before_anything_is_sent(fts: FtsServer, files: Any, error: Any) -> None:
    with refused(error):
        operator(files).execute(task_context())
    assert fts.asked == []


def test_a_lost_reply_is_followed_up_by_the_id(fts: FtsServer) -> None:
    fts.answer("POST", "^/jobs$", 500, {"status": "500 Error", "message": "it failed"})
    begin()
    assert len(fts.jobs) == 1
    again = begin()
    assert again.trigger.serialize()[1]["job_ids"] == [only_job(fts)]
    assert fts.count("POST", "^/jobs$") == 2, "it was sent again once, since FTS did not know it"


def test_the_next_try_takes_over_the_job_of_one_that_died(fts: FtsServer) -> None:
    begin()
    waiting = begin(try_number=2)
    assert waiting.trigger.serialize()[1]["job_ids"] == [only_job(fts)]
    fts.end(only_job(fts))
    assert end(waiting, try_number=2)["files"] == 2
    assert end(waiting, try_number=3)["files"] == 2, "what is copied is not copied again"


def test_the_next_try_has_only_what_failed_and_replaces_only_what_the_first_left(fts: FtsServer) -> None:
    unproved = [f"davs://here.example.org/store/{name}" for name in "cd"]
    files = [*FILES, [f"{SOURCE}/c", unproved[0]], [f"{SOURCE}/d", unproved[1]]]
    waiting = begin(files)
    fts.end(only_job(fts), b=BROKEN, c="SOURCE [112] Result Could not connect to server", d=TIMED_OUT)
    with refused(FILES_FAILED, retryable=True):
        end(waiting, files)
    waiting = begin(files, try_number=2)
    assert submitted(fts)[1:] == [(unproved, False), ([B], True)]
    for job_id in waiting.trigger.serialize()[1]["job_ids"]:
        fts.end(job_id)
    assert end(waiting, files, try_number=2)["files"] == 4


def test_a_cleared_task_copies_all_again(fts: FtsServer) -> None:
    waiting = begin()
    fts.end(only_job(fts))
    end(waiting)
    begin(try_number=2, max_tries=3)
    assert len(fts.jobs) == 2


def test_a_file_that_exists_is_never_replaced_and_accepted_only_if_it_is_the_same(fts: FtsServer) -> None:
    files = [{"source": f"{SOURCE}/a", "destination": A, "size": 3, "checksum": "adler32:0000000a"}]
    report = {"file_size": 3, "checksum_type": "ADLER32", "checksum_value": "a"}
    waiting = begin(files)
    fts.end(only_job(fts), a=EXISTS)
    with refused(FILES_UNTRANSFERABLE, retryable=False):
        end(waiting, files)
    for change in ({"file_size": 4}, {"checksum_value": "b"}):
        fts.jobs[only_job(fts)]["files"][0]["file_metadata"] = {"dst_file": report | change}
        with refused(FILES_UNTRANSFERABLE):
            end(waiting, files)
    fts.jobs[only_job(fts)]["files"][0]["file_metadata"] = {"dst_file": report}
    assert end(waiting, files)["existing"] == 1
    assert begin(files, try_number=2, max_tries=3), "a cleared task"
    assert submitted(fts)[1] == ([A], False)


def test_a_copy_of_another_size_or_checksum_is_a_failure(fts: FtsServer) -> None:
    files = [{"source": f"{SOURCE}/a", "destination": A, "size": 3, "checksum": "adler32:0a"}]
    waiting = begin(files)
    fts.end(only_job(fts))
    for change in ({"filesize": 4}, {"filesize": 3, "checksum": "adler32:0b"}):
        fts.jobs[only_job(fts)]["files"][0] |= change
        with refused(FILES_FAILED):
            end(waiting, files)
    fts.jobs[only_job(fts)]["files"][0] |= {"checksum": "ADLER32:000A"}
    assert end(waiting, files)["bytes"] == 3


def test_reasons_of_files_are_told_without_their_number_and_without_secrets(fts: FtsServer) -> None:
    files = [[f"{SOURCE}/{number}", f"davs://here.example.org/{number}?token=hidden"] for number in range(9)]
    waiting = begin(files)
    for file in fts.jobs[only_job(fts)]["files"]:
        file |= {"file_state": "FAILED", "reason": MISSING}
    fts.jobs[only_job(fts)]["job_state"] = "FAILED"
    with refused(FILES_UNTRANSFERABLE) as caught:
        end(waiting, files)
    assert "hidden" not in str(caught.value)
    assert str(caught.value).count("File not found") == 5


def test_a_job_that_fts_has_forgotten_is_looked_for_in_its_archive_then_submitted_again(fts: FtsServer) -> None:
    waiting = begin()
    job_id = only_job(fts)
    forgotten = fts.jobs.pop(job_id)
    with pytest.raises(TaskDeferred):
        end(waiting)
    assert only_job(fts) == job_id
    fts.end(job_id)
    fts.archive[job_id] = fts.jobs.pop(job_id)
    assert end(waiting)["files"] == 2
    assert forgotten["files"] is not None


def test_a_banned_storage_is_told_by_its_own_error(fts: FtsServer) -> None:
    fts.banned["davs://here.example.org"] = {}
    with refused(StorageBanned):
        operator().execute(task_context())


def test_the_task_itself_waits_where_it_is_not_deferrable_and_jobs_are_canceled_at_the_limit(fts: FtsServer) -> None:
    waits = FtsTransferOperator(task_id="copy", files=FILES, deferrable=False, timeout=0.05, poll_interval=0.01)
    with refused(WaitedTooLong):
        waits.execute(task_context())
    assert fts.jobs[only_job(fts)]["job_state"] == JobState.CANCELED.value
    with pytest.raises(TaskDeferred):
        operator(timeout=60.0).execute(task_context(try_number=2))
    assert [overwrites for _, overwrites in submitted(fts)] == [False, False]


def test_a_kill_cancels_the_jobs_of_a_task_that_works_and_of_one_that_is_deferred(fts: FtsServer) -> None:
    working = operator()
    with pytest.raises(TaskDeferred):
        working.execute(task_context())
    with pytest.raises(Killed):
        working.on_kill()
    assert fts.jobs[only_job(fts)]["job_state"] == JobState.CANCELED.value
    waiting = begin(try_number=2)
    trigger = waiting.trigger
    assert isinstance(trigger, FtsJobTrigger)
    asyncio.run(trigger.on_kill())
    assert {job["job_state"] for job in fts.jobs.values()} == {JobState.CANCELED.value}
    assert operator().on_kill() is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("reason", "ended", "kept"),
    [
        # by its task or an admin: FTS notes the end of a copy when it kills it, and the copy is gone a minute later
        ("Job canceled by the user", None, True),
        ("Job canceled by the user", timedelta(seconds=30), True),
        ("Job canceled by the user", timedelta(seconds=90), False),
        # the copy goes on
        (None, timedelta(minutes=5), True),
        ("Storage banned", timedelta(minutes=5), True),
    ],
)
def test_no_try_begins_while_a_copy_of_an_earlier_one_may_still_write(
    fts: FtsServer, reason: str | None, ended: timedelta | None, kept: bool, overwrite: bool
) -> None:
    begin(overwrite=overwrite)
    now = datetime.now(UTC)
    job = fts.jobs[only_job(fts)]
    job["job_state"] = "CANCELED"
    for file in job["files"]:
        began = {"start_time": told(now - timedelta(minutes=9)), "transfer_host": "fts.example.org", "pid": 7}
        file |= {**began, "file_state": "CANCELED", "reason": reason, "filesize": 7}
        file["finish_time"] = None if ended is None else told(now - ended)
    # a cleared task, too
    for number, most in ((2, 2), (4, 5)):
        waiting = begin(try_number=number, max_tries=most, overwrite=overwrite, poll_interval=0.01, timeout=60.0)
        row = waiting.trigger.serialize()[1]
        assert row["at_rest"] is kept
        if kept:
            assert (len(fts.jobs), row["job_ids"]) == (1, [only_job(fts)])
            assert not CHECKS["fts-jobs"].look(operator().site, "fts_default", row["job_ids"], at_rest=True).ready
            assert FtsJobSensor(task_id="wait", job_ids=row["job_ids"], allow_failed=True).execute(task_context())
        else:
            break
    if kept:
        for file in job["files"]:
            file["start_time"] = file["finish_time"] = told(now - timedelta(hours=1))
        assert CHECKS["fts-jobs"].look(operator().site, "fts_default", [only_job(fts)], at_rest=True).ready
        with pytest.raises(TaskDeferred):
            end(waiting, try_number=2, overwrite=overwrite)
    assert len(fts.jobs) == 2


def told(time: datetime) -> str:
    """A time as FTS tells it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S")


def test_a_trigger_fires_once_all_jobs_have_ended_and_tells_their_states(fts: FtsServer) -> None:
    trigger = begin(poll_interval=0.02).trigger
    job_id = only_job(fts)

    async def watched() -> Any:
        events = trigger.run()
        first = asyncio.ensure_future(anext(events))
        while not fts.count("GET", f"^/jobs/{job_id},$"):  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.01)
        fts.end(job_id)
        return await asyncio.wait_for(first, 20)

    event = asyncio.run(watched()).payload
    assert (event["found"], event["result"]) == (True, {job_id: "FINISHED"})


def sensor(*job_ids: str, **more: Any) -> Any:
    wait = FtsJobSensor(task_id="wait", job_ids=list(job_ids), deferrable=True, **more)
    return wait.execute(task_context())


def test_jobs_of_others_are_waited_for_in_one_request_and_failed_ones_fail_the_sensor(fts: FtsServer) -> None:
    for files in (FILES[:1], FILES[1:]):
        begin(files)
    first, second = fts.jobs
    fts.end(first)
    asked = fts.count("GET", "^/jobs/")
    with pytest.raises(TaskDeferred):
        sensor(first, second)
    assert fts.count("GET", "^/jobs/") == asked + 1
    fts.end(second, b=MISSING)
    with refused(FTS_JOB_FAILED, job_id=second):
        sensor(first, second)
    assert sensor(first, second, allow_failed=True) == {first: "FINISHED", second: "FAILED"}
    fts.archive[first] = fts.jobs.pop(first)
    assert FtsJobSensor(task_id="wait", job_ids=first, deferrable=False).execute(task_context()) is not None


def test_a_job_that_nobody_knows_ends_the_wait(fts: FtsServer) -> None:
    unknown = "01874efb-4735-4595-bc9c-591aef8240c9"
    with refused(JobUnknown, job_id=unknown):
        sensor(unknown, allow_failed=True)


def test_every_error_of_the_tasks_files_names_what_it_is_about(fts: FtsServer) -> None:
    with pytest.raises(StageoutError) as caught:
        operator([FILES[0], ["There:/a/../b", A]]).execute(task_context())
    assert caught.value.__notes__ == ["in file 1 of the task"]
