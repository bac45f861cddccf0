"""The public client of FTS3 (PyPI `fts3`), unmodified, against the embedded FTS, with certificate and delegation."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests

from include.fts.client import FtsClient
from include.fts.states import FileState
from include.fts.transport import X509Files
from tests.fakes.certificates import Authority
from tests.fakes.ftsservice import FtsService

SCRIPT = """
import json, sys
from importlib import import_module
fts3 = import_module("fts3.rest.client.easy")
url, certificate, key, authorities = sys.argv[1:]
context = fts3.Context(url, ucert=certificate, ukey=key, capath=authorities)
found = {"user": fts3.whoami(context)["user_dn"]}

def job(name, query="?size=5"):
    transfer = fts3.new_transfer("mock://a/" + name + query, "mock://b/" + name, checksum=None, metadata={"name": name})
    return fts3.new_job([transfer], verify_checksum=False, retry=1, metadata={"batch": name})

ended = fts3.submit(context, job("f"))
while fts3.get_job_status(context, ended)["job_state"] not in ("FINISHED", "FAILED"):
    pass
status = fts3.get_job_status(context, ended, list_files=True)
found["ended"] = status["job_state"], [one["file_state"] for one in status["files"]], status["job_metadata"]["batch"]
active = fts3.submit(context, job("g", "?size=5&time=600"))
found["listed"] = [one["job_id"] for one in fts3.list_jobs(context)] == [active]
found["canceled"] = fts3.cancel(context, active)["job_state"]
both = fts3.get_jobs_statuses(context, [ended, active])
found["both"] = [one["job_state"] for one in both]
print(json.dumps(found))
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[FtsService, X509Files, str]]:
    """The service over TLS, a user's credential, and the bundle of authorities."""
    authority = Authority(datetime.now(UTC))
    bundle, lasts = str(authority.bundle(tmp_path)), timedelta(days=4)
    server, user = authority.files(tmp_path, "server", lasts), authority.files(tmp_path, "user", lasts)
    options = ("--certificate", server.certificate, "--key", str(server.key), "--authorities", bundle)
    with FtsService(tmp_path, *options, scheme="https") as running:
        yield running, user, bundle


@pytest.mark.server("fts3")
def test_the_public_client_delegates_submits_polls_and_cancels(
    need: Callable[[str], str], service: tuple[FtsService, X509Files, str]
) -> None:
    running, user, bundle = service
    done = subprocess.run(
        [need("fts3"), "-c", SCRIPT, running.url, user.certificate, str(user.key), bundle],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {
        "user": "/CN=user",
        "ended": ["FINISHED", ["FINISHED"], "f"],
        "listed": True,
        "canceled": "CANCELED",
        "both": ["FINISHED", "CANCELED"],
    }


@pytest.mark.server("fts3")
def test_the_public_commands_submit_jobs_that_end_well(
    need: Callable[[str], str], service: tuple[FtsService, X509Files, str], tmp_path: Path
) -> None:
    running, user, bundle = service

    def command(name: str, *arguments: str) -> str:
        python = need("fts3")
        identity = ("-s", running.url, "--cert", user.certificate, "--key", str(user.key), "--capath", bundle)
        done = subprocess.run(
            [python, str(Path(python).with_name(name)), *identity, *arguments],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
        return done.stdout

    # without options it sends its own default of each, as "n" for verify_checksum
    command("fts-rest-transfer-submit", "--blocking", "--interval", "1", "mock://a/f?size=5", "mock://b/f")
    checked = ("--checksum-mode", "both", "--compare-checksum", "--retry", "1", "--job-metadata", "{}")
    command("fts-rest-transfer-submit", "-b", "-i", "1", *checked, "mock://a/g?size=5", "mock://b/g")
    bulk = tmp_path / "bulk"
    files = [{"sources": [f"mock://a/{number}"], "destinations": [f"mock://b/{number}"]} for number in range(100)]
    bulk.write_text(json.dumps({"files": files}))
    job_id = re.findall(r"[0-9a-f-]{36}", command("fts-rest-transfer-submit", "--file", str(bulk)))[-1]
    urls = [f"mock://b/{name}" for name in ("f", "g", *range(100))]
    with FtsClient(running.url, user, authorities=bundle) as client:
        while not (status := client.status([job_id]).jobs[job_id]).job_state.terminal:
            pass
    assert "FINISHED" in command("fts-rest-transfer-status", job_id)
    assert [file.file_state for file in status.files] == [FileState.FINISHED] * 100
    copied = requests.post(
        f"{running.url}/simulated/stat", json={"urls": urls}, cert=(user.certificate, str(user.key)), verify=bundle,
        timeout=20,
    ).json()["files"]  # fmt: skip
    assert all(file["size"] is not None for file in copied)
