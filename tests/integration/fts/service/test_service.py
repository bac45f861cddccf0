"""Our client against the embedded FTS as a process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from include.fts.client import BanOf, FtsClient
from include.fts.errors import (
    ANONYMOUS,
    DELEGATION_MISSING,
    FTS_FAILED,
    TOKEN_REFUSED,
    FtsForbidden,
    FtsUnreachable,
    JobExists,
    UserBanned,
)
from include.fts.jobs import FtsFile, FtsJob, JobParams, JobStatus
from include.fts.states import FileState, JobState
from include.fts.transport import BearerToken
from tests.fakes.certificates import Authority
from tests.fakes.ftsservice import FtsService
from tests.fakes.refused import refused

LASTS = timedelta(days=4)
UNKNOWN = str(uuid.UUID(int=7))
SLOW = "?size=5&time=600"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FtsService]:
    with FtsService(tmp_path_factory.mktemp("fts"), "--faults") as running:
        yield running


@pytest.fixture
def client(service: FtsService) -> Iterator[FtsClient]:
    with FtsClient(service.url, retries=0) as opened:
        yield opened


@pytest.fixture
def name() -> str:
    """A host of its own for each test."""
    return uuid.uuid4().hex


def _job(host: str, *names: str, query: str = "?size=5", **params: Any) -> FtsJob:
    files = (
        FtsFile(f"mock://a-{host}/{one}{query}", f"mock://b-{host}/{one}", metadata=one) for one in names or ("f",)
    )
    return FtsJob(tuple(files), JobParams(**params))


def _until(client: FtsClient, job_id: str, reached: Callable[[JobStatus], bool]) -> JobStatus:
    while not reached(status := client.status([job_id]).jobs[job_id]):
        pass
    return status


def _ended(client: FtsClient, job_id: str) -> JobStatus:
    return _until(client, job_id, lambda status: status.job_state.terminal)


def test_a_job_from_its_submission_to_its_end(client: FtsClient, service: FtsService, name: str) -> None:
    job_id = client.submit(_job(name, "f", "g", priority=4, metadata={"batch": "b7"}))
    job = _ended(client, job_id)
    assert (job.job_state, job.priority, job.job_metadata) == (
        JobState.FINISHED, 4, {"batch": "b7", "auth_method": "lab"},
    )  # fmt: skip
    assert [(file.file_state, file.filesize, file.failure) for file in job.files] == [(FileState.FINISHED, 5, None)] * 2
    assert all(file.start_time and file.finish_time and file.checksum for file in job.files)
    urls = [f"mock://b-{name}/{one}" for one in ("f", "g", "h")]
    found: Any = service.simulated("stat", urls=urls)["files"]
    assert [one["size"] for one in found] == [5, 5, None]
    service.simulated("remove", urls=urls[:1])
    found = requests.get(f"{service.url}/simulated/list", params={"prefix": f"mock://b-{name}/"}, timeout=20).json()
    assert [one["url"] for one in found["files"]] == urls[1:2]
    failing = client.submit(_job(name, "new", query="?size=5&transfer_errno=110", retry=1, retry_delay_s=1))
    tried = _ended(client, failing).files[0]
    assert (tried.retry, tried.recoverable, tried.file_state) == (1, True, FileState.FAILED)
    retries = requests.get(f"{service.url}/jobs/{failing}/files/{tried.file_id}/retries", timeout=20).json()
    assert [one["reason"] for one in retries] == [tried.reason]


def test_faults_are_switched_on_and_end(client: FtsClient, service: FtsService, name: str) -> None:
    job_id, other = client.submit(_job(name, "f")), client.submit(_job(name, "g"))
    service.simulated("faults", html=1)
    with refused(FTS_FAILED, status=500):
        client.status([job_id])
    service.simulated("faults", partial=1, forget=[other])
    assert len(client.status([job_id, other]).errors) == 2
    answers = client.status([job_id, other])
    assert (set(answers.jobs), set(answers.errors)) == ({job_id}, {other})


MALFORMED = (
    b"", b"{", b"[]", b"null", b"NaN", b"\xff", b"[" * 100_000,
    b'{"urls": 1, "files": 1, "params": 1, "mean_s": -1, "forget": 1}',
    b'{"urls": ["\\ud800"], "files": [null], "storage": "\\ud800", "params": {"priority": "x"}, "delay_s": "x"}',
    (b'{"url": "\\ud800", "size": 1, "files": [{"sources": ["mock://a/f"], "destinations": ["mock://b/f"],'
    b' "filesize": NaN}]}'),
    (b'{"files": [{"sources": ["mock://a/f"], "destinations": ["mock://b/f"]}], "failures": {"weather": 1}, "html": -1,'
    b' "params": {"id_generator": "deterministic", "sid": "\\ud800"}}'),
)  # fmt: skip
CALLS = ("jobs", "jobs/x", "ban/se", "simulated/stat", "simulated/create", "simulated/remove")


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_body_is_refused(service: FtsService, body: bytes) -> None:
    found = {
        call: requests.post(f"{service.url}/{call}", data=body, headers=JSON, timeout=20).status_code for call in CALLS
    }
    assert set(found.values()) <= {400, 404}, found


def test_no_job_that_was_answered_is_lost_with_its_process(tmp_path: Path, name: str) -> None:
    with FtsService(tmp_path) as service, FtsClient(service.url, retries=0) as client:
        done = client.submit(_job(name, "f", "g"))
        before = _ended(client, done)
        named = client.whoami().job_name("s")
        waits = client.submit(_job(name, "h", query=SLOW), named)
        service.kill()
        with refused(FtsUnreachable):
            client.whoami()
        service.start()
        assert _ended(client, done) == before
        assert client.status([waits]).jobs[waits].job_state in (JobState.SUBMITTED, JobState.ACTIVE)
        with refused(JobExists):
            client.submit(_job(name, "h"), named)
        stored: Any = service.simulated("stat", urls=[f"mock://b-{name}/f"])["files"]
        assert stored[0]["size"] == 5


def test_users_have_tokens_and_see_their_own_jobs(tmp_path: Path, name: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("first-secret-token alice admin\nsecond-secret-token bob\n")
    with (
        FtsService(tmp_path, "--tokens", str(tokens)) as service,
        FtsClient(service.url, BearerToken("first-secret-token")) as alice,
        FtsClient(service.url, BearerToken("second-secret-token")) as bob,
        FtsClient(service.url, BearerToken("another-secret-token")) as stranger,
        FtsClient(service.url) as anonymous,
    ):
        assert (alice.whoami().user_dn, bob.whoami().user_dn) == ("alice", "bob")
        job_id = alice.submit(_job(name, query=SLOW))
        for answers in (bob.status([job_id]), bob.cancel([job_id])):
            assert isinstance(answers.errors[job_id], FtsForbidden)
        with refused(TOKEN_REFUSED):
            stranger.whoami()
        assert anonymous.whoami().anonymous
        for client in (bob, anonymous):
            with refused(FtsForbidden):
                client.ban(BanOf.STORAGE, "mock://x")
        with refused(FtsForbidden):
            anonymous.submit(_job(name))
        with refused(ANONYMOUS):
            anonymous.status([job_id])
        assert requests.get(f"{service.url}/simulated/list", timeout=20).status_code == 403
        alice.ban(BanOf.USER, "bob")
        for refused_call in (lambda: bob.submit(_job(name)), bob.whoami):
            with refused(UserBanned):
                refused_call()


def test_users_have_certificates_and_delegate_before_they_submit(tmp_path: Path, name: str) -> None:
    authority = Authority(datetime.now(UTC))
    bundle, user = str(authority.bundle(tmp_path)), authority.files(tmp_path, "user", LASTS)
    files = authority.files(tmp_path, "server", LASTS)
    options = ("--certificate", files.certificate, "--key", str(files.key), "--authorities", bundle)
    with (
        FtsService(tmp_path, *options, scheme="https") as service,
        FtsClient(service.url, user, authorities=bundle) as client,
    ):
        identity = client.whoami()
        assert (identity.method, client.delegation_ends(identity)) == ("certificate", None)
        with refused(DELEGATION_MISSING):
            client.submit(_job(name))
        client.delegate()
        assert _ended(client, client.submit(_job(name))).job_state is JobState.FINISHED
