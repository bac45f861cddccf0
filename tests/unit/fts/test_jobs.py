"""A job in the form that FTS reads, and what is refused before it is sent."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from include.fts.errors import ANONYMOUS, FTS_JOB_INVALID
from include.fts.jobs import (
    MOST_FILE_METADATA,
    FileStatus,
    FtsFile,
    FtsJob,
    Identity,
    JobName,
    JobParams,
    JobStatus,
    VerifyChecksum,
)
from include.fts.states import FailureScope, FileState, JobState
from tests.fakes.refused import refused

FILE = FtsFile("https://a.example.org:1094/temp/f", "https://b.example.org/store/f", 7, "adler32:0a1b2c3d")


def test_a_job_in_the_form_that_fts_reads() -> None:
    file = replace(FILE, activity="user", metadata={"row": 5}, source_token="s", destination_token="d")
    params = JobParams(
        VerifyChecksum.BOTH, dst_file_report=True, retry=2, retry_delay_s=30, priority=4, max_time_in_queue_s=3600,
        timeout_s=60, metadata={"batch": "b7"},
    )  # fmt: skip
    assert json.loads(FtsJob((file,), params).document(JobName("b7.1", "id"))) == {
        "files": [{
            "sources": [FILE.source], "destinations": [FILE.destination], "filesize": 7, "activity": "user",
            "checksum": "adler32:0a1b2c3d", "metadata": {"row": 5}, "source_tokens": ["s"], "destination_tokens": ["d"],
        }],
        "params": {
            "verify_checksum": "both", "overwrite": False, "dst_file_report": True, "strict_copy": False, "retry": 2,
            "retry_delay": 30, "priority": 4, "max_time_in_queue": "3600s", "timeout": 60,
            "job_metadata": {"batch": "b7"}, "id_generator": "deterministic", "sid": "b7.1",
        },
    }  # fmt: skip


def test_what_is_not_given_is_left_to_the_server_and_tokens_are_in_no_repr() -> None:
    bare = json.loads(FtsJob((FtsFile(FILE.source, FILE.destination),)).document())
    assert bare["files"] == [{"sources": [FILE.source], "destinations": [FILE.destination]}]
    assert bare["params"] == {"overwrite": False, "dst_file_report": False, "strict_copy": False}
    assert "hidden" not in repr(FtsJob((replace(FILE, source_token="hidden", destination_token="hidden"),)))
    for checksum in ("ADLER32", "md5:" + "0" * 32, "blake3:" + "f" * 64):
        assert replace(FILE, checksum=checksum).fault() is None


def test_a_job_needs_files_with_a_destination_of_their_own() -> None:
    for files in ((), (FILE, replace(FILE, source="https://c.example.org/f"))):
        with refused(FTS_JOB_INVALID):
            FtsJob(files).document()


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "/no/scheme"}, {"source": "https:///no-host"}, {"source": "https://h"}, {"source": "https://h/"},
        {"source": "https://h:port/f"}, {"source": "file:///etc/passwd"}, {"source": "https://user:secret@h/f"},
        {"destination": "https://h/a b"}, {"destination": "https://h/a\x1b[2J"},
        {"destination": "https://h/" + "x" * 1100}, {"destination": "https://[::1/f"}, {"size": -1}, {"size": True},
        {"checksum": "adler32:xyz"}, {"checksum": "adler32:0123456789"}, {"checksum": "adler32:"},
        {"checksum": "a b"}, {"metadata": "x" * MOST_FILE_METADATA}, {"metadata": float("nan")},
        {"metadata": object()}, {"source_token": "alone"},
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_file_that_fts_would_refuse_is_refused_before(changes: dict[str, Any]) -> None:
    good = FtsFile(FILE.source, "https://b.example.org/store/g")
    with refused(FTS_JOB_INVALID) as caught:
        FtsJob((good, replace(FILE, **changes))).document()
    assert "file 1" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "params",
    [
        {"priority": 0}, {"priority": 6}, {"max_time_in_queue_s": 0}, {"timeout_s": 1.5}, {"retry_delay_s": True},
        {"metadata": {"text": "x" * 2048}},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_that_fts_would_change_or_refuse_are_refused(params: dict[str, Any]) -> None:
    with refused(FTS_JOB_INVALID):
        FtsJob((FILE,), JobParams(**params)).document()


ROW: dict[str, Any] = {
    "file_id": 7, "file_state": "FAILED", "source_surl": "https://a/f", "dest_surl": "https://b/f",
    "reason": "SOURCE [2] Result HTTP 404 : File not found", "recoverable": False, "retry": 1, "filesize": 0,
    "finish_time": "2026-11-23T10:00:00", "throughput": None, "unheard_of": {},
}  # fmt: skip
REPLY = {"job_id": str(uuid.UUID(int=5)), "job_state": "FINISHEDDIRTY", "http_status": "200 Ok", "files": [ROW]}


def test_a_job_with_its_files() -> None:
    job = JobStatus.model_validate(REPLY)
    (file,) = job.files
    assert (job.job_state, file.file_state, file.recoverable) == (JobState.FINISHEDDIRTY, FileState.FAILED, False)
    assert file.finish_time == datetime(2026, 11, 23, 10, tzinfo=UTC)
    assert file.failure is not None
    assert (file.failure.scope, file.failure.errno) == (FailureScope.SOURCE, 2)


def test_text_can_be_stored_and_shown() -> None:
    file = FileStatus.model_validate({**ROW, "reason": "\ud800\0" + "x" * 10_000})
    assert file.reason is not None
    assert file.reason.startswith("\\ud800\\0x")
    assert len(file.reason) == 4096
    file.reason.encode()


def test_a_reason_shows_no_secret_of_a_url() -> None:
    said = "TRANSFER [5] PUT https://ann:word@b.example.org/f?authz=Bearer%20eyJhbGciOi.x.y failed: Bearer abcdef123"
    job = JobStatus.model_validate({**REPLY, "reason": said, "files": [{**ROW, "reason": said}]})
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
        JobStatus.model_validate({**REPLY, "files": [{**ROW, **changes}]})


def test_the_id_of_a_job_is_known_before_it_is_submitted() -> None:
    base = uuid.UUID("01874efb-4735-4595-bc9c-591aef8240c9")
    identity = Identity(user_dn="/CN=u", method="certificate", vos=("vo",), vos_id=(uuid.uuid5(base, "vo"),))
    assert identity.job_name("b7.1").job_id == str(uuid.uuid5(uuid.uuid5(base, "vo"), "b7.1"))
    with refused(FTS_JOB_INVALID):
        identity.job_name("")
    with refused(ANONYMOUS):
        Identity(user_dn="anon", method="unauthenticated").job_name("b7.1")
