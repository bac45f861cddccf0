"""The service without HTTP: what becomes of jobs as time passes, and what a restart knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from include.fts.states import FailureReason, FailureScope, FileState, JobState
from lab.fts import records
from lab.fts.callers import LAB, Caller
from lab.fts.config import FtsServiceConfig
from lab.fts.copies.simulated import SimulationModel, digits_of, made_up_checksum
from lab.fts.errors import FtsRequestRefused, FtsServiceError
from lab.fts.records import JobRecord, StateFile
from lab.fts.transfers import STORAGE, Transfers

USER = Caller(LAB, "lab", admin=True)
OTHER = Caller("/DC=ch/CN=other", "oauth2")
VO = USER.delegation_id
T0 = 1_795_000_000.0


def _opened(folder: Path, **settings: Any) -> Transfers:
    model = SimulationModel(10.0, 0.0, settings.pop("failures", {}), seed=1)
    config = FtsServiceConfig(folder / "fts.sqlite", model=model, **settings)
    return Transfers(config, StateFile(config.state), {}, T0)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Transfers]:
    opened = _opened(tmp_path)
    yield opened
    opened.close()


def _file(name: str = "f", query: str = "?size=7", **given: Any) -> dict[str, Any]:
    return {"sources": [f"mock://a/{name}{query}"], "destinations": [f"mock://b/{name}"], **given}


def _submit(
    service: Transfers, *files: dict[str, Any], now: float = T0, caller: Caller = USER, **params: Any
) -> JobRecord:
    body = json.dumps({"files": files or [_file()], "params": params}).encode()
    return service.job(caller, service.submit(caller, body, now))


def _after(service: Transfers, job: JobRecord, *seconds: float) -> list[FileState]:
    for moment in seconds:
        service.tick(T0 + moment)
    return [file.state for file in job.files]


def _reason(job: JobRecord) -> tuple[FailureScope | None, int | None]:
    parsed = FailureReason.parse(job.files[0].reason or "")
    return parsed.scope, parsed.errno


def test_a_file_waits_is_copied_and_is_at_the_destination(service: Transfers) -> None:
    job = _submit(service)
    assert _after(service, job, 0) == [FileState.ACTIVE]
    assert service.namespace.find("mock://b/f") is None
    assert _after(service, job, 9.9) == [FileState.ACTIVE]
    assert _after(service, job, 10) == [FileState.FINISHED]
    assert job.state is JobState.FINISHED
    odd = _submit(service, _file("o", checksum="adler32:1"), priority=9, max_time_in_queue=2, verify_checksum=False)
    assert (odd.priority, odd.options.verify, odd.options.queue_ends, odd.options.retry) == (5, "t", T0 + 7200, 0)
    assert service.namespace.find("mock://b/f") == (7, made_up_checksum("mock://a/f", 7))


def test_what_exists_is_not_overwritten(service: Transfers) -> None:
    service.namespace.put("mock://b/f", (5, 0xABC))
    job = _submit(service, _file(metadata={"n": 1}), dst_file_report=True)
    assert _after(service, job, 0, 10) == [FileState.FAILED]
    assert _reason(job) == (FailureScope.DESTINATION, 17)
    assert not job.files[0].recoverable
    assert job.files[0].metadata == {"n": 1}, "it is reported of tapes only"
    again = _submit(service, now=T0 + 10, overwrite=True)
    assert _after(service, again, 10, 20) == [FileState.FINISHED]


@pytest.mark.parametrize("cancel", ["files", "ban", "job"])
def test_only_the_copies_of_a_whole_job_are_stopped_by_a_cancel(service: Transfers, cancel: str) -> None:
    job = _submit(service)
    assert _after(service, job, 0) == [FileState.ACTIVE]
    match cancel:
        case "files":
            service.cancel_files(job, [str(job.files[0].file_id)], T0 + 1)
        case "ban":
            service.ban(STORAGE, "mock://b", VO, {"status": "CANCEL"}, T0 + 1)
        case "job":
            service.cancel(job, T0 + 1)
    assert (job.files[0].state, job.files[0].ended) == (FileState.CANCELED, T0 + 1), "at once, whatever goes on"
    assert _after(service, job, 10) == [FileState.CANCELED]
    assert (service.namespace.find("mock://b/f") is None) is (cancel == "job")


def test_checksums_are_compared_where_the_job_says(service: Transfers) -> None:
    right = f"adler32:{digits_of(made_up_checksum('mock://a/f', 7))}"
    jobs = {
        (verify, checksum): _submit(service, _file(checksum=checksum), verify_checksum=verify, overwrite=True)
        for verify in ("source", "target", "both", "none")
        for checksum in (right, "adler32:1")
    }
    _after(service, jobs["none", right], 0, 10)
    assert {job.files[0].state for (_, checksum), job in jobs.items() if checksum == right} == {FileState.FINISHED}
    assert jobs["none", "adler32:1"].state is JobState.FINISHED
    assert _reason(jobs["source", "adler32:1"]) == _reason(jobs["both", "adler32:1"]) == (FailureScope.SOURCE, 5)
    assert _reason(jobs["target", "adler32:1"]) == (FailureScope.DESTINATION, 5)


def test_a_recoverable_failure_is_tried_again_as_often_as_the_job_says(service: Transfers) -> None:
    job = _submit(service, _file(query="?size=7&transfer_errno=110"), retry=1, retry_delay=30)
    assert _after(service, job, 0, 10) == [FileState.SUBMITTED]
    assert _after(service, job, 39) == [FileState.SUBMITTED]
    assert _after(service, job, 40, 50) == [FileState.FAILED]
    (file,) = job.files
    assert (file.retry, file.recoverable, len(file.attempts or ())) == (1, True, 1)
    assert _reason(job) == (FailureScope.TRANSFER, 110)


def test_a_removed_source_is_not_tried_again_and_a_job_with_a_failed_file_is_dirty(service: Transfers) -> None:
    job = _submit(service, _file("f"), _file("g", "?size=7&transfer_errno=28"))
    assert _after(service, job, 0, 10) == [FileState.FINISHED, FileState.FAILED]
    assert job.state is JobState.FINISHEDDIRTY
    assert service.namespace.remove("mock://a/h")
    assert not service.namespace.remove("mock://a/h")
    job = _submit(service, _file("h"), retry=3)
    assert _after(service, job, 10, 20) == [FileState.FAILED]
    assert _reason(job) == (FailureScope.SOURCE, 2)


def test_files_that_wait_for_too_long_are_canceled(tmp_path: Path) -> None:
    service = _opened(tmp_path, active_per_link=1)
    job = _submit(service, _file("f", "?time=100"), _file("g"), max_time_in_queue="60s")
    assert _after(service, job, 0, 60) == [FileState.ACTIVE, FileState.CANCELED]
    assert "stayed in the queue" in (job.files[1].reason or "")
    assert _after(service, job, 100) == [FileState.FINISHED, FileState.CANCELED]
    assert job.state is JobState.CANCELED
    service.close()


def test_cancel_ends_active_and_waiting_files_and_leaves_nothing(service: Transfers) -> None:
    job = _submit(service, _file("f"), _file("g"))
    _after(service, job, 0)
    assert service.cancel_files(job, ["999", "x"], T0) == ["File does not belong to the job"] * 2
    assert service.cancel(job, T0 + 1)
    assert not service.cancel(job, T0 + 2)
    assert _after(service, job, 20) == [FileState.CANCELED] * 2
    assert not service.namespace.names
    assert not service.scheduler.active


def test_a_ban_cancels_or_holds_and_refuses(service: Transfers) -> None:
    held, banned = _submit(service, now=T0), None
    service.ban(STORAGE, "mock://b", VO, {"status": "WAIT"}, T0)
    assert _after(service, held, 0) == [FileState.ON_HOLD]
    with pytest.raises(FtsRequestRefused) as refused:
        banned = _submit(service)
    assert (refused.value.status, banned) == (403, None)
    service.unban(STORAGE, "mock://b", VO, T0)
    assert _after(service, held, 0) == [FileState.ACTIVE]
    assert service.ban(STORAGE, "mock://a", VO, {"status": "CANCEL"}, T0) == [held.job_id]
    assert held.state is JobState.CANCELED


def test_a_ban_of_a_storage_is_for_the_vo_of_its_administrator(service: Transfers) -> None:
    ours, theirs = _submit(service), _submit(service, _file("g"), caller=OTHER)
    service.ban(STORAGE, "mock://b", OTHER.delegation_id, {"status": "WAIT"}, T0)
    assert [job.files[0].state for job in (ours, theirs)] == [FileState.SUBMITTED, FileState.ON_HOLD]
    assert _submit(service, _file("h")).files[0].state is FileState.SUBMITTED
    service.ban(STORAGE, "mock://a", VO, {"status": "WAIT_AS"}, T0)
    service.unban(STORAGE, "mock://b", VO, T0)
    assert theirs.files[0].state is FileState.ON_HOLD, "an administrator ends bans of the own VO"
    service.unban(STORAGE, "mock://b", OTHER.delegation_id, T0)
    assert [job.files[0].state for job in (ours, theirs)] == [FileState.ON_HOLD, FileState.SUBMITTED]
    assert _after(service, theirs, 0, 10) == [FileState.FINISHED]


def test_a_try_again_waits_for_a_ban_of_its_own_vo(service: Transfers) -> None:
    jobs = [_submit(service, _file(query="?transfer_errno=110"), retry=1, caller=caller) for caller in (USER, OTHER)]
    service.tick(T0)
    service.ban(STORAGE, "mock://b", VO, {"status": "WAIT"}, T0)
    service.tick(T0 + 10)
    assert [job.files[0].state for job in jobs] == [FileState.ON_HOLD, FileState.SUBMITTED]


def test_a_ban_from_before_bans_had_a_vo_is_for_all_and_can_be_ended(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "fts.sqlite")
    state._db.execute("INSERT INTO ban VALUES ('se', 'mock://b', '{\"status\": \"WAIT\"}')")
    state.close()
    service = _opened(tmp_path)
    for caller in (USER, OTHER):
        with pytest.raises(FtsRequestRefused):
            _submit(service, caller=caller)
    service.unban(STORAGE, "mock://b", VO, T0)
    service.close()
    again = _opened(tmp_path)
    assert not again.bans
    again.close()


def test_the_same_sid_is_refused_and_jobs_of_others_are_not_seen(service: Transfers) -> None:
    job = _submit(service, id_generator="deterministic", sid="batch 1")
    for call, status in (
        (lambda: _submit(service, id_generator="deterministic", sid="batch 1"), 409),
        (lambda: service.job(OTHER, job.job_id), 403),
    ):
        with pytest.raises(FtsRequestRefused) as refused:
            call()
        assert refused.value.status == status
    assert list(service.jobs(OTHER)) == []
    assert _submit(service, id_generator="deterministic", sid="batch 1", caller=OTHER).job_id != job.job_id


def test_a_restart_knows_all_that_was_written(tmp_path: Path) -> None:
    service = _opened(tmp_path)
    job = _submit(service, _file("f"), _file("g", "?size=7&time=50"), _file("h"), priority=5, job_metadata={"a": 1})
    service.ban(STORAGE, "mock://x", VO, {"status": "CANCEL"}, T0)
    _after(service, job, 0, 10)
    service.cancel_files(job, [str(job.files[2].file_id)], T0 + 10)
    service.close()
    again = _opened(tmp_path)
    known = again.job(USER, job.job_id)
    states = [file.state for file in known.files]
    assert states == [FileState.FINISHED, FileState.SUBMITTED, FileState.FINISHED]
    assert (known.priority, known.metadata, known.state) == (5, {"a": 1, "auth_method": "lab"}, JobState.ACTIVE)
    assert again.namespace.find("mock://b/f") == (7, made_up_checksum("mock://a/f", 7))
    assert list(again.bans) == [(STORAGE, "mock://x", VO)]
    assert _after(again, known, 20, 70)[1] is FileState.FINISHED
    assert _submit(again, _file("n")).files[0].file_id > job.files[2].file_id
    again.close()


def test_a_state_file_belongs_to_one_service(
    service: Transfers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LOCK_S", 0.05)
    with pytest.raises(FtsServiceError):
        StateFile(tmp_path / "fts.sqlite")
    assert (tmp_path / "fts.sqlite").stat().st_mode & 0o777 == 0o600


def test_an_archived_job_is_known_to_the_archive_only(tmp_path: Path) -> None:
    service = _opened(tmp_path, archive_after_s=100.0)
    job = _submit(service, id_generator="deterministic", sid="s")
    _after(service, job, 0, 10, 110)
    service.flush()
    with pytest.raises(FtsRequestRefused) as refused:
        service.job(USER, job.job_id)
    assert refused.value.status == 404
    assert service.archived(USER, job.job_id).files[0].state is FileState.FINISHED
    with pytest.raises(FtsRequestRefused):
        service.archived(OTHER, job.job_id)
    with pytest.raises(FtsRequestRefused) as refused:
        _submit(service, id_generator="deterministic", sid="s")
    assert refused.value.status == 409
    service.close()


def test_several_sources_of_a_file_are_refused(service: Transfers) -> None:
    with pytest.raises(FtsRequestRefused) as refused:
        _submit(service, {"sources": ["mock://a/f", "mock://c/f"], "destinations": ["mock://b/f"]})
    assert refused.value.status == 400


def test_the_model_draws_failures(tmp_path: Path) -> None:
    service = _opened(tmp_path, failures={"network": 0.5, "destination-denied": 0.5}, active_per_link=1000)
    job = _submit(service, *(_file(f"f{number}") for number in range(200)))
    _after(service, job, 0, 10)
    reasons = {FailureReason.parse(file.reason or "").errno for file in job.files}
    assert reasons == {110, 1}
    service.close()
