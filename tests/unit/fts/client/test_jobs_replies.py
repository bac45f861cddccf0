"""Replies as values: what is taken, what is put right, and what is refused."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from include.fts.client.jobs import FILE_FIELDS, FileStatus, Identity, JobStatus
from include.fts.errors import ANONYMOUS, FTS_JOB_INVALID
from include.fts.states import FailureScope, FileState, JobState
from tests.fakes.refused import refused

FILE: dict[str, Any] = {
    "file_id": 7, "file_state": "FAILED", "source_surl": "https://a/f", "dest_surl": "https://b/f",
    "reason": "SOURCE [2] Result HTTP 404 : File not found", "recoverable": False, "retry": 1, "filesize": 0,
    "finish_time": "2026-11-23T10:00:00", "throughput": None, "unheard_of": {},
}  # fmt: skip
JOB = {"job_id": str(uuid.UUID(int=5)), "job_state": "FINISHEDDIRTY", "http_status": "200 Ok", "files": [FILE]}


def test_a_job_with_its_files() -> None:
    job = JobStatus.model_validate(JOB)
    (file,) = job.files
    assert (job.job_state, file.file_state, file.recoverable) == (JobState.FINISHEDDIRTY, FileState.FAILED, False)
    assert file.finish_time == datetime(2026, 11, 23, 10, tzinfo=UTC)
    assert file.failure is not None
    assert (file.failure.scope, file.failure.errno) == (FailureScope.SOURCE, 2)


def test_text_can_be_stored_and_shown() -> None:
    file = FileStatus.model_validate({**FILE, "reason": "\ud800\0" + "x" * 10_000})
    assert file.reason is not None
    assert file.reason.startswith("\\ud800\\0x")
    assert len(file.reason) == 4096
    file.reason.encode()


def test_a_reason_shows_no_secret_of_a_url() -> None:
    said = "TRANSFER [5] PUT https://ann:word@b.example.org/f?authz=Bearer%20eyJhbGciOi.x.y failed: Bearer abcdef123"
    job = JobStatus.model_validate({**JOB, "reason": said, "files": [{**FILE, "reason": said}]})
    for reason in (job.reason or "", job.files[0].reason or ""):
        assert not any(secret in reason for secret in ("ann:word", "eyJ", "authz", "abcdef123"))
        assert reason.startswith("TRANSFER [5] PUT https://***@b.example.org/f?*** failed")


@pytest.mark.parametrize(
    "changes",
    [{"file_id": "seven"}, {"file_state": 3}, {"source_surl": None}, {"retry": "often"}, {"throughput": "inf"}],
    ids=str,
)
def test_a_file_of_wrong_types_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobStatus.model_validate({**JOB, "files": [{**FILE, **changes}]})


def test_the_fields_that_are_asked_for_are_those_that_are_read() -> None:
    assert {"file_id", "file_state", "reason", "file_metadata", "checksum"} <= set(FILE_FIELDS)


def test_the_id_of_a_job_is_known_before_it_is_submitted() -> None:
    base = uuid.UUID("01874efb-4735-4595-bc9c-591aef8240c9")
    identity = Identity(user_dn="/CN=u", method="certificate", vos=("vo",), vos_id=(uuid.uuid5(base, "vo"),))
    assert identity.job_name("b7.1").job_id == str(uuid.uuid5(uuid.uuid5(base, "vo"), "b7.1"))
    with refused(FTS_JOB_INVALID):
        identity.job_name("")
    with refused(ANONYMOUS):
        Identity(user_dn="anon", method="unauthenticated").job_name("b7.1")
